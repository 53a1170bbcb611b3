"""The catalogue of faults: every variant of every kind of node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jax_transformer.parity.faults.attention import attention
from jax_transformer.parity.faults.block import block
from jax_transformer.parity.faults.distances import distances
from jax_transformer.parity.faults.dropout import dropout
from jax_transformer.parity.faults.embeddings import embeddings
from jax_transformer.parity.faults.feed_forward import feed_forward
from jax_transformer.parity.faults.head import head
from jax_transformer.parity.faults.heads import heads
from jax_transformer.parity.faults.layers import layers
from jax_transformer.parity.faults.masks import masks
from jax_transformer.parity.faults.norms import norms
from jax_transformer.parity.faults.positions import positions
from jax_transformer.parity.faults.precision import precision
from jax_transformer.parity.faults.projections import projections
from jax_transformer.parity.faults.replay import Variant
from jax_transformer.parity.faults.residuals import residuals
from jax_transformer.parity.faults.rotary import rotary
from jax_transformer.parity.faults.stem import stem

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig


def catalogue(config: TransformerConfig) -> Iterator[Variant]:
    """Yields every fault that a model of this config can have, single changes first."""
    yield from norms()
    yield from block()
    yield from residuals()
    yield from embeddings()
    yield from stem()
    yield from positions()
    yield from rotary(config)
    yield from projections()
    yield from attention()
    yield from heads()
    yield from distances()
    yield from masks()
    yield from feed_forward()
    yield from head()
    yield from layers(config)
    yield from precision()
    yield from dropout()
