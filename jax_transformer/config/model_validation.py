"""Checks a TransformerConfig: the range of every value, and the combinations that contradict each other."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from typing import Any

from jax_transformer.config.positions import RelativeBias, RelativeVectors, Rotary, Sinusoidal
from jax_transformer.config.short_names import ShortNames, named_values, read, short_names
from jax_transformer.config.sizes import size_problems
from jax_transformer.config.specs import Attention, Stack
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
        or _out_of_range(config)
        or size_problems(config)  # contradictions divide by the sizes
        or _contradictions(config)
    )


def _wrong_parts(config: ShortNames) -> list[str]:
    """Returns a message for every part that only the other stack may have, and for stacks of different widths."""
    problems = []
    if config.encoder.cross_attention is not None:
        problems.append("encoder.cross_attention must be null: an encoder has nothing else to attend to")
    if config.encoder.self_attention.causal:
        problems.append("encoder.self_attention.causal must be false; received true")
    if config.decoder.cross_attention is None:
        problems.append("decoder.cross_attention must be given; received null")
    elif config.decoder.cross_attention.causal:
        problems.append("decoder.cross_attention.causal must be false; received true")
    try:
        read(config, "d_model")
    except ConfigError as error:
        problems.append(str(error))
    return problems


class _Checks:
    """Collects messages of values that aren't allowed, each once."""

    def __init__(self, config: ShortNames) -> None:
        self.config = config
        self._problems: dict[str, None] = {}

    @property
    def problems(self) -> list[str]:
        """The messages, in the order in which they were found."""
        return list(self._problems)

    def add(self, problem: str) -> None:
        """Adds a message."""
        self._problems[problem] = None

    def each(self, name: str, holds: Callable[[Any], bool], allowed: str, stack: str = "") -> None:
        """Checks an option in all its places, or in those of a stack."""
        for label, value in named_values(self.config, name, stack):
            if not holds(value):
                self.add(f"{label} must be {allowed}; received {value!r}")

    def range(self, name: str, holds: Callable[[Any], bool], allowed: str) -> None:
        """Checks an option in all its places; null passes."""
        for label, value in named_values(self.config, name):
            if value is not None and not holds(value):
                may_be_null = type(None) in typing.get_args(short_names().get(label, short_names()[name]))
                self.add(f"{label} must be {allowed}{', or null' * may_be_null}; received {value!r}")

    def structure(self, name: str, allowed: str) -> None:
        """Adds a message for a name that chooses parts, such as output_norm."""
        try:
            received = repr(read(self.config, name))
        except ConfigError as error:
            received = str(error).partition("; received ")[2]
        self.add(f"{name} must be {allowed}; received {received}")


def _at_most(most: int) -> Callable[[int], bool]:
    return lambda value: value <= most


def _out_of_range(config: ShortNames) -> list[str]:
    checks = _Checks(config)
    sizes = ("d_model", "num_heads", "num_kv_heads", "head_dim", "value_dim", "d_ff")
    lengths = ("max_length", "relative_buckets", "relative_max_distance", "rotary_dim")
    for field in (*sizes, "num_encoder_layers", "num_decoder_layers", *lengths):
        checks.range(field, lambda value: value >= 1, "at least 1")
    pads = ("source_pad_id", "target_pad_id", "decoder_padding_id")
    for field in ("source_vocab_size", "target_vocab_size", *pads, "position_offset"):
        checks.range(field, lambda value: value >= 0, "at least 0")
    for field in (name for name in short_names() if name.endswith("dropout_rate")):
        checks.each(field, lambda rate: rate is None or 0.0 <= rate < 1.0, "in [0, 1)")
    checks.range("norm_eps", lambda value: 0.0 <= value < math.inf, "at least 0, and finite")
    checks.range("rotary_base", lambda value: 0.0 < value < math.inf, "above 0, and finite")
    factors = ("residual_factor", "sublayer_factor", "position_factor", "relative_bias_factor", "logits_factor")
    others = ("activation_slope", "norm_scale_offset", "sublayer_scale_init", "attention_scale", "masked_value")
    for field in (*factors, *others):
        checks.range(field, math.isfinite, "finite")
    factor, own = config.encoder.embedding_factor, config.decoder.embedding_factor
    for field, value in (("embedding_factor", factor), *((("decoder_embedding_factor", own),) * (own is not factor))):
        if not math.isfinite(value):
            checks.add(f"{field} must be finite, or null; received {value!r}")
    return checks.problems


def _contradictions(config: ShortNames) -> list[str]:
    checks = _Checks(config)
    for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        _heads(checks, name, stack)
        _norms(checks, name, stack)
        _residuals(checks, name, stack)
        _positions(checks, name, stack)
        if config.compute.attention in ("xla", "cudnn") and (rate := stack.dropout.at("attention")):
            checks.add(
                f"attention_path={config.compute.attention!r} has no dropout on attention weights: set "
                f"attention_dropout_rate=0 or attention_path='auto'; received a rate of {rate}"
            )
    _ids(checks)
    parts = [stack.feed_forward for stack in (config.encoder, config.decoder) if stack.feed_forward]
    if all(part.activation != "leaky_relu" for part in parts):
        checks.each("activation_slope", lambda slope: slope == 0.01, "0.01 unless activation='leaky_relu'")
    _rotations(checks)
    return checks.problems


def _ids(checks: _Checks) -> None:
    config = checks.config
    source, target = config.source, config.target
    if source.vocab_size and target.vocab_size:
        for side, tokens in (("source", source), ("target", target)):
            size = tokens.vocab_size
            checks.each(f"{side}_pad_id", _at_most(size - 1), f"below {side}_vocab_size={size}")
        if config.share_embeddings and source.vocab_size != target.vocab_size:
            checks.add(
                "share_embeddings needs source_vocab_size equal to target_vocab_size; "
                f"received {source.vocab_size} and {target.vocab_size}"
            )


def _heads(checks: _Checks, name: str, stack: Stack) -> None:
    width = stack.d_model
    for place, attention in _attentions(name, stack):
        shape = attention.shape(width)
        if attention.head_dim is None:
            divides = f"a divisor of d_model={width} unless head_dim is set"
            checks.each("num_heads", lambda heads: width % heads == 0, divides, place)
        groups = attention.num_kv_heads
        if groups is not None and attention.num_heads % groups:
            needed = f"a divisor of the {name}'s num_heads={attention.num_heads}"
            checks.each("num_kv_heads", lambda _: False, needed, place)
        merged = shape.num_heads * shape.value_dim
        if not attention.output and merged != width:
            needed = f"num_heads * value_dim equal to d_model={width}"
            checks.add(f"attention_output=False needs {needed}; received {merged}")


def _attentions(name: str, stack: Stack) -> list[tuple[str, Attention]]:
    """Returns the attentions of a stack by their paths."""
    found = [("self_attention", stack.self_attention), ("cross_attention", stack.cross_attention)]
    return [(f"{name}.{kind}", attention) for kind, attention in found if attention is not None]


def _norms(checks: _Checks, name: str, stack: Stack) -> None:
    norm = stack.norm
    if norm is None:
        both = checks.config.encoder.norm is None and checks.config.decoder.norm is None
        without = "norm_kind='none'" if both else f"{name}.norm=null"
        parts = (*stack.attentions, *((stack.feed_forward,) if stack.feed_forward else ()))
        if any(part.output_norm for part in parts):
            checks.structure("output_norm", f"'none' with {without}")
        if any(part.context_norm for part in stack.attentions):
            checks.structure("context_norm", f"'none' with {without}")
        for field in ("final_norm", "feed_forward_hidden_norm", "query_key_norm"):
            checks.each(field, lambda value: not value, f"false with {without}", name)
        checks.each(f"{name}_embedding_norm", lambda value: value == "none", f"'none' with {without}")
        if stack.share_norms:
            checks.structure("norm_kind", "'layer_norm' or 'rms_norm' with share_norms=True")
        return
    if not norm.scale:
        none = "0.0 without norms that have scales"
        checks.each("norm_scale_offset", lambda offset: offset == 0.0, none, name)
    if stack.share_norms:
        allowed = "'pre' or 'post' with share_norms=True"
        checks.each("norm_placement", lambda value: value != "none", allowed, name)
    for what, width in _normed_widths(name, stack).items():
        if width <= 1:
            checks.each("norm_unbiased", lambda value: not value, f"false with {what}={width}", name)


def _normed_widths(name: str, stack: Stack) -> dict[str, int]:
    """Returns the sizes of the axes that a stack norms, by what a message calls them."""
    widths = {"d_model": stack.d_model}
    for attention in stack.attentions:
        shape = attention.shape(stack.d_model)
        if attention.query_key_norm:
            widths[f"the {name}'s head_dim"] = shape.head_dim
        if attention.context_norm:
            widths[f"the {name}'s num_heads * value_dim"] = shape.num_heads * shape.value_dim
    if stack.feed_forward and stack.feed_forward.hidden_norm:
        widths[f"the {name}'s d_ff"] = stack.feed_forward.width
    return widths


def _residuals(checks: _Checks, name: str, stack: Stack) -> None:
    residual = stack.residual
    if residual.parallel:
        alone = "'none' with parallel_residual=True"
        checks.each("learned_residual_scale", lambda value: value == "none", alone, name)
        if stack.norm is not None:
            allowed = "'pre' or 'none' with parallel_residual=True"
            checks.each("norm_placement", lambda value: value != "post", allowed, name)
    if residual.output_scale == "none":
        unused = "null with learned_sublayer_scale='none'"
        checks.each("sublayer_scale_init", lambda value: value is None, unused, name)
    if residual.stream_scale == "feed_forward" and stack.feed_forward is None:
        checks.structure("feed_forward", "true with learned_residual_scale='feed_forward'")


def _positions(checks: _Checks, name: str, stack: Stack) -> None:
    positions = stack.positions
    if isinstance(positions, Sinusoidal):
        checks.each("d_model", lambda width: width % 2 == 0, "even with position_kind='sinusoidal'", name)
    if isinstance(positions, Rotary):
        allowed = "column or non_pad_count with rotary positions"
        checks.each("position_index", lambda index: index != "batch_row", allowed, name)
    if isinstance(positions, RelativeVectors):
        paths = "'auto' or 'reference' with position_kind='relative_vectors'"
        checks.each("attention_path", lambda path: path in ("auto", "reference"), paths)
    if isinstance(positions, RelativeBias):
        least = positions.buckets // 2 + 1
        allowed = "at least 4 with position_kind='relative_bias'"
        checks.each("relative_buckets", lambda count: count >= 4, allowed, name)
        allowed = f"at least {least} with relative_buckets={positions.buckets}"
        checks.each("relative_max_distance", lambda distance: distance >= least, allowed, name)


def _rotations(checks: _Checks) -> None:
    """Checks which features of heads are rotated."""
    config = checks.config
    odd: list[int] = []
    for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        positions = stack.positions
        if not isinstance(positions, Rotary):
            continue
        turned = stack.attentions if positions.cross_attention else (stack.self_attention,)
        widths = [attention.shape(stack.d_model).head_dim for attention in turned]
        width = min(widths)
        if positions.dim is None and len(set(widths)) > 1:
            received = " and ".join(map(str, widths))
            checks.add(f"rotary_dim must be set where cross-attention has other heads; received null with {received}")
        if positions.dim is None:
            odd.append(width)
        else:
            checks.each("rotary_dim", lambda dim: dim % 2 == 0, "even", name)
            allowed = f"at most the width of a head, {width}"
            checks.each("rotary_dim", _at_most(width), allowed, name)
    if any(width % 2 for width in odd):
        received = " and ".join(map(str, odd))
        checks.add(f"rotary_dim must be set where heads have an odd width; received null with {received}")
