"""The largest of many, as XLA is fast at it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

BLOCK = 16
SMALL = 4096
"""The size up to which `argmax` compares all scores with the largest."""


def top_k(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Returns the k largest scores along the last axis, in order, and their indices: [..., V] → [..., k] twice. Among
    equals the first comes first.

    On a CPU, `jax.lax.top_k` and `argmax` go through all scores with their indices one by one, while plain maxima are
    fast. This takes the maxima of blocks; the k blocks with the largest hold the k largest scores.
    """
    size = scores.shape[-1]
    num_blocks = size // BLOCK
    if num_blocks <= 2 * k:
        return jax.lax.top_k(scores, k)
    scores = jax.lax.optimization_barrier(scores)  # or XLA would compute them again for each use, and maxima slowly
    whole = num_blocks * BLOCK
    maxima = jnp.max(scores[..., :whole].reshape(*scores.shape[:-1], num_blocks, BLOCK), axis=-1)
    blocks = jnp.sort(jax.lax.top_k(maxima, k)[1], axis=-1)  # in order, so that of equals the first stays first
    inside = (blocks[..., None] * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)).reshape(*scores.shape[:-1], -1)
    rest = jnp.broadcast_to(jnp.arange(whole, size, dtype=jnp.int32), (*scores.shape[:-1], size - whole))
    candidates = jnp.concatenate([inside, rest], axis=-1)
    values, places = jax.lax.top_k(jnp.take_along_axis(scores, candidates, axis=-1), k)
    return values, jnp.take_along_axis(candidates, places, axis=-1)


def argmax(scores: jax.Array) -> jax.Array:
    """Returns the index of the largest along the last axis, the first among equals: [..., V] → [...]."""
    size = scores.shape[-1]
    if size > SMALL:
        return top_k(scores, 1)[1][..., 0]
    is_largest = scores == jnp.max(scores, axis=-1, keepdims=True)
    return jnp.min(jnp.where(is_largest, jnp.arange(size, dtype=jnp.int32), size - 1), axis=-1)
