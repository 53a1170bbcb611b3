"""Checks a TransformerConfig: the range of every value, and the combinations that contradict each other."""

from __future__ import annotations

import math
from collections.abc import Callable

from jax_transformer.config.positions import Learned, RelativeBias, RelativeVectors, Rotary, Sinusoidal
from jax_transformer.config.short_names import (
    STACKS,
    ShortNames,
    holders,
    is_of_decoder,
    named_value,
    option_at,
    part_at,
)
from jax_transformer.config.sizes import size_problems
from jax_transformer.config.specs import Attention, FeedForward, Stack

NOT_COMPUTED = {
    "feed_forward_layers": "a feed-forward has two linear maps, or none with feed_forward: false",
    "cross_attention_layer": "cross-attention reads the output of the encoder's last layer, not of the same layer",
}
"""Fields that a TransformerConfig doesn't have, though programs differ in them, and what it computes instead."""


def model_problems(config: ShortNames) -> list[str]:
    """Returns a message for every value of the config that is out of range, or else for every contradiction."""
    problems = (
        _wrong_parts(config)
        or _out_of_range(config)
        or size_problems(config)  # contradictions divide by the sizes
        or _contradictions(config)
    )
    return list(dict.fromkeys(problems))  # one of each, where an option of several parts is wrong in all


def _wrong_parts(config: ShortNames) -> list[str]:
    """Returns a message for every part that only the other stack may have."""
    problems = []
    if config.encoder.cross_attention is not None:
        problems.append("encoder.cross_attention must be null: an encoder has nothing else to attend to")
    if config.encoder.self_attention.causal:
        problems.append("encoder.self_attention.causal must be false; received true")
    if config.decoder.cross_attention is None:
        problems.append("decoder.cross_attention must be given; received null")
    elif config.decoder.cross_attention.causal:
        problems.append("decoder.cross_attention.causal must be false; received true")
    unread = [("encoder.self_attention", "padding_id"), ("encoder.self_attention", "decoding_padding")]
    if config.decoder.cross_attention is not None:
        unread += [("decoder.cross_attention", field) for field in ("padding_id", "window", "full_every")]
    for place, field in unread:
        value = getattr(part_at(config, place), field)
        if value is not None:
            problems.append(f"{place}.{field} must be null, since no mask there reads it; received {value!r}")
    return problems


Check = Callable[[bool, str, str, str], None]
"""(holds, path of a part, option, allowed values): notes a problem of that option unless it holds."""


def _checker(config: ShortNames) -> tuple[list[str], Check]:
    """Returns a list of problems, and the function that adds to it."""
    problems: list[str] = []

    def check(holds: bool, place: str, field: str, allowed: str) -> None:
        if not holds:
            name, value = named_value(config, place, field)
            takes_null = is_of_decoder(name) and f"{allowed}, or null" in RANGES
            allowed = f"{allowed}, or null" if takes_null else allowed
            problems.append(f"{name} must be {allowed}; received {value!r}")

    return problems, check


def _paths(stack: Stack, name: str) -> list[tuple[str, Attention]]:
    """Returns the paths of a stack's attentions, and the attentions."""
    both = (("self_attention", stack.self_attention), ("cross_attention", stack.cross_attention))
    return [(f"{name}.{path}", attention) for path, attention in both if attention is not None]


RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "at least 1": (
        lambda value: value >= 1,
        "d_model num_heads d_ff num_encoder_layers num_decoder_layers max_length relative_buckets "
        "relative_max_distance",
    ),
    "at least 1, or null": (lambda value: value >= 1, "num_kv_heads head_dim value_dim rotary_dim window"),
    "at least 2, or null": (lambda value: value >= 2, "full_every"),
    "at least 0": (
        lambda value: value >= 0,
        "source_vocab_size target_vocab_size source_pad_id target_pad_id position_offset token_types",
    ),
    "at least 0, or null": (lambda value: value >= 0, "decoder_padding_id"),
    "in [0, 1)": (
        lambda value: 0.0 <= value < 1.0,
        "dropout_rate embedding_dropout_rate attention_dropout_rate feed_forward_dropout_rate output_dropout_rate",
    ),
    "at least 0, and finite": (lambda value: 0.0 <= value < math.inf, "norm_eps"),
    "above 0, and finite": (lambda value: 0.0 < value < math.inf, "rotary_base"),
    "above 0, and finite, or null": (lambda value: 0.0 < value < math.inf, "attention_logits_cap logits_cap"),
    "finite": (
        math.isfinite,
        "activation_slope norm_scale_offset residual_factor sublayer_factor position_factor relative_bias_factor "
        "logits_factor",
    ),
    "finite, or null": (math.isfinite, "attention_scale masked_value sublayer_scale_init"),
}
"""The allowed values → a test for a value, and the options. null is allowed if the option's type allows it."""


def _out_of_range(config: ShortNames) -> list[str]:
    problems, check = _checker(config)
    for allowed, (holds, names) in RANGES.items():
        for name in names.split():
            at = option_at(name)
            assert at is not None
            for place, part in holders(config, at):
                value = getattr(part, at.field)
                check(value is None or holds(value), place, at.field, allowed)
    for name, field in (("encoder", "embedding_factor"), ("decoder", "decoder_embedding_factor")):
        scale = getattr(config, name).embedding_scale
        if not isinstance(scale, str) and not math.isfinite(scale):
            problems.append(f"{field} must be finite, or null; received {scale!r}")
    return problems


def _contradictions(config: ShortNames) -> list[str]:
    problems, check = _checker(config)
    problems += _contradictory_stem(config) + _contradictory_transform(config)
    check(config.decoder.d_model == config.encoder.d_model, "decoder", "d_model", "the encoder's d_model")
    if config.source.vocab_size and config.target.vocab_size:
        for side in ("source", "target"):
            tokens = getattr(config, side)
            allowed = f"below {side}_vocab_size={tokens.vocab_size}"
            check(tokens.pad_id < tokens.vocab_size, side, "pad_id", allowed)
        if config.share_embeddings and config.source.vocab_size != config.target.vocab_size:
            problems.append(
                "share_embeddings needs source_vocab_size equal to target_vocab_size; "
                f"received {config.source.vocab_size} and {config.target.vocab_size}"
            )
    if config.share_embeddings and config.source.trains_pad != config.target.trains_pad:
        problems.append(
            "share_embeddings needs source.trains_pad equal to target.trains_pad; "
            f"received {config.source.trains_pad} and {config.target.trains_pad}"
        )
    for name in STACKS:
        stack: Stack = getattr(config, name)
        problems += _contradictory_sizes(config, name, stack)
        problems += _contradictory_norms(config, name, stack)
        problems += _contradictory_residuals(config, name, stack)
        problems += _contradictory_positions(config, name, stack)
    problems += _odd_rotations(config)
    slopes = [stack.feed_forward for stack in (config.encoder, config.decoder) if stack.feed_forward is not None]
    if "leaky_relu" not in [part.activation for part in slopes]:
        for name in STACKS:
            part = getattr(config, name).feed_forward
            place = f"{name}.feed_forward"
            check(part is None or part.slope == 0.01, place, "slope", "0.01 unless activation='leaky_relu'")
    return problems


def _contradictory_stem(config: ShortNames) -> list[str]:
    problems, check = _checker(config)
    if config.stem is None:
        return problems
    for field in ("features", "kernel", "stride"):
        check(getattr(config.stem, field) >= 1, "stem", field, "at least 1")
    check(config.stem.kernel % 2 == 1, "stem", "kernel", "odd")
    check(config.stem.activation not in ("leaky_relu", "prelu"), "stem", "activation", "one without a slope")
    check(config.source.vocab_size == 0, "source", "vocab_size", "0 with a stem, whose source has no tokens")
    if config.share_embeddings:
        problems.append("share_embeddings must be false with a stem, whose source has no embedding; received true")
    return problems


def _contradictory_transform(config: ShortNames) -> list[str]:
    problems, check = _checker(config)
    transform = config.head.transform
    check(transform not in ("leaky_relu", "prelu"), "head", "transform", "an activation without a slope")
    has_norms = config.decoder.norm is not None
    check(transform is None or has_norms, "head", "transform", "null without norms in the decoder")
    return problems


def _contradictory_sizes(config: ShortNames, name: str, stack: Stack) -> list[str]:
    problems, check = _checker(config)
    divides = f"a divisor of d_model={stack.d_model} unless head_dim is set"
    for place, attention in _paths(stack, name):
        if attention.head_dim is None and stack.d_model % attention.num_heads:
            check(False, place, "num_heads", divides)
        shape = attention.shape(stack.d_model)
        divisor = f"a divisor of the {name}'s num_heads={shape.num_heads}"
        check(shape.num_heads % shape.num_kv_heads == 0, place, "num_kv_heads", divisor)
        check(attention.window is not None or attention.full_every is None, place, "full_every", "null without window")
        width = shape.num_heads * shape.value_dim
        if not attention.output and width != stack.d_model:
            needed = f"num_heads * value_dim equal to d_model={stack.d_model}"
            problems.append(f"{named_value(config, place, 'output')[0]}=False needs {needed}; received {width}")
    if isinstance(stack.positions, Sinusoidal):
        check(stack.d_model % 2 == 0, name, "d_model", "even with position_kind='sinusoidal'")
    path = config.compute.attention
    for obstacle in {attention.path_obstacle for _, attention in _paths(stack, name)} - {""}:
        check(path in ("auto", "reference"), "compute", "attention", f"'auto' or 'reference' with {obstacle}")
    if path in ("xla", "cudnn") and (rate := stack.dropout.at("attention")):
        problems.append(
            f"attention_path={path!r} has no dropout on attention weights: set attention_dropout_rate=0 or "
            f"attention_path='auto'; received a rate of {rate}"
        )
    return problems


def _contradictory_norms(config: ShortNames, name: str, stack: Stack) -> list[str]:
    problems, check = _checker(config)
    attentions = _paths(stack, name)
    sublayers: list[tuple[str, Attention | FeedForward]] = [*attentions]
    if stack.feed_forward is not None:
        sublayers.append((f"{name}.feed_forward", stack.feed_forward))
    if stack.norm is None:
        norms = "norm_kind='none'" if config.encoder.norm is config.decoder.norm else f"{name}.norm=null"
        for place, part in sublayers:
            check(not part.output_norm, place, "output_norm", f"{_off(config, place, 'output_norm')} with {norms}")
        for place, attention in attentions:
            off = _off(config, place, "context_norm")
            check(not attention.context_norm, place, "context_norm", f"{off} with {norms}")
            check(not attention.query_key_norm, place, "query_key_norm", f"false with {norms}")
        if stack.feed_forward is not None:
            check(not stack.feed_forward.hidden_norm, f"{name}.feed_forward", "hidden_norm", f"false with {norms}")
        check(not stack.final_norm, name, "final_norm", f"false with {norms}")
        check(stack.embedding_norm == "none", name, "embedding_norm", f"'none' with {norms}")
        if stack.share_norms:
            problems.append(
                f"{'norm_kind' if 'kind' in norms else f'{name}.norm'} must be 'layer_norm' or 'rms_norm' with "
                "share_norms=True; received 'none'"
            )
        return problems
    offset = "0.0 without norms that have scales"
    check(stack.norm.scale or stack.norm.scale_offset == 0.0, f"{name}.norm", "scale_offset", offset)
    for width, size in _normed_widths(stack, name).items():
        check(size > 1 or not stack.norm.unbiased, f"{name}.norm", "unbiased", f"false with {width}=1")
    if stack.share_norms:
        check(stack.norm_placement != "none", name, "norm_placement", "'pre' or 'post' with share_norms=True")
    if stack.residual.parallel:
        parallel = "'pre' or 'none' with parallel_residual=True"
        check(stack.norm_placement != "post", name, "norm_placement", parallel)
    return problems


def _off(config: ShortNames, place: str, field: str) -> str:
    """Returns a message's name for the value that turns an option of norms off."""
    return "'none'" if named_value(config, place, field)[0] == field else "false"


def _normed_widths(stack: Stack, name: str) -> dict[str, int]:
    """Returns the sizes of the axes that a stack norms, by what a message calls them."""
    widths = {"d_model": stack.d_model}
    for _, attention in _paths(stack, name):
        shape = attention.shape(stack.d_model)
        if attention.query_key_norm:
            widths[f"the {name}'s head_dim"] = shape.head_dim
        if attention.context_norm:
            widths[f"the {name}'s num_heads * value_dim"] = shape.num_heads * shape.value_dim
    if stack.feed_forward is not None and stack.feed_forward.hidden_norm:
        widths[f"the {name}'s d_ff"] = stack.feed_forward.width
    return widths


def _contradictory_residuals(config: ShortNames, name: str, stack: Stack) -> list[str]:
    problems, check = _checker(config)
    residual, place = stack.residual, f"{name}.residual"
    if residual.parallel:
        check(residual.stream_scale == "none", place, "stream_scale", "'none' with parallel_residual=True")
    if residual.output_scale == "none":
        no_scale = "null with learned_sublayer_scale='none'"
        check(residual.output_scale_init is None, place, "output_scale_init", no_scale)
    if residual.stream_scale == "feed_forward" and stack.feed_forward is None:
        same = (config.encoder.feed_forward is None) == (config.decoder.feed_forward is None)
        needed = "feed_forward must be true" if same else f"{name}.feed_forward must be given"
        received = "False" if same else "null"
        problems.append(f"{needed} with learned_residual_scale='feed_forward'; received {received}")
    return problems


def _contradictory_positions(config: ShortNames, name: str, stack: Stack) -> list[str]:
    problems, check = _checker(config)
    kind, place = stack.positions, f"{name}.positions"
    if isinstance(kind, Rotary):
        check(kind.index != "batch_row", place, "index", "column or non_pad_count with rotary positions")
        if name == "encoder":
            unused = "false, as an encoder has no cross-attention"
            check(not kind.cross_attention, place, "cross_attention", unused)
        if kind.dim is not None:
            widths = [other.heads.head_dim for other in (config.encoder, config.decoder) if _rotates(other, kind.dim)]
            check(kind.dim % 2 == 0, place, "dim", "even")
            check(kind.dim <= min(widths), place, "dim", f"at most the width of a head, {min(widths)}")
        cross = stack.cross_attention
        if kind.cross_attention and cross is not None and cross.shape(stack.d_model).head_dim != stack.heads.head_dim:
            problems.append(
                "decoder.positions.cross_attention needs heads of one width in both attentions; received "
                f"{stack.heads.head_dim} and {cross.shape(stack.d_model).head_dim}"
            )
    if isinstance(kind, Learned):
        no_row = "true unless position_index='non_pad_count', whose pads have a row"
        check(kind.trains_pad or kind.index == "non_pad_count", place, "trains_pad", no_row)
    if isinstance(kind, RelativeVectors):
        paths = "'auto' or 'reference' with position_kind='relative_vectors'"
        check(config.compute.attention in ("auto", "reference"), "compute", "attention", paths)
    if isinstance(kind, RelativeBias):
        check(kind.buckets >= 4, place, "buckets", "at least 4 with position_kind='relative_bias'")
        least = kind.buckets // 2 + 1
        allowed = f"at least {least} with relative_buckets={kind.buckets}"
        check(kind.max_distance >= least, place, "max_distance", allowed)
    return problems


def _rotates(stack: Stack, width: int) -> bool:
    """Returns whether a stack rotates so many features of a head."""
    return isinstance(stack.positions, Rotary) and stack.positions.dim == width


def _odd_rotations(config: ShortNames) -> list[str]:
    """Returns a message if whole heads of an odd width would be rotated in pairs."""
    rotated = [
        stack.heads.head_dim
        for stack in (config.encoder, config.decoder)
        if isinstance(stack.positions, Rotary) and stack.positions.dim is None
    ]
    if not any(width % 2 for width in rotated):
        return []
    received = " and ".join(map(str, rotated))
    return [f"rotary_dim must be set where heads have an odd width; received null with {received}"]
