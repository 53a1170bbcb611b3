"""The catalogue of faults: for each kind of node, mistakes known from real programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from jax_transformer.parity.faults.catalogue import catalogue
from jax_transformer.parity.faults.replay import Replay, Variant, in_float64
from jax_transformer.parity.oracle.graph import Kind

__all__ = ["Replay", "Variant", "catalogue", "outcomes"]

BROADCAST: tuple[Kind, ...] = ("mask", "positions")
"""Kinds whose faulty value may have a broader shape, such as a mask that wrongly differs by query."""


def outcomes(replay: Replay, *, recognised: bool = True) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the name and value of each variant that the node can have, in float64 for any captured dtype.

    Args:
      recognised: whether to include variants that are inferred from the received value.
    """
    replay = replace(replay, inputs={name: in_float64(array) for name, array in replay.inputs.items()})
    with np.errstate(all="ignore"):
        shape = replay.own.shape
    for variant in catalogue(replay.config):
        if replay.node.kind in variant.kinds and (recognised or not variant.recognises):
            try:
                with np.errstate(all="ignore"):
                    value = variant.compute(replay)
            except (ValueError, LookupError):
                continue
            if value.shape == shape or replay.node.kind in BROADCAST:
                yield variant.name, value
