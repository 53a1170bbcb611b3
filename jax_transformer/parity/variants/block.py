"""Faults of the block: where the residual is taken from and where the norms stand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jax_transformer.parity.truth import formulas
from jax_transformer.parity.truth.graph import Kind, place
from jax_transformer.parity.variants.replay import Replay, Variant


def block() -> Iterator[Variant]:
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
