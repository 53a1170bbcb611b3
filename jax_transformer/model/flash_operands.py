"""The operands of attention in blocks, and its compile-time constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax


@dataclass(frozen=True)
class Plan:
    """Holds the compile-time constants of an attention."""

    queries: int
    """Number of queries without padding."""
    keys: int
    """Number of keys without padding."""
    heads: int
    """Heads on all devices."""
    scale: float
    """Factor of the logits."""
    masked_value: float | None
    """Replaces masked logits. None: the lowest finite number of the dtype."""
    dropout_rate: float
    """The dropout rate of the weights; 0 with an `Operands` without words."""
    platform: str
    """"tpu", "gpu", or another, on which the kernels are interpreted."""
    block_queries: int
    block_keys: int


class Operands(NamedTuple):
    """Holds the arrays of an attention. Q and K are multiples of the blocks; N are the heads on this device."""

    query: jax.Array  # [B, N, H, Q]
    key: jax.Array  # [B, N, H, K]
    value: jax.Array  # [B, N, H, K]
    mask: jax.Array | None = None  # int8 [B or 1, K or 1, Q or 1], 0 = hidden
    bias: jax.Array | None = None  # [N, K, Q]
    words: jax.Array | None = None  # uint32 [2], the key of the dropout
    key_spans: jax.Array | None = None  # int32 [B or 1, Q blocks, 2], the blocks of keys that queries need, from and to
    query_spans: jax.Array | None = None  # int32 [B or 1, K blocks, 2], the blocks of queries that need keys


class Gradients(NamedTuple):
    """Holds the gradients of an attention's operands."""

    query: jax.Array  # [B, N, H, Q]
    key: jax.Array  # [B, N, H, K]
    value: jax.Array  # [B, N, H, K]
    bias: jax.Array | None  # [N, K, Q]


AXES = {
    "query": "BNHQ", "key": "BNHK", "value": "BNHK", "mask": "BKQ", "bias": "NKQ", "context": "BNHQ",
    "statistics": "BNSQ", "inner": "BNSQ", "gradient": "BNHQ", "to_query": "BNHQ", "to_key": "BNHK", "to_value": "BNHK",
    "to_bias": "NKQ",
}  # fmt: skip
"""Axes of the arrays that kernels read and write; all other operands are a few numbers."""
