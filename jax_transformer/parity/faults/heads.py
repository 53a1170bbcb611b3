"""Faults of heads: of which query heads share a key and a value, and of their factors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from jax_transformer.parity.faults.replay import Replay, Variant


def heads() -> Iterator[Variant]:
    yield Variant("heads of keys tiled, not repeated", ("attention_logits",), partial(_tiled, argument="key"))
    yield Variant("heads of values tiled, not repeated", ("context",), partial(_tiled, argument="value"))


def _tiled(replay: Replay, argument: str) -> np.ndarray:
    """Gives query heads 0, 1, 2, 3 the shared heads 0, 1, 0, 1 instead of 0, 0, 1, 1."""
    shared, count = replay.inputs[argument], replay.own.shape[1 if argument == "key" else 2]
    if shared.shape[2] in (1, count):
        raise LookupError("the same either way")
    return replay.compute({argument: np.tile(shared, (1, 1, count // shared.shape[2], 1))})
