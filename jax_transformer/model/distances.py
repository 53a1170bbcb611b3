"""Relative positions: learned biases of attention logits (Raffel et al. 2020, §2.1), biases that fall linearly with the
distance (Press et al. 2022), or learned vectors (Shaw et al. 2018)."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_transformer.config import positions
from jax_transformer.config.specs import Stack
from jax_transformer.model import initializers
from jax_transformer.model.initializers import KeyStream


class RelativeBias(nnx.Module):
    """Holds a bias [P, N] of the attention logits for every bucket of distances and every head."""

    def __init__(self, kind: positions.RelativeBias, stack: Stack, keys: KeyStream) -> None:
        self.kind, self.is_causal = kind, stack.self_attention.causal
        shape = (kind.buckets, stack.self_attention.num_heads)
        self.embedding = nnx.Param(initializers.relative_bias(next(keys), shape, stack.d_model))

    def __call__(self, length: int, column: jax.Array | None = None) -> jax.Array:
        """Returns the bias for `length` keys: for every query [1, N, T, T], or for the one in `column` [1, N, 1, T].

        The length of an exported program may be a symbol. From max_distance on, all distances share a bucket.
        """
        after, reach = offsets(length, column), length - 1
        if jax.export.is_symbolic_dim(length):
            reach = self.kind.max_distance
            after = jnp.clip(after, -reach, reach)
        buckets = relative_buckets(self.kind, self.is_causal, reach + 1)
        by_distance = self.embedding[...][buckets]  # [2 R + 1, N], of distances from -R to R
        factor = self.kind.factor
        by_distance = by_distance if factor == 1.0 else by_distance * factor
        return jnp.moveaxis(by_distance[after + reach], 2, 0)[None]


def relative_buckets(kind: positions.RelativeBias, is_causal: bool, length: int) -> np.ndarray:
    """Returns the buckets [2 length - 1] of the distances from 1 - length to length - 1 between a key and its query.

    Half of a direction's buckets hold one distance each; the rest divide the distances up to max_distance evenly on a
    logarithmic scale. Rounding to a bucket happens in float32, as in T5's implementations.
    """
    offsets = np.arange(1 - length, length)
    buckets = kind.buckets if is_causal else kind.buckets // 2
    distances = np.maximum(-offsets, 0) if is_causal else np.abs(offsets)
    first = np.where(offsets > 0, 0 if is_causal else buckets, 0)
    exact = buckets // 2
    ratio = np.maximum(distances, exact).astype(np.float32) / np.float32(exact)
    share = np.log(ratio.astype(np.float64)).astype(np.float32) / np.float32(math.log(kind.max_distance / exact))
    far = exact + (share * np.float32(buckets - exact)).astype(np.int64)
    return first + np.where(distances < exact, distances, np.minimum(far, buckets - 1))


def alibi_slopes(heads: int) -> np.ndarray:
    """Returns the slopes [N] of ALiBi's heads: 2^(-8 i / N) for i from 1 to N, if N is a power of two.

    Otherwise they are the slopes of the next lower power of two, then every second one of the next higher.
    """
    lower = 1 << (heads.bit_length() - 1)
    slopes = 2.0 ** (-8.0 * np.arange(1, lower + 1) / lower)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * lower + 1, 2) / lower)
    return np.concatenate([slopes, between[: heads - lower]])


def alibi_bias(heads: int, length: int, column: jax.Array | None, dtype: jnp.dtype) -> jax.Array:
    """Returns minus slope times distance for `length` keys: for every query [1, N, T, T], or for the one in `column`
    [1, N, 1, T]. The distance is absolute."""
    distance = jnp.abs(offsets(length, column)).astype(dtype)
    return (-jnp.asarray(alibi_slopes(heads), dtype)[:, None, None] * distance)[None]


def offsets(length: int, column: jax.Array | None) -> jax.Array:
    """Returns the offset of each of `length` keys from each query [T, T], or from the one in `column` [1, T]."""
    columns = jnp.arange(length)
    return columns - (columns[:, None] if column is None else column[None, None])


class Vectors(NamedTuple):
    """Holds the vectors that attention adds to the key, and to the value, of every query and key."""

    keys: jax.Array  # [Q, K, H], or [1, K, H] while decoding
    values: jax.Array | None  # [Q, K, W], or [1, K, W]


class RelativeVectors(nnx.Module):
    """Holds vectors, [2 M + 1, H] of keys and [2 M + 1, W] of values, for the distances from -M to M between a key and
    its query, which all heads share."""

    def __init__(self, kind: positions.RelativeVectors, stack: Stack, keys: KeyStream) -> None:
        self.limit, rows, heads = kind.max_distance, 2 * kind.max_distance + 1, stack.heads
        self.keys = nnx.Param(initializers.relative_vectors(next(keys), (rows, heads.head_dim)))
        if kind.values:
            self.values = nnx.Param(initializers.relative_vectors(next(keys), (rows, heads.value_dim)))

    def __call__(self, length: int, column: jax.Array | None, dtype: jnp.dtype) -> Vectors:
        """Returns the vectors for `length` keys, of every query or of the one in `column`."""
        rows = jnp.clip(offsets(length, column), -self.limit, self.limit) + self.limit
        values = self.values[...].astype(dtype)[rows] if hasattr(self, "values") else None
        return Vectors(self.keys[...].astype(dtype)[rows], values)
