"""Faults of residual sums: a scale left out or on the wrong term, and sublayers in parallel or in sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.parity.faults.replay import Replay, Variant, factors, norm_parameters, terms, trained_scales
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, norm_module, place

if TYPE_CHECKING:
    from jax_transformer.config.specs import Residual

SUMS: tuple[Kind, ...] = ("residual", "residual_norm", "parallel_residual")
SUBLAYERS = {
    "self_attention": "self-attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward",
}
Weights = Mapping[str, np.ndarray | float]
"""Argument → the factor of its term: a number, or an array [D] or [1]. The residual stream is "x"."""


def residuals() -> Iterator[Variant]:
    """Yields the faults of scales, and of the order of the sublayers."""
    yield Variant("residual stream not scaled", SUMS, partial(_refactored, change=_without_stream_factor))
    yield Variant("sublayer's output not scaled", SUMS, partial(_refactored, change=_without_output_factor))
    yield Variant("factors of the residual sum swapped", SUMS, partial(_refactored, change=_swapped))
    yield Variant("the whole residual sum scaled", SUMS, partial(_refactored, change=_all_scaled))
    yield Variant("residual factors of the other stack", SUMS, _with_other_stack)
    yield Variant("trained scale of the residual stream missing", SUMS, partial(_untrained, on_stream=True))
    yield Variant("trained scale on the sublayer's output, not on the stream", SUMS, partial(_moved, to="y"))
    yield Variant("trained scale of the sublayer's output missing", SUMS, partial(_untrained, on_stream=False))
    yield Variant("trained scale on the stream, not on the sublayer's output", SUMS, partial(_moved, to="x"))
    yield Variant("trained scale on the sum, not on the sublayer's output", SUMS, _on_the_sum)
    for sublayer, name in SUBLAYERS.items():
        yield Variant(f"output of the {name} dropped", ("parallel_residual",), partial(_dropped, sublayer=sublayer))
    readers: tuple[Kind, ...] = ("norm", "projection", "feed_forward_hidden")
    yield Variant("sublayers in sequence", readers, _one_after_the_other)


def weighted_sum(replay: Replay, weights: Weights) -> np.ndarray:
    """Returns the node's sum with these weights of its terms."""
    total = sum((array * weights[argument] for argument, array in replay.inputs.items()), np.zeros(()))
    is_normed = replay.node.kind == "residual_norm"
    return formulas.norm(replay.norm, total, **norm_parameters(replay)) if is_normed else total


def _product(first: Weights, second: Weights) -> Weights:
    return {argument: weight * second[argument] for argument, weight in first.items()}


# --- constant factors

Change = Callable[["Residual"], tuple[float, float]]
"""(the stack's residual) → the factors of the stream and of sublayers' outputs."""


def _refactored(replay: Replay, change: Change) -> np.ndarray:
    """Computes a sum with other factors. Raises LookupError if they are unchanged."""
    own, other = replay.stack.residual, change(replay.stack.residual)
    if other == (own.stream_factor, own.output_factor):
        raise LookupError("as it is")
    return weighted_sum(replay, _product(factors(replay, other), trained_scales(replay)))


def _without_stream_factor(residual: Residual) -> tuple[float, float]:
    return 1.0, residual.output_factor


def _without_output_factor(residual: Residual) -> tuple[float, float]:
    return residual.stream_factor, 1.0


def _swapped(residual: Residual) -> tuple[float, float]:
    return residual.output_factor, residual.stream_factor


def _all_scaled(residual: Residual) -> tuple[float, float]:
    """Scales x + f(x) by the stream's factor or, if it has none, by that of the sublayers' outputs."""
    factor = residual.output_factor if residual.stream_factor == 1.0 else residual.stream_factor
    return factor, factor


def _with_other_stack(replay: Replay) -> np.ndarray:
    other = replay.other_stack.residual
    return _refactored(replay, lambda _: (other.stream_factor, other.output_factor))


# --- trained scales


def _untrained(replay: Replay, on_stream: bool) -> np.ndarray:
    trained = trained_scales(replay)
    kept = {argument: 1.0 if (argument == "x") == on_stream else scale for argument, scale in trained.items()}
    if kept.keys() == {name for name, scale in trained.items() if kept[name] is scale or isinstance(scale, float)}:
        raise LookupError("no trained scale there")
    return weighted_sum(replay, _product(factors(replay), kept))


def _moved(replay: Replay, to: str) -> np.ndarray:
    """Applies one term's trained scale to the other term."""
    trained = dict(trained_scales(replay))
    if trained.keys() != {"x", "y"}:
        raise LookupError("several outputs")
    source = "y" if to == "x" else "x"
    if isinstance(trained[source], float):
        raise LookupError("no trained scale there")
    trained[to], trained[source] = trained[to] * trained[source], 1.0
    return weighted_sum(replay, _product(factors(replay), trained))


def _on_the_sum(replay: Replay) -> np.ndarray:
    trained = trained_scales(replay)
    if trained.keys() != {"x", "y"}:
        raise LookupError("several outputs")
    if isinstance(trained["y"], float):
        raise LookupError("no trained scale there")
    on_both = {"x": trained["x"] * trained["y"], "y": trained["y"]}
    return weighted_sum(replay, _product(factors(replay), on_both))


# --- sublayers side by side


def _dropped(replay: Replay, sublayer: str) -> np.ndarray:
    return replay.compute({sublayer: 0.0 * replay.inputs[sublayer]})


def _one_after_the_other(replay: Replay) -> np.ndarray:
    """Feeds a sublayer with the residual stream after the preceding sublayers."""
    at = place(replay.node.name)
    sublayer = at.path[0].removesuffix("_norm")
    reads = at.path[1:] in ((), ("query",), ("hidden",))
    if sublayer not in SUBLAYERS or not reads or (replay.node.kind == "norm") == bool(at.path[1:]):
        raise LookupError("reads no residual stream")
    if not replay.stack.residual.parallel:
        raise LookupError("as it should be")
    output, names = replay.sibling("output"), [*SUBLAYERS]
    earlier = [name for name in names[: names.index(sublayer)] if name in output.inputs]
    if not earlier:
        raise LookupError("the first")
    first, *others = terms(replay.at(output, ["x", *earlier])).values()
    stream = sum(others, first)
    read = replay.node.inputs["x"]
    if replay.node.kind != "norm" and read.endswith("norm"):
        if not replay.stack.share_norms:
            raise LookupError("its norm reads the stream")
        stream = formulas.norm(replay.norm, stream, **replay.norm_of(norm_module(replay.stack, sublayer)))
    return replay.compute({"x": stream})
