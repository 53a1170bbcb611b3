"""The catalogue of faults: for each kind of node, other ways to compute it that programs are known to have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from itertools import combinations, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jax_transformer.parity.truth import formulas
from jax_transformer.parity.truth.graph import Kind, Node, place
from jax_transformer.parity.truth.replay import parameter

if TYPE_CHECKING:
    from jax_transformer.config import TransformerConfig

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Replay:
    """A node about to be computed again: everything that a variant may change."""

    config: TransformerConfig
    node: Node
    inputs: Arrays
    """By argument of the node's formula."""
    parameters: Arrays
    captured: Arrays
    """Everything that was captured, by name."""
    params: Mapping[str, Any]
    """The model's."""

    def compute(self, inputs: Arrays | None = None, parameters: Arrays | None = None, config: Any = None) -> np.ndarray:
        """The node, with what is given in place of its own: some inputs, all parameters."""
        return self.node.compute(config or self.config, {**self.inputs, **(inputs or {})}, parameters or self.parameters)

    def under(self, **changes: Any) -> np.ndarray:
        """The node under a config of which some fields read otherwise."""
        return self.compute(config=changed(self.config, **changes))

    def beside(self, name: str) -> np.ndarray:
        """Another activation of the same layer, such as `feed_forward_norm`. Raises LookupError where there is none."""
        at = place(self.node.name)
        return self.captured[f"{at.stack}.layers.{at.layer}.{name}"]


def changed(config: TransformerConfig, **changes: Any) -> Any:
    """What reads as the config, but for some fields; not validated, as one formula reads few of them."""
    read = {field.name: getattr(config, field.name) for field in fields(config)}
    return SimpleNamespace(**read | {"encoder": config.encoder, "decoder": config.decoder} | changes)


class Variant(NamedTuple):
    """One fault."""

    name: str
    """As it is told: what the candidate does."""
    kinds: tuple[Kind, ...]
    compute: Callable[[Replay], np.ndarray]
    """The node's value with the fault. Raises LookupError, or ValueError, where it makes no sense."""


def catalogue(config: TransformerConfig) -> Iterator[Variant]:
    """Every fault that a model of this config can have, those of single choices first."""
    yield from _norms(config)
    yield from _residuals()
    yield from _embeddings(config)
    yield from _positions(config)
    yield from _projections()
    yield from _attention(config)
    yield from _masks(config)
    yield from _feed_forward(config)
    yield from _head(config)


def outcomes(replay: Replay) -> Iterator[tuple[str, np.ndarray]]:
    """Each variant of the node's kind that can be computed, by name, with its value."""
    with np.errstate(all="ignore"):
        own = replay.compute()
    for variant in catalogue(replay.config):
        if replay.node.kind in variant.kinds:
            try:
                with np.errstate(all="ignore"):
                    value = variant.compute(replay)
            except (ValueError, LookupError):
                continue
            if value.shape == own.shape or replay.node.kind == "mask":  # masks are as broad as what they hide
                yield variant.name, value


# --- norms (the formula reads what the config says; most faults are another config)


NORMS: tuple[Kind, ...] = ("norm", "residual_norm", "embedding")
EPSILONS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12)


def _configured(name: str, kinds: tuple[Kind, ...], **changes: Any) -> Variant:
    return Variant(name, kinds, partial(Replay.under, **changes))


def _norms(config: TransformerConfig) -> Iterator[Variant]:
    choices: dict[str, dict[str, Any]] = {
        f"ε {'inside' if config.norm_eps_outside else 'outside'} the root": {"norm_eps_outside": not config.norm_eps_outside},
        f"variance over D{'' if config.norm_unbiased else ' − 1'}": {"norm_unbiased": not config.norm_unbiased},
    }
    choices |= {f"ε = {eps:g}": {"norm_eps": eps} for eps in EPSILONS if eps != config.norm_eps}
    if config.norm_kind == "layer_norm":
        choices["RMS without centring"] = {"norm_kind": "rms_norm"}
    for name, changes in choices.items():
        yield _configured(f"norm: {name}", NORMS, **changes)
    for first, second in combinations(choices, 2):
        if choices[first].keys().isdisjoint(choices[second]):
            yield _configured(f"norm: {first}, and {second}", NORMS, **choices[first], **choices[second])
    yield Variant("norm: scale dropped", NORMS, partial(_without, role="scale"))
    yield Variant("norm: bias dropped", NORMS, partial(_without, role="bias"))
    yield Variant("norm: scale and bias swapped", NORMS, partial(_exchanged, roles={"scale": "bias", "bias": "scale"}))
    yield Variant("norm missing", ("norm",), lambda replay: replay.inputs["x"])
    yield Variant("norm twice", ("norm",), lambda replay: replay.compute({"x": replay.compute()}))


def _without(replay: Replay, role: str) -> np.ndarray:
    if role not in replay.parameters:
        raise LookupError(role)
    return replay.compute(parameters={name: array for name, array in replay.parameters.items() if name != role})


def _exchanged(replay: Replay, roles: Mapping[str, str]) -> np.ndarray:
    return replay.compute(parameters={role: replay.parameters[roles[role]] for role in replay.parameters})


# --- the block


def _residuals() -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("residual", "residual_norm")
    yield Variant("residual dropped", kinds, lambda replay: replay.compute({"x": 0.0 * replay.inputs["x"]}))
    yield Variant("residual doubled", kinds, lambda replay: replay.compute({"x": 2.0 * replay.inputs["x"]}))
    yield Variant("sublayer's output dropped", kinds, lambda replay: replay.compute({"y": 0.0 * replay.inputs["y"]}))
    yield Variant("residual taken after the norm", ("residual",), lambda replay: replay.compute({"x": replay.beside(_norm_of(replay))}))
    yield Variant("norm missing", ("residual_norm",), lambda replay: replay.inputs["x"] + replay.inputs["y"])
    yield Variant("norm before the residual is added", ("residual_norm",), _norm_then_add)


def _norm_then_add(replay: Replay) -> np.ndarray:
    return replay.inputs["x"] + formulas.norm(replay.config, replay.inputs["y"], **replay.parameters)


def _norm_of(replay: Replay) -> str:
    """The norm whose output the sublayer of a residual read."""
    rest = place(replay.node.name).path[0]
    return "feed_forward_norm" if rest == "output" else rest.replace("_residual", "_norm")


# --- embeddings and positions


def _embeddings(config: TransformerConfig) -> Iterator[Variant]:
    tokens: tuple[Kind, ...] = ("token_embedding",)
    yield _configured(f"√d_model {'missing' if config.scale_embedding else 'applied'}", tokens, scale_embedding=not config.scale_embedding)
    yield Variant("scaled by d_model", tokens, lambda replay: replay.compute() * math.sqrt(config.d_model))
    yield Variant("pad row zero", tokens, _pads_zeroed)
    yield Variant("tables of the two sides swapped", tokens, _other_side)
    sums: tuple[Kind, ...] = ("embedding",)
    yield Variant("√d_model applied after positions", sums, lambda replay: replay.compute() * math.sqrt(config.d_model))
    for times, name in ((0.0, "positions missing"), (2.0, "positions added twice")):
        yield Variant(name, sums, partial(_times, argument="positions", factor=times))


def _times(replay: Replay, argument: str, factor: float) -> np.ndarray:
    return replay.compute({argument: factor * replay.inputs[argument]})


def _pads_zeroed(replay: Replay) -> np.ndarray:
    pad_id = replay.config.source_pad_id if place(replay.node.name).stack == "encoder" else replay.config.target_pad_id
    return np.where((replay.inputs["ids"] == pad_id)[..., None], 0.0, replay.compute())


def _other_side(replay: Replay) -> np.ndarray:
    (path,) = replay.node.parameters.values()
    swapped = {"source_embedding/embedding": "target_embedding/embedding", "target_embedding/embedding": "source_embedding/embedding"}
    return replay.compute(parameters={"embedding": parameter(replay.params, swapped[path])})


LAYOUTS = {"halves": "sin and cos in halves", "interleaved": "sin and cos interleaved"}
FREQUENCIES = {"standard": "exponents 2i / D", "inclusive": "exponents i / (D/2 − 1)", "doubled": "exponents doubled"}
INDICES = {"column": "column", "batch_row": "batch row", "non_pad_count": "count of real tokens"}


def _positions(config: TransformerConfig) -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("positions",)
    if config.position_kind == "sinusoidal":
        for layout, frequency in product(LAYOUTS, FREQUENCIES):
            names = [LAYOUTS[layout]] if layout != config.position_layout else []
            names += [FREQUENCIES[frequency]] if frequency != config.position_frequency else []
            if names:
                changes = {"position_layout": layout, "position_frequency": frequency}
                yield Variant(f"positions: {', and '.join(names)}", kinds, partial(_of_table, changes=changes))
        yield Variant("positions: computed in float32", kinds, partial(_of_table, changes={}, dtype=np.float32))
    for index, name in INDICES.items():
        if index != config.position_index:
            yield Variant(f"positions: indexed by {name}", kinds, partial(_indexed, position_index=index))
    for offset in (-2, -1, 1, 2):
        name = f"positions: {abs(offset)} too {'far' if offset > 0 else 'near'}"
        yield Variant(name, kinds, partial(_indexed, position_offset=config.position_offset + offset))


def _indexed(replay: Replay, **changes: Any) -> np.ndarray:
    return np.broadcast_to(replay.under(**changes), replay.compute().shape)


def _of_table(replay: Replay, changes: Mapping[str, Any], dtype: type[np.floating] = np.float64) -> np.ndarray:
    table = formulas.sinusoid_table(changed(replay.config, **changes), len(replay.parameters["table"]))
    return replay.compute(parameters={"table": table.astype(dtype).astype(np.float64)})


# --- projections and heads


def _projections() -> Iterator[Variant]:
    linear: tuple[Kind, ...] = ("projection", "feed_forward_hidden", "logits")
    yield Variant("bias missing", linear, partial(_without, role="bias"))
    yield Variant("kernel transposed", linear, _transposed)
    for name in ("query", "key", "value"):
        yield Variant(f"kernel of the {name}", ("projection",), partial(_of_sibling, name=name))
    yield Variant("heads split in the other order", ("projection",), _split_otherwise)
    yield Variant("heads merged without transposing back", ("projection",), _merged_otherwise)
    yield Variant("reads its input normed", ("projection", "feed_forward_hidden"), _read_normed)
    yield Variant("reads its input before the norm", ("projection", "feed_forward_hidden"), _read_unnormed)
    yield Variant("keys and values of the decoder", ("projection",), _of_the_decoder)
    yield Variant("encoder's output before its final norm", ("projection",), _before_final_norm)


def _transposed(replay: Replay) -> np.ndarray:
    kernel = replay.parameters["kernel"]
    reads_heads = kernel.ndim == 3 and place(replay.node.name).path[-1] == "output"
    matrix = kernel.reshape(-1, kernel.shape[-1]) if reads_heads else kernel.reshape(len(kernel), -1)
    return replay.compute(parameters={**replay.parameters, "kernel": matrix.T.reshape(kernel.shape)})


def _of_sibling(replay: Replay, name: str) -> np.ndarray:
    own = place(replay.node.name).path[-1]
    if own not in ("query", "key", "value") or own == name:
        raise LookupError(name)
    paths = {role: path.replace(f"/{own}/", f"/{name}/") for role, path in replay.node.parameters.items()}
    return replay.compute(parameters={role: parameter(replay.params, path) for role, path in paths.items()})


def _split_otherwise(replay: Replay) -> np.ndarray:
    """[B, T, N, H] read as if the features were [H, N]."""
    y = replay.compute()
    batch, length, heads, width = y.shape
    return y.reshape(batch, length, width, heads).swapaxes(2, 3)


def _merged_otherwise(replay: Replay) -> np.ndarray:
    """The context [B, T, N, H] flattened as [B, N, T, H]."""
    x = replay.inputs["x"]
    if x.ndim != 4:
        raise LookupError("heads")
    return replay.compute({"x": x.swapaxes(1, 2).reshape(x.shape)})


def _read_normed(replay: Replay) -> np.ndarray:
    """As with the norm placed before, where it is placed after."""
    at = place(replay.node.name)
    norm = f"{at.path[0]}_norm"
    if replay.config.norm_placement == "pre":
        raise LookupError("normed already")
    roles = ("scale", "bias") if replay.config.norm_bias else ("scale",)
    parameters = {role: parameter(replay.params, f"{at.stack}/layers/{norm}/{role}[{at.layer}]") for role in roles}
    return replay.compute({"x": formulas.norm(replay.config, replay.inputs["x"], **parameters)})


def _read_unnormed(replay: Replay) -> np.ndarray:
    """As with the norm placed after, where it is placed before."""
    at = place(replay.node.name)
    if replay.node.inputs["x"] != f"{at.stack}.layers.{at.layer}.{at.path[0]}_norm":
        raise LookupError("not normed")
    if at.path[0] == "self_attention":
        before = f"{at.stack}.layers.{at.layer - 1}.output" if at.layer else f"{at.stack}.embedding"
    else:
        attends_to_source = at.stack == "decoder" and at.path[0] == "feed_forward"
        before = f"{at.stack}.layers.{at.layer}.{'cross' if attends_to_source else 'self'}_attention_residual"
    return replay.compute({"x": replay.captured[before]})


def _of_the_decoder(replay: Replay) -> np.ndarray:
    at = place(replay.node.name)
    if at.path[0] != "cross_attention" or at.path[-1] not in ("key", "value"):
        raise LookupError("no cross-attention")
    return replay.compute({"x": replay.beside("self_attention_residual")})


def _before_final_norm(replay: Replay) -> np.ndarray:
    if replay.node.inputs["x"] != "encoder.output" or not replay.config.final_norm:
        raise LookupError("no final norm")
    return replay.compute({"x": replay.captured[f"encoder.layers.{replay.config.encoder.num_layers - 1}.output"]})


# --- attention


FILLS = (-1e4, -1e9, -1e20, -1e30, float(np.finfo(np.float32).min), float(np.finfo(np.float64).min), -math.inf)


def _attention(config: TransformerConfig) -> Iterator[Variant]:
    logits: tuple[Kind, ...] = ("attention_logits",)
    yield _configured("scale missing", logits, attention_scale=1.0)
    yield _configured("scaled by √d_model", logits, attention_scale=1.0 / math.sqrt(config.d_model))
    for stack in (config.encoder, config.decoder):
        yield _configured("scaled by √head_dim", logits, attention_scale=1.0 / math.sqrt(stack.head_dim))
        yield _configured("scaled by head_dim", logits, attention_scale=1.0 / stack.head_dim)
    for value in FILLS:
        if value != formulas.masked_value(config):
            yield _configured(f"masked logits are {value:g}", logits, masked_value=value)
            yield Variant(f"{value:g} added to masked logits", logits, partial(_added, value=value))
    yield Variant("masked value added rather than put in place", logits, partial(_added, value=formulas.masked_value(config)))
    weights: tuple[Kind, ...] = ("attention_weights",)
    for axis, name in ((-2, "queries"), (1, "heads"), (0, "batch")):
        yield Variant(f"softmax over the {name}", weights, partial(_softmax_over, axis=axis))
    yield Variant("weights zero where all is masked", weights, _zero_rows)


def _added(replay: Replay, value: float) -> np.ndarray:
    """The mask as a summand."""
    inputs = {argument: array for argument, array in replay.inputs.items() if argument != "mask"}
    return replay.node.compute(replay.config, inputs, {}) + np.where(replay.inputs["mask"], 0.0, value)


def _softmax_over(replay: Replay, axis: int) -> np.ndarray:
    turned = np.moveaxis(replay.inputs["logits"], axis, -1)
    return np.moveaxis(formulas.attention_weights(replay.config, turned), -1, axis)


def _zero_rows(replay: Replay) -> np.ndarray:
    is_masked = replay.inputs["logits"] <= formulas.masked_value(replay.config)
    return np.where(is_masked.all(axis=-1, keepdims=True), 0.0, replay.compute())


# --- masks


COVERS = {
    "keys": "pads masked as keys", "queries": "pads masked as queries", "both": "pads masked as keys and queries",
    "none": "padding not masked",
}  # fmt: skip
FIELDS = {"encoder_self": "encoder_padding", "decoder_self": "decoder_padding", "cross": "cross_padding"}


def _masks(config: TransformerConfig) -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("mask",)
    yield Variant("mask inverted", kinds, lambda replay: ~replay.compute())
    yield Variant("not causal", kinds, _not_causal)
    yield Variant("causal mask off by one: sees a token too many", kinds, partial(_shifted, by=1))
    yield Variant("causal mask off by one: doesn't see itself", kinds, partial(_shifted, by=-1))
    for cover, name in COVERS.items():
        yield Variant(name, kinds, partial(_covering, cover=cover))
        yield Variant(f"{name}, and not causal", kinds, partial(_not_causal, cover=cover))
        for pad_id, whose in ((config.target_pad_id, "target's"), (config.source_pad_id, "source's")):
            yield Variant(f"{name}, by the {whose} pad id", kinds, partial(_of_pad_id, cover=cover, pad_id=pad_id))
    yield Variant("cross-attention uses the target's padding", kinds, _targets_padding)


def _covering(replay: Replay, cover: str, **changes: Any) -> np.ndarray:
    field = FIELDS[place(replay.node.name).path[-1]]
    if not changes and getattr(replay.config, field) == cover:
        raise LookupError("as it is")
    return replay.under(**{field: cover}, **changes)


def _of_pad_id(replay: Replay, cover: str, pad_id: int) -> np.ndarray:
    own = replay.config.target_pad_id if replay.config.decoder_padding_id is None else replay.config.decoder_padding_id
    if place(replay.node.name).path[-1] != "decoder_self" or pad_id == own:
        raise LookupError("as it is")
    return replay.under(decoder_padding=cover, decoder_padding_id=pad_id)


def _not_causal(replay: Replay, cover: str | None = None) -> np.ndarray:
    if not _is_causal(replay):
        raise LookupError("not causal anyway")
    return _covering(replay, cover or replay.config.decoder_padding, decoder_causal=False)


def _shifted(replay: Replay, by: int) -> np.ndarray:
    if not _is_causal(replay):
        raise LookupError("not causal anyway")
    length = replay.inputs["decoder_input_ids"].shape[1]
    return replay.under(decoder_causal=False) & (np.arange(length) <= np.arange(length)[:, None] + by)


def _is_causal(replay: Replay) -> bool:
    return place(replay.node.name).path[-1] == "decoder_self" and replay.config.decoder_causal


def _targets_padding(replay: Replay) -> np.ndarray:
    is_real = replay.inputs["decoder_input_ids"] != replay.config.target_pad_id
    return formulas.padding_mask(replay.config.cross_padding, is_real, is_real)


# --- feed-forward and head


ACTIVATIONS = {"relu": "ReLU", "gelu": "exact GELU", "gelu_tanh": "tanh GELU", "silu": "SiLU", "none": "no activation"}


def _feed_forward(config: TransformerConfig) -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("feed_forward_hidden",)
    for activation, name in ACTIVATIONS.items():
        if activation != config.activation:
            yield _configured(name, kinds, activation=activation)
    swapped = {"kernel": "gate_kernel", "gate_kernel": "kernel", "bias": "gate_bias", "gate_bias": "bias"}
    yield Variant("gate and hidden layer swapped", kinds, partial(_exchanged, roles=swapped))


def _head(config: TransformerConfig) -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("logits",)
    yield _configured(f"head {'not ' if config.scale_head else ''}scaled by 1/√d_model", kinds, scale_head=not config.scale_head)
    for side in ("source", "target"):
        yield Variant(f"head tied to the {side} embedding", kinds, partial(_tied, path=f"{side}_embedding/embedding"))


def _tied(replay: Replay, path: str) -> np.ndarray:
    if path in replay.node.parameters.values():
        raise LookupError("tied to it anyway")
    bias = {role: array for role, array in replay.parameters.items() if role == "bias"}
    return formulas.tied_logits(replay.config, replay.inputs["x"], parameter(replay.params, path), **bias)
