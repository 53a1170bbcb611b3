"""Faults of the attention's logits and weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.parity.faults.projections import projected_by
from jax_transformer.parity.faults.replay import Replay, Variant, configured
from jax_transformer.parity.faults.rounding import LOWEST
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, place

if TYPE_CHECKING:
    from jax_transformer.config.specs import Attention


PARTS = ("query", "key", "value")
CAPS = (20.0, 30.0, 50.0)
"""Caps of published models: Gemma 2 has 50 for attention and 30 for its head."""
FILLS = (0.0, -1e4, -1e9, -1e20, -1e30, *LOWEST.values(), float(np.finfo(np.float64).min), -math.inf)


def attention() -> Iterator[Variant]:
    logits: tuple[Kind, ...] = ("attention_logits",)
    yield configured("scale missing", logits, scale=1.0)
    yield Variant("scaled by √d_model", logits, lambda replay: _scaled_by(replay, replay.stack.d_model**-0.5))
    for name, power in (("√head_dim", 0.5), ("head_dim", 1.0)):
        yield Variant(f"scaled by {name}", logits, partial(_scaled_by_width, power=power))
    yield Variant("scaled by √value_dim", logits, _scaled_by_width_of_values)
    yield configured("cap of the logits missing", logits, logits_cap=None)
    for cap in CAPS:
        yield configured(f"logits capped at {cap:g}", logits, logits_cap=cap)
    yield Variant("logits capped after bias and mask", logits, _capped_late)
    yield Variant("mask not applied", logits, lambda replay: _added(replay, 0.0))
    for value in FILLS:
        yield Variant(f"masked logits are {value:g}", logits, partial(_filled, value=value))
        if value:
            yield Variant(f"{value:g} added to masked logits", logits, partial(_added, value=value, is_other=True))
    yield Variant("masked value added instead of set", logits, lambda replay: _added(replay, _fill(replay)))
    for parts in permutations(PARTS):
        if parts[0] != "query" and parts[1] != "key":
            order = ", ".join(parts)
            yield Variant(f"fused kernel read in the order {order}", logits, partial(_projected_by_parts, parts=parts))
    weights: tuple[Kind, ...] = ("attention_weights",)
    for axis, name in ((-2, "queries"), (1, "heads"), (0, "batch")):
        yield Variant(f"softmax over the {name}", weights, partial(_softmax_over, axis=axis))
    yield Variant("zero weights in fully masked rows", weights, _zero_rows)


def _scaled_by(replay: Replay, scale: float) -> np.ndarray:
    """Scales the logits otherwise. Raises LookupError if it is their own scale."""
    if math.isclose(scale, formulas.attention_scale(replay.parts["spec"], replay.inputs["query"])):
        raise LookupError("as it is")
    return replay.under(scale=scale)


def _scaled_by_width(replay: Replay, power: float) -> np.ndarray:
    return _scaled_by(replay, replay.inputs["query"].shape[-1] ** -power)


def _scaled_by_width_of_values(replay: Replay) -> np.ndarray:
    shape = replay.parts["spec"].shape(replay.stack.d_model)
    if shape.value_dim == shape.head_dim:
        raise LookupError("the width of keys")
    return replay.under(scale=shape.value_dim**-0.5)


def _capped_late(replay: Replay) -> np.ndarray:
    cap = replay.parts["spec"].logits_cap
    if cap is None:
        raise LookupError("no cap")
    return formulas.capped(replay.under(logits_cap=None), cap)


def _fill(replay: Replay) -> float:
    return formulas.masked_value(replay.parts["spec"])


def _filled(replay: Replay, value: float) -> np.ndarray:
    if value == _fill(replay):
        raise LookupError("as it is")
    return replay.under(masked_value=value)


def _added(replay: Replay, value: float, is_other: bool = False) -> np.ndarray:
    """Adds a value to masked logits instead of replacing them.

    Args:
      is_other: raises LookupError if it is their own fill value.
    """
    if is_other and value == _fill(replay):
        raise LookupError("the fill value")
    return replay.without_mask + np.where(replay.inputs["mask"], 0.0, value)


def _projected_by_parts(replay: Replay, parts: tuple[str, ...]) -> np.ndarray:
    """Projects query and key with the kernels of other parts, like programs that split a fused projection in another
    order."""
    if place(replay.node.name).path[0] != "self_attention":
        raise LookupError("not fused")
    return replay.compute({own: projected_by(replay, own, part) for own, part in zip(PARTS[:2], parts, strict=False)})


def _softmax_over(replay: Replay, axis: int) -> np.ndarray:
    turned = np.moveaxis(replay.inputs["logits"], axis, -1)
    return np.moveaxis(formulas.attention_weights(turned), -1, axis)


def _zero_rows(replay: Replay) -> np.ndarray:
    attention: Attention = getattr(replay.stack, place(replay.node.name).path[0])
    is_masked = replay.inputs["logits"] <= formulas.masked_value(attention)
    return np.where(is_masked.all(axis=-1, keepdims=True), 0.0, replay.compute())
