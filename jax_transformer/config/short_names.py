"""Short names: `num_heads` instead of a field in each attention of each stack.

A short name stands for one option in every place that has it. People type them (`TransformerConfig(num_heads=4)`,
`--model.num-heads 4`), and files with one level consist of them. A name that begins with `decoder_` stands for the
decoder's places only; null there means the encoder's value.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from jax_transformer.config.positions import KINDS, Index, Layout, PositionKind, RelativeBias
from jax_transformer.config.specs import (
    Activation,
    Attention,
    AttentionPath,
    Compute,
    Dropout,
    EmbeddingNorm,
    FeedForward,
    Head,
    LayerNorm,
    ModelParts,
    NormPlacement,
    PaddingCover,
    Residual,
    RmsNorm,
    Stack,
    Stem,
    Tokens,
)
from jax_transformer.config.validation import ConfigError

Path = tuple[str, ...]
Changes = dict[str, Any]
"""Field of a part → its new value, or the changes of the part that the field holds."""
STACKS = ("encoder", "decoder")
NORMS = {"layer_norm": LayerNorm, "rms_norm": RmsNorm}
CLASSES: dict[str, tuple[type, ...]] = {
    "source": (Tokens,), "target": (Tokens,), "encoder": (Stack,), "decoder": (Stack,), "head": (Head,),
    "compute": (Compute,), "attention": (Attention,), "feed_forward": (FeedForward,), "norm": (LayerNorm, RmsNorm),
    "residual": (Residual,), "dropout": (Dropout,),
}  # fmt: skip
"""Last name of a part's path → the classes of such parts."""


@dataclass(frozen=True)
class At:
    """Says where an option is: a field of parts of the config, each named by its path."""

    places: tuple[str, ...]
    """Paths of the parts, such as encoder.norm."""
    field: str
    kinds: tuple[str, ...] = ()
    """Kinds of positions that have the option. Empty: every part at these paths."""

    def classes(self) -> tuple[type, ...]:
        """Returns the classes of the parts that may have the option."""
        if self.kinds:
            return tuple(KINDS[kind] for kind in self.kinds)
        last = self.places[0].rpartition(".")[2]
        return CLASSES["attention" if last.endswith("attention") else last]


def _each(part: str, field: str, *kinds: str) -> At:
    return At(tuple(f"{stack}.{part}".rstrip(".") for stack in STACKS), field, kinds)


def _attentions(field: str) -> At:
    return At(("encoder.self_attention", "decoder.self_attention", "decoder.cross_attention"), field)


def _cross(field: str) -> At:
    return At(("decoder.cross_attention",), field)


TABLES = ("sinusoidal", "learned")


class ShortNames(ModelParts):
    """Declares the short names: the type of each, and where its option is. Reads them of the parts."""

    def __getattr__(self, name: str) -> Any:
        if name in short_names() and "compute" in self.__dict__:
            return read(self, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    source_vocab_size: Annotated[int, At(("source",), "vocab_size")]
    target_vocab_size: Annotated[int, At(("target",), "vocab_size")]
    d_model: Annotated[int, _each("", "d_model")]
    num_heads: Annotated[int, _attentions("num_heads")]
    num_kv_heads: Annotated[int | None, _attentions("num_kv_heads")]
    head_dim: Annotated[int | None, _attentions("head_dim")]
    value_dim: Annotated[int | None, _attentions("value_dim")]
    d_ff: Annotated[int, _each("feed_forward", "width")]
    num_encoder_layers: Annotated[int, At(("encoder",), "num_layers")]
    num_decoder_layers: Annotated[int, At(("decoder",), "num_layers")]
    share_layers: Annotated[bool, _each("", "share_layers")]
    max_length: Annotated[int, _each("", "max_length")]
    decoder_num_heads: int | None
    decoder_num_kv_heads: int | None
    decoder_head_dim: int | None
    decoder_value_dim: int | None
    decoder_d_ff: int | None
    decoder_max_length: int | None

    source_pad_id: Annotated[int, At(("source",), "pad_id")]
    target_pad_id: Annotated[int, At(("target",), "pad_id")]
    decoder_padding_id: Annotated[int | None, At(("decoder.self_attention",), "padding_id")]

    tie_head: Annotated[bool, At(("head",), "tied")]
    scale_embedding: bool
    """Multiply token embeddings by sqrt(d_model) before adding positions, unless embedding_factor is set."""
    embedding_factor: float | None
    """Multiply token embeddings by this number. null: sqrt(d_model) with scale_embedding, otherwise 1. A shared or tied
    table itself stays unscaled."""
    decoder_embedding_factor: float | None
    trains_pad_embedding: Annotated[bool, At(("source", "target"), "trains_pad")]
    encoder_embedding_norm: Annotated[EmbeddingNorm, At(("encoder",), "embedding_norm")]
    decoder_embedding_norm: Annotated[EmbeddingNorm, At(("decoder",), "embedding_norm")]
    head_transform: Annotated[Activation | None, At(("head",), "transform")]
    scale_head: Annotated[bool, At(("head",), "scales_input")]
    logits_factor: Annotated[float, At(("head",), "factor")]
    logits_cap: Annotated[float | None, At(("head",), "cap")]
    head_bias: Annotated[Literal["parameter", "buffer", "none"], At(("head",), "bias")]
    token_types: Annotated[int, _each("", "token_types")]

    position_kind: PositionKind
    """sinusoidal: a fixed table; learned: a trained table. The others are of self-attention: rotary rotates queries and
    keys by angles that grow with the position (Su et al. 2021); alibi lowers logits with the distance, by slopes that
    differ between heads (Press et al. 2022); relative_bias: learned biases by distance (T5); relative_vectors: learned
    vectors by distance, added to keys and values (Shaw et al. 2018)."""
    decoder_position_kind: PositionKind | None
    position_layout: Annotated[Layout, _each("positions", "layout", "sinusoidal", "rotary")]
    position_frequency: Annotated[
        Literal["standard", "inclusive", "doubled"], _each("positions", "frequency", "sinusoidal")
    ]
    position_index: Annotated[Index, _each("positions", "index", *TABLES, "rotary")]
    position_offset: Annotated[int, _each("positions", "offset", *TABLES, "rotary")]
    position_factor: Annotated[float, _each("positions", "factor", *TABLES)]
    learned_position_scale: Annotated[bool, _each("positions", "learned_scale", *TABLES)]
    trains_pad_position: Annotated[bool, _each("positions", "trains_pad", "learned")]
    rotary_base: Annotated[float, _each("positions", "base", "rotary")]
    rotary_dim: Annotated[int | None, _each("positions", "dim", "rotary")]
    rotary_cross_attention: Annotated[bool, At(("decoder.positions",), "cross_attention", ("rotary",))]
    relative_buckets: Annotated[int, _each("positions", "buckets", "relative_bias")]
    relative_max_distance: Annotated[int, _each("positions", "max_distance", "relative_bias", "relative_vectors")]
    relative_bias_factor: Annotated[float, _each("positions", "factor", "relative_bias")]
    decoder_relative_bias_factor: float | None
    relative_bias_per_layer: Annotated[bool, _each("positions", "per_layer", "relative_bias", "relative_vectors")]
    relative_value_vectors: Annotated[bool, _each("positions", "values", "relative_vectors")]

    norm_kind: Literal["layer_norm", "rms_norm", "none"]
    """rms_norm subtracts no mean and has no bias."""
    norm_placement: Annotated[NormPlacement, _each("", "norm_placement")]
    decoder_norm_placement: NormPlacement | None
    norm_eps: Annotated[float, _each("norm", "eps")]
    norm_eps_outside: Annotated[bool, _each("norm", "eps_outside")]
    norm_unbiased: Annotated[bool, _each("norm", "unbiased")]
    norm_scale: Annotated[bool, _each("norm", "scale")]
    norm_scale_offset: Annotated[float, _each("norm", "scale_offset")]
    norm_bias: Annotated[bool, _each("norm", "bias")]
    output_norm: Literal["none", "self_attention", "attention", "all"]
    """Norm the outputs of these sublayers before they are added to the residual stream: of self-attention alone or of
    both attentions (NormFormer, Shleifer et al. 2021), or of all sublayers, which with norm_placement="pre" is the
    sandwich norm of CogView (Ding et al. 2021) and Gemma 2."""
    final_norm: Annotated[bool, _each("", "final_norm")]
    decoder_final_norm: bool | None
    share_norms: Annotated[bool, _each("", "share_norms")]

    parallel_residual: Annotated[bool, _each("residual", "parallel")]
    residual_factor: Annotated[float, _each("residual", "stream_factor")]
    decoder_residual_factor: float | None
    sublayer_factor: Annotated[float, _each("residual", "output_factor")]
    decoder_sublayer_factor: float | None
    learned_residual_scale: Annotated[Literal["none", "feed_forward", "all"], _each("residual", "stream_scale")]
    learned_sublayer_scale: Annotated[Literal["none", "channel", "scalar"], _each("residual", "output_scale")]
    sublayer_scale_init: Annotated[float | None, _each("residual", "output_scale_init")]

    attention_scale: Annotated[float | None, _attentions("scale")]
    attention_logits_cap: Annotated[float | None, _attentions("logits_cap")]
    attention_bias: Annotated[bool, _attentions("bias")]
    attention_key_bias: Annotated[bool | None, _attentions("key_bias")]
    attention_output: Annotated[bool, _attentions("output")]
    attention_output_bias: Annotated[bool, _attentions("output_bias")]
    query_key_norm: Annotated[bool, _attentions("query_key_norm")]
    head_scale: Annotated[bool, _attentions("head_scale")]
    context_norm: Literal["none", "self_attention", "attention"]
    """Norm the merged contexts of all heads before they are projected, in self-attention alone or in both attentions
    (Sub-LN, Wang et al. 2022)."""
    masked_value: Annotated[float | None, _attentions("masked_value")]

    feed_forward: bool
    """Whether layers have a feed-forward sublayer."""
    activation: Annotated[Activation, _each("feed_forward", "activation")]
    decoder_activation: Activation | None
    activation_slope: Annotated[float, _each("feed_forward", "slope")]
    feed_forward_gated: Annotated[bool, _each("feed_forward", "gated")]
    feed_forward_hidden_norm: Annotated[bool, _each("feed_forward", "hidden_norm")]
    feed_forward_bias: Annotated[bool, _each("feed_forward", "bias")]
    feed_forward_output_bias: Annotated[bool | None, _each("feed_forward", "output_bias")]

    encoder_padding: Annotated[PaddingCover, At(("encoder.self_attention",), "padding")]
    """Padding that the encoder's self-attention hides: keys, queries, both or none."""
    decoder_padding: Annotated[PaddingCover, At(("decoder.self_attention",), "padding")]
    """Padding that the decoder's self-attention hides."""
    cross_padding: Annotated[PaddingCover, _cross("padding")]
    """Padding that cross-attention hides. keys: the source's pads; queries: the target's."""
    decoding_decoder_padding: Annotated[PaddingCover | None, At(("decoder.self_attention",), "decoding_padding")]
    decoding_cross_padding: Annotated[PaddingCover | None, _cross("decoding_padding")]
    decoder_causal: Annotated[bool, At(("decoder.self_attention",), "causal")]
    window: Annotated[int | None, _each("self_attention", "window")]
    full_every: Annotated[int | None, _each("self_attention", "full_every")]

    dropout_rate: Annotated[float, _each("dropout", "rate")]
    embedding_dropout_rate: Annotated[float | None, _each("dropout", "embedding")]
    attention_dropout_rate: Annotated[float | None, _each("dropout", "attention")]
    feed_forward_dropout_rate: Annotated[float | None, _each("dropout", "feed_forward")]
    output_dropout_rate: Annotated[float, _each("dropout", "output")]

    compute_dtype: Annotated[Literal["float32", "bfloat16", "float64"] | None, At(("compute",), "dtype")]
    attention_path: Annotated[AttentionPath, At(("compute",), "attention")]
    layer_loop: Annotated[Literal["scan", "unrolled"], At(("compute",), "layers")]
    remat: Annotated[Literal["none", "all_but_products", "all"], At(("compute",), "remat")]


SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")
NORMED = {"none": 0, "self_attention": 1, "attention": 2, "all": 3}
"""The values of output_norm and context_norm → the number of sublayers, from the first, that have the norm."""
STRUCTURE = (
    "norm_kind", "position_kind", "decoder_position_kind", "feed_forward", "output_norm", "context_norm",
    "scale_embedding", "embedding_factor", "decoder_embedding_factor",
)  # fmt: skip
"""Names that choose a part, or stand for several fields: `_structure` writes them."""


@functools.cache
def short_names() -> Mapping[str, Any]:
    """Returns every short name with the type of its values."""
    own = typing.get_type_hints(ShortNames)
    return {name: own[name] for name in ShortNames.__annotations__}


@functools.cache
def option_at(name: str) -> At | None:
    """Locates the option of a short name; None for names that choose a part, and for fields of the config."""
    if name in STRUCTURE or name not in short_names():
        return None
    hints = typing.get_type_hints(ShortNames, include_extras=True)
    if typing.get_origin(hints[name]) is Annotated:
        at: At = hints[name].__metadata__[0]
        return at
    general = option_at(name.removeprefix("decoder_"))
    assert general is not None
    return dataclasses.replace(general, places=tuple(one for one in general.places if one.startswith("decoder")))


def is_of_decoder(name: str) -> bool:
    """Returns whether a short name stands for the decoder's places of another one."""
    return name.removeprefix("decoder_") in short_names() and name != name.removeprefix("decoder_")


def part_at(parts: Any, place: str) -> Any:
    """Returns the part of a config at a path such as encoder.norm; None if there is none."""
    for name in place.split("."):
        parts = parts.get(name) if isinstance(parts, dict) else getattr(parts, name, None)
    return parts


def holders(parts: Any, at: At) -> Iterator[tuple[str, Any]]:
    """Yields the paths of the parts that have an option, and the parts."""
    for place in at.places:
        part = part_at(parts, place)
        has = dataclasses.is_dataclass(part) and any(field.name == at.field for field in dataclasses.fields(part))
        if has and (not at.kinds or getattr(part, "kind", None) in at.kinds):
            yield place, part


def named_values(config: ModelParts, name: str, stack: str = "") -> list[tuple[str, Any]]:
    """Returns the values of an option in all its places, or in those of a stack, each with its name for messages."""
    values = _named_places(config, name)
    return list(dict.fromkeys(named for path, named in values.items() if path.startswith(stack)))


def named_value(config: ModelParts, place: str, field: str) -> tuple[str, Any]:
    """Returns the name for messages, and the value, of an option of one part.

    Args:
      place: the part's path, such as encoder.norm.
    """
    path = f"{place}.{field}"
    for name in short_names():
        at = option_at(name)
        if at is not None and at.field == field and place in at.places and not is_of_decoder(name):
            values = _named_places(config, name)
            if path in values:
                return values[path]
    if field in ("output_norm", "context_norm"):
        with contextlib.suppress(ConfigError):
            return field, read(config, field)
    return path, getattr(part_at(config, place), field)


def _named_places(config: ModelParts, name: str) -> dict[str, tuple[str, Any]]:
    """Returns the path of each place of an option → its name for messages, and its value.

    The name is the short name if all places agree, or all places of each stack, with `decoder_` in the decoder;
    otherwise the path.
    """
    at = option_at(name)
    assert at is not None
    values = {f"{place}.{at.field}": getattr(part, at.field) for place, part in holders(config, at)}
    sides = [[value for path, value in values.items() if path.startswith(one)] for one in STACKS]
    if _are_one([*values.values()]):
        return {path: (name, value) for path, value in values.items()}
    if f"decoder_{name}" in short_names() and all(map(_are_one, sides)):
        labels = {path: f"decoder_{name}" if path.startswith("decoder") else name for path in values}
        return {path: (labels[path], value) for path, value in values.items()}
    return {path: (path, value) for path, value in values.items()}


def _are_one(values: list[Any]) -> bool:
    return all(value is values[0] or value == values[0] for value in values)


def is_used(config: ModelParts, name: str) -> bool:
    """Returns whether any part of the config has the option of a short name."""
    at = option_at(name) if name in short_names() else None
    return at is None or any(True for _ in holders(config, at))


# --- reading


def option_names() -> tuple[str, ...]:
    """Returns the names of all options with one level: the short names, and the config's own fields."""
    return (*short_names(), "share_embeddings", "initializer", "stem")


def flat(config: ModelParts) -> dict[str, Any]:
    """Returns the config with one level: `option_names` → values. `TransformerConfig.from_flat` reads it."""
    return {name: getattr(config, name) for name in option_names()}


def read(config: ModelParts, name: str) -> Any:
    """Returns the value of a short name.

    Raises:
      ConfigError: the places that it stands for have several values.
    """
    if name in STRUCTURE:
        return _read_structure(config, name)
    at = option_at(name)
    assert at is not None
    values = [(place, getattr(part, at.field)) for place, part in holders(config, at)]
    if is_of_decoder(name):
        if not values:
            return None
        general = read(config, name.removeprefix("decoder_"))
        own = _one_value(name, values)
        return None if own == general else own
    if f"decoder_{name}" in short_names() and values:
        return values[0][1]
    return _one_value(name, values) if values else unused_value(config, name, at)


def _one_value(name: str, values: list[tuple[str, Any]]) -> Any:
    first = values[0][1]
    if any(value is not first and value != first for _, value in values):
        received = ", ".join(f"{place}={value!r}" for place, value in values)
        raise ConfigError(f"{name} must be one value in all places; received {received}")
    return first


def unused_value(parts: Any, name: str, at: At) -> Any:
    """Returns the value of an option that no part has: the only one that may be set."""
    for place in at.places:
        part = part_at(parts, place)
        if part is not None and hasattr(part, at.field) and not at.kinds:
            return getattr(part, at.field)  # fixed for this kind of part
    return next(field.default for field in dataclasses.fields(at.classes()[0]) if field.name == at.field)


def _read_structure(config: ModelParts, name: str) -> Any:
    encoder, decoder = config.encoder, config.decoder
    if name == "norm_kind":
        kinds = [(stack, getattr(part_at(config, stack).norm, "kind", "none")) for stack in STACKS]
        return _one_value(name, kinds)
    if name in ("position_kind", "decoder_position_kind"):
        general, own = (getattr(stack.positions, "kind", "none") for stack in (encoder, decoder))
        return general if name == "position_kind" else None if own == general else own
    if name == "feed_forward":
        return _one_value(name, [(stack, part_at(config, stack).feed_forward is not None) for stack in STACKS])
    if name in ("output_norm", "context_norm"):
        return _read_normed(config, name)
    if name == "scale_embedding":
        return encoder.embedding_scale == "sqrt_d_model"
    if name == "embedding_factor":
        return None if encoder.embedding_scale in ("sqrt_d_model", 1.0) else encoder.embedding_scale
    return None if decoder.embedding_scale == encoder.embedding_scale else decoder.embedding_factor


def _read_normed(config: ModelParts, field: str) -> str:
    flags = {
        (stack, name): getattr(part, field)
        for stack in STACKS
        for name in SUBLAYERS
        if hasattr(part := getattr(part_at(config, stack), name), field)
    }
    for choice, count in NORMED.items():
        if all(has == (name in SUBLAYERS[:count]) for (_, name), has in flags.items()):
            return choice
    received = ", ".join(f"{stack}.{name}={has}" for (stack, name), has in flags.items())
    raise ConfigError(f"{field} must be one of {', '.join(NORMED)} in both stacks; received {received}")


# --- writing


def with_short_names(parts: Mapping[str, Any], values: Mapping[str, Any], *, ignores_unused: bool) -> dict[str, Any]:
    """Returns a config's parts with the options that short names set.

    Args:
      parts: field of a TransformerConfig → its value.
      values: short name → its value.
      ignores_unused: whether an option that no part has may have any value, as in files with one level.

    Raises:
      ConfigError: an option that no part has.
    """
    problems = []
    made = _structure(dict(parts), values)
    for name, value in sorted(values.items(), key=lambda item: is_of_decoder(item[0])):
        at = option_at(name)
        if at is None:
            continue
        own = list(holders(made, at))
        if not own:
            fixed = None if is_of_decoder(name) else unused_value(made, name, at)
            if value != fixed and not ignores_unused:
                problems.append(f"{name} must be {_shown(fixed)} {_condition(name, at)}; received {value!r}")
        elif value is None and is_of_decoder(name):
            value = _encoder_value(made, name)
        for place, _ in own:
            made = _with_field(made, (*place.split("."), at.field), value)
    if problems:
        raise ConfigError("; ".join(problems))
    return made


def _encoder_value(parts: dict[str, Any], name: str) -> Any:
    """Returns the encoder's value of an option, which a decoder without a value of its own takes; the decoder's own
    where the encoder doesn't have the option."""
    at = option_at(name.removeprefix("decoder_"))
    assert at is not None
    _, part = next(holders(parts, at))
    return getattr(part, at.field)


def _condition(name: str, at: At) -> str:
    """Describes which part would have the option."""
    if at.kinds:
        which = "decoder_position_kind" if all(one.startswith("decoder") for one in at.places) else "position_kind"
        return f"without {which}=" + " or ".join(map(repr, at.kinds))
    if at.places[0].endswith("feed_forward"):
        return "without feed_forward=True"
    return "without " + ("norms" if name != "norm_bias" else "norm_kind='layer_norm'")


def _shown(value: Any) -> str:
    return {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))


def with_values(config: Any, values: Mapping[str, Any]) -> Any:
    """Returns a config with other values at the paths of options, such as encoder.norm.eps."""
    parts = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for path, value in values.items():
        parts = _with_field(parts, tuple(path.split(".")), value)
    return dataclasses.replace(config, **parts)


def _with_field(part: Any, path: Path, value: Any) -> Any:
    """Returns a part, or a dict of parts, with another value at a path."""
    name, rest = path[0], path[1:]
    if isinstance(part, dict):
        return part | {name: _with_field(part[name], rest, value) if rest else value}
    return dataclasses.replace(part, **{name: _with_field(getattr(part, name), rest, value) if rest else value})


def _structure(parts: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts as the names in `STRUCTURE` choose them, each with the options that both kinds have."""
    stacks = {name: parts[name] for name in STACKS}
    if (kind := values.get("norm_kind")) is not None:
        stacks = {
            name: dataclasses.replace(stack, norm=_turned(stack.norm, NORMS.get(kind)))
            for name, stack in stacks.items()
        }
    stacks = _with_positions(stacks, values)
    if (has := values.get("feed_forward")) is not None:
        stacks = {
            name: dataclasses.replace(stack, feed_forward=(stack.feed_forward or FeedForward()) if has else None)
            for name, stack in stacks.items()
        }
    for field in ("output_norm", "context_norm"):
        if field in values:
            normed = SUBLAYERS[: NORMED[values[field]]]
            stacks = {name: _with_flags(stack, field, normed) for name, stack in stacks.items()}
    return parts | _with_factors(stacks, values)


def _with_flags(stack: Any, field: str, normed: tuple[str, ...]) -> Any:
    own = {name: part for name in SUBLAYERS if hasattr(part := getattr(stack, name), field)}
    return dataclasses.replace(
        stack, **{name: dataclasses.replace(part, **{field: name in normed}) for name, part in own.items()}
    )


def _with_positions(stacks: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    if "position_kind" in values:
        kinds = dict.fromkeys(STACKS, values["position_kind"])
    if "decoder_position_kind" in values:
        own = values["decoder_position_kind"]
        kinds["decoder"] = own or kinds.get("encoder") or getattr(stacks["encoder"].positions, "kind", "none")
    for name, kind in kinds.items():
        source = stacks[name].positions or stacks["encoder"].positions
        stacks = stacks | {name: dataclasses.replace(stacks[name], positions=_turned(source, KINDS.get(kind)))}
    return stacks


def _turned(part: Any, kind: type | None) -> Any:
    """Returns a part of another kind, with the options that both kinds have; None for no kind."""
    if kind is None or isinstance(part, kind):
        return part if kind is not None else None
    if part is None:
        return kind()
    common = {field.name for field in dataclasses.fields(kind) if field.init} & {
        field.name for field in dataclasses.fields(part) if field.init
    }
    if RelativeBias in (kind, type(part)):
        common.discard("factor")  # of biases and of tables: two numbers of one name
    kept = {name: getattr(part, name) for name in common}
    return kind(**kept)


def _with_factors(stacks: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the stacks with the factors of their embeddings."""
    encoder, decoder = stacks["encoder"], stacks["decoder"]
    scale: Any = None
    if "scale_embedding" in values or "embedding_factor" in values:
        root = "sqrt_d_model" if values.get("scale_embedding", encoder.embedding_scale == "sqrt_d_model") else 1.0
        scale = root if values.get("embedding_factor") is None else values["embedding_factor"]
        encoder, decoder = (dataclasses.replace(stack, embedding_scale=scale) for stack in (encoder, decoder))
    if "decoder_embedding_factor" in values:
        own = values["decoder_embedding_factor"]
        decoder = dataclasses.replace(decoder, embedding_scale=encoder.embedding_scale if own is None else own)
    return {"encoder": encoder, "decoder": decoder}


class ModelOptions(TypedDict, total=False):
    """The parts and short names that `TransformerConfig` takes, for type checkers."""

    source: Tokens
    target: Tokens
    encoder: Stack
    decoder: Stack
    head: Head
    share_embeddings: bool
    initializer: Literal["xavier_uniform", "torch", "kaiming_uniform", "fairseq"]
    compute: Compute
    stem: Stem | None

    source_vocab_size: int
    target_vocab_size: int
    d_model: int
    num_heads: int
    num_kv_heads: int | None
    head_dim: int | None
    value_dim: int | None
    d_ff: int
    num_encoder_layers: int
    num_decoder_layers: int
    share_layers: bool
    max_length: int
    decoder_num_heads: int | None
    decoder_num_kv_heads: int | None
    decoder_head_dim: int | None
    decoder_value_dim: int | None
    decoder_d_ff: int | None
    decoder_max_length: int | None
    source_pad_id: int
    target_pad_id: int
    decoder_padding_id: int | None
    tie_head: bool
    scale_embedding: bool
    embedding_factor: float | None
    decoder_embedding_factor: float | None
    trains_pad_embedding: bool
    encoder_embedding_norm: EmbeddingNorm
    decoder_embedding_norm: EmbeddingNorm
    head_transform: Activation | None
    scale_head: bool
    logits_factor: float
    logits_cap: float | None
    head_bias: Literal["parameter", "buffer", "none"]
    token_types: int
    position_kind: PositionKind
    decoder_position_kind: PositionKind | None
    position_layout: Layout
    position_frequency: Literal["standard", "inclusive", "doubled"]
    position_index: Index
    position_offset: int
    position_factor: float
    learned_position_scale: bool
    trains_pad_position: bool
    rotary_base: float
    rotary_dim: int | None
    rotary_cross_attention: bool
    relative_buckets: int
    relative_max_distance: int
    relative_bias_factor: float
    decoder_relative_bias_factor: float | None
    relative_bias_per_layer: bool
    relative_value_vectors: bool
    norm_kind: Literal["layer_norm", "rms_norm", "none"]
    norm_placement: NormPlacement
    decoder_norm_placement: NormPlacement | None
    norm_eps: float
    norm_eps_outside: bool
    norm_unbiased: bool
    norm_scale: bool
    norm_scale_offset: float
    norm_bias: bool
    output_norm: Literal["none", "self_attention", "attention", "all"]
    final_norm: bool
    decoder_final_norm: bool | None
    share_norms: bool
    parallel_residual: bool
    residual_factor: float
    decoder_residual_factor: float | None
    sublayer_factor: float
    decoder_sublayer_factor: float | None
    learned_residual_scale: Literal["none", "feed_forward", "all"]
    learned_sublayer_scale: Literal["none", "channel", "scalar"]
    sublayer_scale_init: float | None
    attention_scale: float | None
    attention_logits_cap: float | None
    attention_bias: bool
    attention_key_bias: bool | None
    attention_output: bool
    attention_output_bias: bool
    query_key_norm: bool
    head_scale: bool
    context_norm: Literal["none", "self_attention", "attention"]
    masked_value: float | None
    feed_forward: bool
    activation: Activation
    decoder_activation: Activation | None
    activation_slope: float
    feed_forward_gated: bool
    feed_forward_hidden_norm: bool
    feed_forward_bias: bool
    feed_forward_output_bias: bool | None
    encoder_padding: PaddingCover
    decoder_padding: PaddingCover
    cross_padding: PaddingCover
    decoding_decoder_padding: PaddingCover | None
    decoding_cross_padding: PaddingCover | None
    decoder_causal: bool
    window: int | None
    full_every: int | None
    dropout_rate: float
    embedding_dropout_rate: float | None
    attention_dropout_rate: float | None
    feed_forward_dropout_rate: float | None
    output_dropout_rate: float
    compute_dtype: Literal["float32", "bfloat16", "float64"] | None
    attention_path: AttentionPath
    layer_loop: Literal["scan", "unrolled"]
    remat: Literal["none", "all_but_products", "all"]
