"""Faults of residual sums whose terms are scaled: a scale left out, or on the wrong term."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from jax_transformer.parity.faults.replay import Replay, Variant, norm_parameters, without
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, place

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

SUMS: tuple[Kind, ...] = ("residual", "residual_norm")
Term = Literal["residual", "output"]
"""The residual stream, or the sublayer's output."""


class Scales(NamedTuple):
    """Holds what the two terms of a sum are multiplied by: numbers, or arrays [D] or [1]."""

    residual: np.ndarray | float
    output: np.ndarray | float


def residuals(config: TransformerConfig) -> Iterator[Variant]:
    """Yields the faults of constant and of trained scales, if the model has any."""
    stacks = (config.encoder, config.decoder)
    if any((stack.residual_factor, stack.sublayer_factor) != (1.0, 1.0) for stack in stacks):
        yield Variant("residual stream not scaled", SUMS, partial(_with_factors, residual=1.0))
        yield Variant("sublayer's output not scaled", SUMS, partial(_with_factors, output=1.0))
        yield Variant("factors of the residual sum swapped", SUMS, _factors_swapped)
        yield Variant("the whole residual sum scaled by the stream's factor", SUMS, _sum_scaled)
    if len({(stack.residual_factor, stack.sublayer_factor) for stack in stacks}) > 1:
        yield Variant("residual factors of the other stack", SUMS, _of_the_other_stack)
    yield Variant("trained scale of the residual stream missing", SUMS, partial(without, role="residual_scale"))
    yield Variant("trained scale of the sublayer's output missing", SUMS, partial(without, role="output_scale"))
    yield Variant(
        "trained scale on the sublayer's output, not on the residual stream", SUMS, partial(_moved, "residual")
    )
    yield Variant("trained scale on the residual stream, not on the sublayer's output", SUMS, partial(_moved, "output"))
    yield Variant("trained scale on the sum, not on the sublayer's output", SUMS, _output_scale_on_sum)


def scaled_sum(replay: Replay, factors: Scales, trained: Scales | None = None) -> np.ndarray:
    """Returns the node's value with these factors and trained scales; `trained` None: with its own."""
    trained = _trained(replay) if trained is None else trained
    x = replay.inputs["x"] * factors.residual * trained.residual
    total = x + replay.inputs["y"] * factors.output * trained.output
    return formulas.norm(replay.config, total, **norm_parameters(replay)) if _is_normed(replay) else total


def _is_normed(replay: Replay) -> bool:
    return replay.node.kind == "residual_norm"


def _factors(replay: Replay) -> Scales:
    return Scales(replay.stack.residual_factor, replay.stack.sublayer_factor)


def _trained(replay: Replay) -> Scales:
    return Scales(replay.parameters.get("residual_scale", 1.0), replay.parameters.get("output_scale", 1.0))


def _with_factors(replay: Replay, **changes: float) -> np.ndarray:
    return scaled_sum(replay, _factors(replay)._replace(**changes))


def _factors_swapped(replay: Replay) -> np.ndarray:
    return scaled_sum(replay, Scales(*reversed(_factors(replay))))


def _sum_scaled(replay: Replay) -> np.ndarray:
    """Multiplies x + f(x) by the stream's factor."""
    factor = replay.stack.residual_factor
    return scaled_sum(replay, Scales(factor, factor * replay.stack.sublayer_factor))


def _of_the_other_stack(replay: Replay) -> np.ndarray:
    config = replay.config
    other = config.decoder if place(replay.node.name).stack == "encoder" else config.encoder
    return scaled_sum(replay, Scales(other.residual_factor, other.sublayer_factor))


def _moved(term: Term, replay: Replay) -> np.ndarray:
    """Applies a term's trained scale to the other term."""
    if f"{term}_scale" not in replay.parameters:
        raise LookupError("not scaled")
    trained, scale = _trained(replay), replay.parameters[f"{term}_scale"]
    if term == "residual":
        return scaled_sum(replay, _factors(replay), Scales(1.0, trained.output * scale))
    return scaled_sum(replay, _factors(replay), Scales(trained.residual * scale, 1.0))


def _output_scale_on_sum(replay: Replay) -> np.ndarray:
    if "output_scale" not in replay.parameters:
        raise LookupError("not scaled")
    trained = _trained(replay)
    return scaled_sum(replay, _factors(replay), trained._replace(residual=trained.residual * trained.output))
