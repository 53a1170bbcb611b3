"""The catalogue of faults: for each kind of node, the wrong ways to compute it that programs are known for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.parity.faults.attention import attention
from jax_transformer.parity.faults.block import block
from jax_transformer.parity.faults.distances import distances
from jax_transformer.parity.faults.dropout import dropout
from jax_transformer.parity.faults.embeddings import embeddings
from jax_transformer.parity.faults.feed_forward import feed_forward
from jax_transformer.parity.faults.head import head
from jax_transformer.parity.faults.heads import heads
from jax_transformer.parity.faults.masks import masks
from jax_transformer.parity.faults.norms import norms
from jax_transformer.parity.faults.positions import positions
from jax_transformer.parity.faults.precision import precision
from jax_transformer.parity.faults.projections import projections
from jax_transformer.parity.faults.replay import Replay, Variant, in_float64
from jax_transformer.parity.faults.residuals import residuals
from jax_transformer.parity.faults.rotary import rotary
from jax_transformer.parity.oracle.graph import Kind

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

__all__ = ["Replay", "Variant", "catalogue", "outcomes"]

BROADCAST: tuple[Kind, ...] = ("mask", "positions")
"""Kinds whose faulty value may have a broader shape, such as a mask that wrongly differs by query."""


def catalogue(config: TransformerConfig) -> Iterator[Variant]:
    """Yields every fault that a model of this config can have, those of single choices first."""
    yield from norms(config)
    yield from block()
    yield from residuals(config)
    yield from embeddings(config)
    yield from positions(config)
    yield from rotary(config)
    yield from projections()
    yield from attention(config)
    yield from heads()
    yield from distances(config)
    yield from masks(config)
    yield from feed_forward(config)
    yield from head(config)
    yield from precision()
    yield from dropout()


def outcomes(replay: Replay) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the name and value of each variant of the node that can be computed, in float64 whatever was captured."""
    replay = replace(replay, inputs={name: in_float64(array) for name, array in replay.inputs.items()})
    with np.errstate(all="ignore"):
        shape = replay.own.shape
    for variant in catalogue(replay.config):
        if replay.node.kind in variant.kinds:
            try:
                with np.errstate(all="ignore"):
                    value = variant.compute(replay)
            except (ValueError, LookupError):
                continue
            if value.shape == shape or replay.node.kind in BROADCAST:
                yield variant.name, value
