"""Dropout (Srivastava et al. 2014) whose random stream is a function of the key and of where it is applied."""

from __future__ import annotations

import math
from enum import IntEnum

import jax
import jax.numpy as jnp

DropoutKey = jax.Array | None
"""A PRNG key, or None: no dropout."""


class Site(IntEnum):
    """Folded into the key, so that no two places draw the same numbers."""

    ENCODER = 0
    DECODER = 1
    EMBEDDING = 2
    LAYERS = 3
    OUTPUT = 4
    SELF_ATTENTION = 5
    CROSS_ATTENTION = 6
    FEED_FORWARD = 7
    WEIGHTS = 8
    HIDDEN = 9
    RESIDUAL = 10


def fold(key: DropoutKey, data: int | jax.Array) -> DropoutKey:
    """The key of a place within the place that `key` stands for."""
    return None if key is None else jax.random.fold_in(key, data)


def dropout(x: jax.Array, rate: float, key: DropoutKey) -> jax.Array:
    """Zeroes a share `rate` of x and divides the rest by 1 - rate; x itself without a key."""
    if key is None or rate == 0.0:
        return x
    threshold = min(round((1.0 - rate) * 2**32), 2**32 - 1)
    keep = _random_words(key, x.shape) < jnp.uint32(threshold)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros((), x.dtype))


def _random_words(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform 32-bit words: each element's index, mixed with one word of the key, twice.

    Written out, because XLA fuses this into the product that follows: on a CPU that takes a fraction of the time of
      `jax.random.bits`.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    index = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return _mix(_mix(index + first) ^ second)


def _mix(x: jax.Array) -> jax.Array:
    """A permutation of 32-bit words in which every bit depends on every other: fmix32 of MurmurHash3 (Appleby 2011)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
