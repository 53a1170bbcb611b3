"""Faults of the block: of the residual, the placement of norms, and the sublayers' inputs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from jax_transformer.config.specs import LayerNorm
from jax_transformer.parity.faults.replay import Replay, Variant, norm_parameters, sum_of, terms
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, norm_module, place, placement_of, sublayers_of


def block() -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("residual", "residual_norm")
    sums: tuple[Kind, ...] = (*kinds, "parallel_residual")
    yield Variant("residual dropped", sums, lambda replay: replay.compute({"x": 0.0 * replay.inputs["x"]}))
    yield Variant("residual doubled", sums, lambda replay: replay.compute({"x": 2.0 * replay.inputs["x"]}))
    yield Variant("sublayer's output dropped", kinds, lambda replay: replay.compute({"y": 0.0 * replay.inputs["y"]}))
    unnormed: tuple[Kind, ...] = ("residual", "parallel_residual")
    yield Variant("residual taken after the norm", unnormed, _after_norm)
    yield Variant("normed after the residual is added", unnormed, lambda replay: _normed(replay, replay.own))
    yield Variant("norm missing", ("residual_norm",), sum_of)
    yield Variant("norm before the residual is added", ("residual_norm",), _norm_then_add)
    yield Variant("norm twice", ("same",), lambda replay: _normed(replay, replay.own))
    yield Variant("a final norm with scale 1 and bias 0", ("same",), _final_norm)
    readers: tuple[Kind, ...] = ("norm", "feed_forward_hidden")
    yield Variant("reads the input of the sublayer before it", readers, partial(_parallel, back=1))
    yield Variant("reads the input of the self-attention", readers, partial(_parallel, back=2))


def _norm_then_add(replay: Replay) -> np.ndarray:
    scaled = terms(replay)
    return scaled["x"] + formulas.norm(replay.norm, scaled["y"], **norm_parameters(replay))


def _after_norm(replay: Replay) -> np.ndarray:
    shares = replay.stack.share_norms and replay.stack.residual.parallel
    return replay.compute({"x": replay.layer_activation("shared_norm" if shares else _norm_of(replay))})


def _norm_of(replay: Replay) -> str:
    """Returns the norm of the sublayer that a residual, or the node after it, belongs to."""
    rest = place(replay.node.name).path[0]
    return "feed_forward_norm" if rest == "output" else rest.replace("_residual", "_norm")


def _normed(replay: Replay, x: np.ndarray) -> np.ndarray:
    """Applies the sublayer's norm to x: after the sublayer, or a second time."""
    sublayer = _norm_of(replay).removesuffix("_norm")
    return formulas.norm(replay.norm, x, **replay.norm_of(norm_module(replay.stack, sublayer)))


def _final_norm(replay: Replay) -> np.ndarray:
    """Applies a final norm with its initial parameters, as programs do that always create one."""
    if place(replay.node.name).layer is not None:
        raise LookupError("not the end of a stack")
    return formulas.norm(replay.stack.norm or LayerNorm(), replay.inputs["x"])


def _parallel(replay: Replay, back: int) -> np.ndarray:
    """Feeds a sublayer, or the norm before it, with the input of the sublayer `back` places earlier."""
    if replay.stack.residual.parallel:
        raise LookupError("as it should be")
    stack, layer, path = place(replay.node.name)
    if replay.node.kind == "norm" and len(path) > 1:
        raise LookupError("a norm within a sublayer")
    sublayers = sublayers_of(replay.stack)
    other = sublayers.index(path[0].removesuffix("_norm")) - back  # ValueError if it belongs to none
    if other < 0:
        raise LookupError("no sublayer there")
    reads_normed = placement_of(replay.stack) == "pre"
    if replay.node.kind != "norm" and reads_normed:
        name = f"{sublayers[other]}_norm"
    elif other:
        name = f"{sublayers[other - 1]}_residual"
    else:
        return replay.compute(
            {"x": replay.captured[f"{stack}.layers.{layer - 1}.output" if layer else f"{stack}.embedding"]}
        )
    return replay.compute({"x": replay.layer_activation(name)})
