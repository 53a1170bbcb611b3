"""Checks a TransformerConfig: the range of every value, and the combinations that contradict each other."""

from __future__ import annotations

import math
from collections.abc import Callable

from jax_transformer.config.short_names import ShortNames, read, short_names
from jax_transformer.config.sizes import size_problems
from jax_transformer.config.validation import ConfigError

NOT_COMPUTED = {
    "feed_forward_layers": "a feed-forward has two linear maps, or none with feed_forward: false",
    "cross_attention_layer": "cross-attention reads the output of the encoder's last layer, not of the same layer",
}
"""Fields that a TransformerConfig doesn't have, though programs differ in them, and what it computes instead."""


def model_problems(config: ShortNames) -> list[str]:
    """Returns a message for every value of the config that is out of range, or else for every contradiction."""
    return (
        _wrong_parts(config)
        or _several_values(config)
        or _out_of_range(config)
        or size_problems(config)  # contradictions divide by the sizes
        or _contradictions(config)
    )


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
    return problems


def _several_values(config: ShortNames) -> list[str]:
    """Returns a message for every option that has to have one value in all places of its short name, and has
    several."""
    problems = []
    for name in short_names():
        try:
            read(config, name)
        except ConfigError as error:
            problems.append(str(error))
    return problems


def _checker(config: ShortNames) -> tuple[list[str], Callable[[bool, str, str], None]]:
    """Returns a list of problems and the function that adds to it: check(holds, field, allowed values)."""
    problems: list[str] = []

    def check(holds: bool, field: str, allowed: str) -> None:
        if not holds:
            problems.append(f"{field} must be {allowed}; received {getattr(config, field)!r}")

    return problems, check


def _out_of_range(config: ShortNames) -> list[str]:
    problems, check = _checker(config)
    layers = ("num_encoder_layers", "num_decoder_layers")
    for field in ("d_model", "num_heads", "d_ff", *layers, "max_length", "relative_buckets", "relative_max_distance"):
        check(getattr(config, field) >= 1, field, "at least 1")
    of_heads = ("num_kv_heads", "head_dim", "value_dim")
    of_decoder = ("decoder_num_heads", *(f"decoder_{name}" for name in (*of_heads, "d_ff", "max_length")))
    for field in (*of_heads, "rotary_dim", *of_decoder):
        value = getattr(config, field)
        check(value is None or value >= 1, field, "at least 1, or null")
    for field in ("source_vocab_size", "target_vocab_size", "source_pad_id", "target_pad_id", "position_offset"):
        check(getattr(config, field) >= 0, field, "at least 0")
    for field in (name for name in short_names() if name.endswith("dropout_rate")):
        rate = getattr(config, field)
        check(rate is None or 0.0 <= rate < 1.0, field, "in [0, 1)")
    check(0.0 <= config.norm_eps < math.inf, "norm_eps", "at least 0, and finite")
    check(0.0 < config.rotary_base < math.inf, "rotary_base", "above 0, and finite")
    factors = ("residual_factor", "sublayer_factor", "position_factor", "relative_bias_factor", "logits_factor")
    for field in ("activation_slope", "norm_scale_offset", *factors):
        check(math.isfinite(getattr(config, field)), field, "finite")
    optional = (
        "embedding_factor",
        "decoder_embedding_factor",
        "decoder_residual_factor",
        "decoder_sublayer_factor",
        "decoder_relative_bias_factor",
        "sublayer_scale_init",
    )
    for field in ("attention_scale", "masked_value", *optional):
        value = getattr(config, field)
        check(value is None or math.isfinite(value), field, "finite, or null")
    pad_id = config.decoder_padding_id
    check(pad_id is None or pad_id >= 0, "decoder_padding_id", "at least 0, or null")
    return problems


def _contradictions(config: ShortNames) -> list[str]:
    problems, check = _checker(config)
    divides = f"a divisor of d_model={config.d_model} unless head_dim is set"
    if config.head_dim is None:
        check(config.d_model % config.num_heads == 0, "num_heads", divides)
        if config.decoder_num_heads is not None and config.decoder_head_dim is None:
            check(config.d_model % config.decoder_num_heads == 0, "decoder_num_heads", divides)
    for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        if stack.num_heads % stack.num_kv_heads:
            own = name == "decoder" and config.decoder_num_kv_heads is not None
            needed = f"a divisor of the {name}'s num_heads={stack.num_heads}"
            check(False, "decoder_num_kv_heads" if own else "num_kv_heads", needed)
    if config.source_vocab_size and config.target_vocab_size:
        for side in ("source", "target"):
            size = getattr(config, f"{side}_vocab_size")
            check(getattr(config, f"{side}_pad_id") < size, f"{side}_pad_id", f"below {side}_vocab_size={size}")
        if config.share_embeddings and config.source_vocab_size != config.target_vocab_size:
            problems.append(
                "share_embeddings needs source_vocab_size equal to target_vocab_size; "
                f"received {config.source_vocab_size} and {config.target_vocab_size}"
            )
    if "sinusoidal" in _position_kinds(config):
        check(config.d_model % 2 == 0, "d_model", "even with position_kind='sinusoidal'")
    for stack in (config.encoder, config.decoder):
        width = stack.num_heads * stack.value_dim
        if not config.attention_output and width != config.d_model:
            needed = f"num_heads * value_dim equal to d_model={config.d_model}"
            problems.append(f"attention_output=False needs {needed}; received {width}")
    return [*problems, *_contradictory_kinds(config)]


def _contradictory_kinds(config: ShortNames) -> list[str]:
    problems, check = _checker(config)
    if config.norm_kind == "rms_norm":
        check(not config.norm_bias, "norm_bias", "false with norm_kind='rms_norm'")
    if config.norm_kind == "none":
        for field in ("output_norm", "context_norm"):
            check(getattr(config, field) == "none", field, "'none' with norm_kind='none'")
        for field in ("final_norm", "decoder_final_norm", "feed_forward_hidden_norm", "query_key_norm"):
            check(not getattr(config, field), field, "false with norm_kind='none'")
        for field in ("encoder_embedding_norm", "decoder_embedding_norm"):
            check(getattr(config, field) == "none", field, "'none' with norm_kind='none'")
    has_norms = config.norm_kind != "none"
    if not (has_norms and config.norm_scale):
        check(config.norm_scale_offset == 0.0, "norm_scale_offset", "0.0 without norms that have scales")
    if config.parallel_residual:
        check(config.learned_residual_scale == "none", "learned_residual_scale", "'none' with parallel_residual=True")
        for field in ("norm_placement", "decoder_norm_placement"):
            is_post = has_norms and getattr(config, field) == "post"
            check(not is_post, field, "'pre' or 'none' with parallel_residual=True")
    if config.share_norms:
        check(has_norms, "norm_kind", "'layer_norm' or 'rms_norm' with share_norms=True")
        for field in ("norm_placement", "decoder_norm_placement"):
            check(getattr(config, field) != "none", field, "'pre' or 'post' with share_norms=True")
    if config.learned_sublayer_scale == "none":
        check(config.sublayer_scale_init is None, "sublayer_scale_init", "null with learned_sublayer_scale='none'")
    if config.learned_residual_scale == "feed_forward":
        check(config.feed_forward, "feed_forward", "true with learned_residual_scale='feed_forward'")
    if "leaky_relu" not in (config.encoder.activation, config.decoder.activation):
        check(config.activation_slope == 0.01, "activation_slope", "0.01 unless activation='leaky_relu'")
    for name, width in _normed_widths(config).items():
        check(width > 1 or not config.norm_unbiased, "norm_unbiased", f"false with {name}=1")
    if config.attention_path in ("xla", "cudnn"):
        own_rate = config.attention_dropout_rate
        rate = own_rate if own_rate is not None else config.dropout_rate
        if rate:
            problems.append(
                f"attention_path={config.attention_path!r} has no dropout on attention weights: set "
                f"attention_dropout_rate=0 or attention_path='auto'; received a rate of {rate}"
            )
    return [*problems, *_contradictory_positions(config)]


def _normed_widths(config: ShortNames) -> dict[str, int]:
    """Returns the sizes of the axes that the config norms, by what a message calls them."""
    widths = {"d_model": config.d_model}
    if config.query_key_norm:
        widths |= {"the encoder's head_dim": config.encoder.head_dim, "the decoder's head_dim": config.decoder.head_dim}
    if config.context_norm != "none":
        stacks = (("encoder", config.encoder), ("decoder", config.decoder))
        widths |= {f"the {name}'s num_heads * value_dim": stack.num_heads * stack.value_dim for name, stack in stacks}
    if config.feed_forward_hidden_norm:
        widths |= {"the encoder's d_ff": config.encoder.d_ff, "the decoder's d_ff": config.decoder.d_ff}
    return widths


def _position_kinds(config: ShortNames) -> set[str]:
    """Returns the kinds of positions that the stacks have."""
    return {config.encoder.position_kind, config.decoder.position_kind}


def _contradictory_positions(config: ShortNames) -> list[str]:
    problems, check = _checker(config)
    kinds = _position_kinds(config)
    if not kinds & {"sinusoidal", "learned"}:
        table = "with position_kind='sinusoidal' or 'learned'"
        check(config.position_factor == 1.0, "position_factor", f"1.0, or be used {table}")
        check(not config.learned_position_scale, "learned_position_scale", f"false, or be used {table}")
    if "rotary" in kinds:
        check(config.position_index != "batch_row", "position_index", "column or non_pad_count with rotary positions")
        if "sinusoidal" not in kinds:
            check(config.position_frequency == "standard", "position_frequency", "standard with rotary positions")
        problems += _contradictory_rotations(config)
    else:
        check(config.rotary_dim is None, "rotary_dim", "null without position_kind='rotary'")
    if config.decoder.position_kind != "rotary":
        rotary = f"without {_kind_of_decoder(config)}='rotary'"
        check(not config.rotary_cross_attention, "rotary_cross_attention", f"false {rotary}")
    if "relative_vectors" in kinds:
        paths = "'auto' or 'reference' with position_kind='relative_vectors'"
        check(config.attention_path in ("auto", "reference"), "attention_path", paths)
    if "relative_bias" in kinds:
        least = config.relative_buckets // 2 + 1
        check(config.relative_buckets >= 4, "relative_buckets", "at least 4 with position_kind='relative_bias'")
        check(
            config.relative_max_distance >= least,
            "relative_max_distance",
            f"at least {least} with relative_buckets={config.relative_buckets}",
        )
    else:
        used = "1.0, or be used with position_kind='relative_bias'"
        check(config.relative_bias_factor == 1.0, "relative_bias_factor", used)
    if config.decoder.position_kind != "relative_bias":
        unused = f"null without {_kind_of_decoder(config)}='relative_bias'"
        check(config.decoder_relative_bias_factor is None, "decoder_relative_bias_factor", unused)
    return problems


def _kind_of_decoder(config: ShortNames) -> str:
    """Returns the name of the field that says what positions the decoder has."""
    return "position_kind" if config.decoder_position_kind is None else "decoder_position_kind"


def _contradictory_rotations(config: ShortNames) -> list[str]:
    problems, check = _checker(config)
    widths = [stack.head_dim for stack in (config.encoder, config.decoder) if stack.position_kind == "rotary"]
    if config.rotary_dim is not None:
        check(config.rotary_dim % 2 == 0, "rotary_dim", "even")
        check(config.rotary_dim <= min(widths), "rotary_dim", f"at most the width of a head, {min(widths)}")
    elif any(width % 2 for width in widths):
        received = " and ".join(map(str, widths))
        problems.append(f"rotary_dim must be set where heads have an odd width; received null with {received}")
    return problems
