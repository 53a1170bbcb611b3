"""Faults of residual sums: a scale left out or on the wrong term, and sublayers side by side or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.parity.faults.replay import Replay, Variant, factors, norm_parameters, terms, trained_scales
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, norm_module, place

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig
    from jax_transformer.config.specs import Stack as StackConfig

SUMS: tuple[Kind, ...] = ("residual", "residual_norm", "parallel_residual")
SUBLAYERS = {
    "self_attention": "self-attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward",
}
Weights = Mapping[str, np.ndarray | float]
"""What each term of a sum is multiplied by, by argument: a number, or an array [D] or [1]. The residual stream is
"x"."""


def residuals(config: TransformerConfig) -> Iterator[Variant]:
    """Yields the faults of scales, as far as the model has any, and of the order of the sublayers."""
    stacks = (config.encoder, config.decoder)
    if any((stack.residual_factor, stack.sublayer_factor) != (1.0, 1.0) for stack in stacks):
        yield Variant("residual stream not scaled", SUMS, partial(_refactored, change=_without_residual_factor))
        yield Variant("sublayer's output not scaled", SUMS, partial(_refactored, change=_without_sublayer_factor))
        yield Variant("factors of the residual sum swapped", SUMS, partial(_refactored, change=_swapped))
        yield Variant("the whole residual sum scaled", SUMS, partial(_refactored, change=_all_scaled))
    if len({(stack.residual_factor, stack.sublayer_factor) for stack in stacks}) > 1:
        yield Variant("residual factors of the other stack", SUMS, _of_the_other_stack)
    if config.learned_residual_scale != "none":
        yield Variant("trained scale of the residual stream missing", SUMS, partial(_untrained, of_stream=True))
        yield Variant("trained scale on the sublayer's output, not on the stream", SUMS, partial(_moved, to="y"))
    if config.learned_sublayer_scale != "none":
        yield Variant("trained scale of the sublayer's output missing", SUMS, partial(_untrained, of_stream=False))
        yield Variant("trained scale on the stream, not on the sublayer's output", SUMS, partial(_moved, to="x"))
        yield Variant("trained scale on the sum, not on the sublayer's output", SUMS, _on_the_sum)
    if config.parallel_residual:
        for sublayer, name in SUBLAYERS.items():
            yield Variant(f"output of the {name} dropped", ("parallel_residual",), partial(_dropped, sublayer=sublayer))
        readers: tuple[Kind, ...] = ("norm", "projection", "feed_forward_hidden")
        yield Variant("sublayers one after the other", readers, _one_after_the_other)


def weighted_sum(replay: Replay, weights: Weights) -> np.ndarray:
    """Returns the node's value with other weights of its terms."""
    total = sum((array * weights[argument] for argument, array in replay.inputs.items()), np.zeros(()))
    is_normed = replay.node.kind == "residual_norm"
    return formulas.norm(replay.config, total, **norm_parameters(replay)) if is_normed else total


def _product(first: Weights, second: Weights) -> Weights:
    return {argument: weight * second[argument] for argument, weight in first.items()}


# --- constant factors

Change = Callable[["StackConfig"], tuple[float, float]]
"""(the stack) → the factors of the residual stream and of sublayers' outputs."""


def _refactored(replay: Replay, change: Change) -> np.ndarray:
    return weighted_sum(replay, _product(factors(replay, change(replay.stack)), trained_scales(replay)))


def _without_residual_factor(stack: StackConfig) -> tuple[float, float]:
    return 1.0, stack.sublayer_factor


def _without_sublayer_factor(stack: StackConfig) -> tuple[float, float]:
    return stack.residual_factor, 1.0


def _swapped(stack: StackConfig) -> tuple[float, float]:
    return stack.sublayer_factor, stack.residual_factor


def _all_scaled(stack: StackConfig) -> tuple[float, float]:
    """Scales x + f(x) by the stream's factor or, if it has none, by that of the sublayers' outputs."""
    factor = stack.sublayer_factor if stack.residual_factor == 1.0 else stack.residual_factor
    return factor, factor


def _of_the_other_stack(replay: Replay) -> np.ndarray:
    config = replay.config
    other = config.decoder if place(replay.node.name).stack == "encoder" else config.encoder
    return _refactored(replay, lambda _: (other.residual_factor, other.sublayer_factor))


# --- trained scales


def _untrained(replay: Replay, of_stream: bool) -> np.ndarray:
    trained = trained_scales(replay)
    kept = {argument: 1.0 if (argument == "x") == of_stream else scale for argument, scale in trained.items()}
    return weighted_sum(replay, _product(factors(replay), kept))


def _moved(replay: Replay, to: str) -> np.ndarray:
    """Applies one term's trained scale to the other term."""
    trained = dict(trained_scales(replay))
    if trained.keys() != {"x", "y"}:
        raise LookupError("several outputs")
    source = "y" if to == "x" else "x"
    trained[to], trained[source] = trained[to] * trained[source], 1.0
    return weighted_sum(replay, _product(factors(replay), trained))


def _on_the_sum(replay: Replay) -> np.ndarray:
    trained = trained_scales(replay)
    if trained.keys() != {"x", "y"}:
        raise LookupError("several outputs")
    on_both = {"x": trained["x"] * trained["y"], "y": trained["y"]}
    return weighted_sum(replay, _product(factors(replay), on_both))


# --- sublayers side by side


def _dropped(replay: Replay, sublayer: str) -> np.ndarray:
    return replay.compute({sublayer: 0.0 * replay.inputs[sublayer]})


def _one_after_the_other(replay: Replay) -> np.ndarray:
    """Feeds a sublayer with the residual stream after those before it."""
    at, config = place(replay.node.name), replay.config
    sublayer = at.path[0].removesuffix("_norm")
    reads = at.path[1:] in ((), ("query",), ("hidden",))
    if sublayer not in SUBLAYERS or not reads or (replay.node.kind == "norm") == bool(at.path[1:]):
        raise LookupError("reads no residual stream")
    output, names = replay.sibling("output"), [*SUBLAYERS]
    earlier = [name for name in names[: names.index(sublayer)] if name in output.inputs]
    if not earlier:
        raise LookupError("the first")
    first, *others = terms(replay.at(output, ["x", *earlier])).values()
    stream = sum(others, first)
    read = replay.node.inputs["x"]
    if replay.node.kind != "norm" and read.endswith("norm"):
        if not config.share_norms:
            raise LookupError("its norm reads the stream")
        stream = formulas.norm(config, stream, **replay.norm_of(norm_module(config, sublayer)))
    return replay.compute({"x": stream})
