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
    from jax_transformer.config.model import TransformerConfig


PARTS = ("query", "key", "value")
FILLS = (0.0, -1e4, -1e9, -1e20, -1e30, *LOWEST.values(), float(np.finfo(np.float64).min), -math.inf)


def attention(config: TransformerConfig) -> Iterator[Variant]:
    logits: tuple[Kind, ...] = ("attention_logits",)
    yield configured("scale missing", logits, attention_scale=1.0)
    yield configured("scaled by √d_model", logits, attention_scale=1.0 / math.sqrt(config.d_model))
    for name, power in (("√head_dim", 0.5), ("head_dim", 1.0)):
        yield Variant(f"scaled by {name}", logits, partial(_scaled_by_width, power=power))
    yield Variant("scaled by √value_dim", logits, _scaled_by_width_of_values)
    yield Variant("mask not applied", logits, partial(_added, value=0.0))
    for value in FILLS:
        if value != formulas.masked_value(config):
            yield configured(f"masked logits are {value:g}", logits, masked_value=value)
            if value:
                yield Variant(f"{value:g} added to masked logits", logits, partial(_added, value=value))
    yield Variant(
        "masked value added rather than put in place", logits, partial(_added, value=formulas.masked_value(config))
    )
    for parts in permutations(PARTS):
        if parts[0] != "query" and parts[1] != "key":
            order = ", ".join(parts)
            yield Variant(f"fused kernel read in the order {order}", logits, partial(_of_parts, parts=parts))
    weights: tuple[Kind, ...] = ("attention_weights",)
    for axis, name in ((-2, "queries"), (1, "heads"), (0, "batch")):
        yield Variant(f"softmax over the {name}", weights, partial(_softmax_over, axis=axis))
    yield Variant("weights zero where all is masked", weights, _zero_rows)


def _scaled_by_width(replay: Replay, power: float) -> np.ndarray:
    width, own = replay.inputs["query"].shape[-1], replay.config.attention_scale
    if math.isclose(width**-power, 1.0 / math.sqrt(width) if own is None else own):
        raise LookupError("as it is")
    return replay.under(attention_scale=width**-power)


def _scaled_by_width_of_values(replay: Replay) -> np.ndarray:
    if replay.stack.value_dim == replay.stack.head_dim:
        raise LookupError("the width of keys")
    return replay.under(attention_scale=replay.stack.value_dim**-0.5)


def _added(replay: Replay, value: float) -> np.ndarray:
    """Adds the fill value to masked logits instead of replacing them."""
    return replay.without_mask + np.where(replay.inputs["mask"], 0.0, value)


def _of_parts(replay: Replay, parts: tuple[str, ...]) -> np.ndarray:
    """Projects query and key with other parts' kernels, as programs do that split a fused projection in another
    order."""
    if place(replay.node.name).path[0] != "self_attention":
        raise LookupError("not fused")
    return replay.compute({own: projected_by(replay, own, part) for own, part in zip(PARTS[:2], parts, strict=False)})


def _softmax_over(replay: Replay, axis: int) -> np.ndarray:
    turned = np.moveaxis(replay.inputs["logits"], axis, -1)
    return np.moveaxis(formulas.attention_weights(replay.config, turned), -1, axis)


def _zero_rows(replay: Replay) -> np.ndarray:
    is_masked = replay.inputs["logits"] <= formulas.masked_value(replay.config)
    return np.where(is_masked.all(axis=-1, keepdims=True), 0.0, replay.compute())
