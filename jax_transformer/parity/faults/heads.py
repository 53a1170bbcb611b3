"""Faults of heads: wrong sharing of keys and values, wrong factors, and wrong norms."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from jax_transformer.parity.faults.replay import Replay, Variant
from jax_transformer.parity.oracle import formulas


def heads() -> Iterator[Variant]:
    yield Variant("heads of keys tiled, not repeated", ("attention_logits",), partial(_tiled, argument="key"))
    yield Variant("heads of values tiled, not repeated", ("context",), partial(_tiled, argument="value"))
    for name, power in (("missing", 0), ("squared", 2)):
        yield Variant(f"factors of heads {name}", ("head_scale",), partial(_scaled, power=power))
    yield Variant("factors of heads are 1 + the parameter", ("head_scale",), _one_more)
    yield Variant("norm over all heads together", ("norm",), _normed_together)


def _tiled(replay: Replay, argument: str) -> np.ndarray:
    """Gives query heads 0, 1, 2, 3 the shared heads 0, 1, 0, 1 instead of 0, 0, 1, 1."""
    shared, count = replay.inputs[argument], replay.own.shape[1 if argument == "key" else 2]
    if shared.shape[2] in (1, count):
        raise LookupError("the same either way")
    return replay.compute({argument: np.tile(shared, (1, 1, count // shared.shape[2], 1))})


def _scaled(replay: Replay, power: int) -> np.ndarray:
    return replay.compute(parameters={"scale": replay.parameters["scale"] ** power})


def _one_more(replay: Replay) -> np.ndarray:
    return replay.compute(parameters={"scale": replay.parameters["scale"] + 1.0})


def _normed_together(replay: Replay) -> np.ndarray:
    """Norms queries or keys [B, T, N, H] over N · H features, with the head's scale and bias in each head."""
    x = replay.inputs["x"]
    if x.ndim != 4 or x.shape[2] == 1:
        raise LookupError("no heads, or one")
    together = formulas.norm(replay.norm, x.reshape(*x.shape[:2], -1)).reshape(x.shape)
    scale = formulas.norm_scale(replay.norm, replay.parameters.get("scale"))
    return formulas.affine(together, scale, replay.parameters.get("bias"))
