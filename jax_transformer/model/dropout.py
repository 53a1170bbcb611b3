"""Dropout (Srivastava et al. 2014) with a random stream that depends only on the key and on the site."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Words(NamedTuple):
    """Holds the key of a place in the model: two words, [] uint32 each."""

    first: jax.Array
    second: jax.Array


DropoutKey = jax.Array | Words | None
"""A PRNG key, the key of a place, or None: no dropout."""


class Site(IntEnum):
    """Numbers the places of the model; folded into the dropout key, so that each place draws different numbers."""

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
    """Returns the key of place `data` within the place that `key` belongs to; None for None.

    It only mixes the words: `jax.random.fold_in` would run Threefry, whose twenty rounds for each place of a layer take
    a third of XLA's compile time of a training step for a TPU.
    """
    if key is None:
        return None
    words = words_of(key)
    first = _mix(words.first + _GOLDEN * (jnp.uint32(data) + jnp.uint32(1)))
    return Words(first, _mix(words.second ^ first))


def dropout(x: jax.Array, rate: float, key: DropoutKey) -> jax.Array:
    """Zeroes a share `rate` of x's elements and divides the others by 1 - rate.

    Returns x itself if `key` is None or the rate is zero. The dtype stays the same.
    """
    if key is None or rate == 0.0:
        return x
    keep = _random_words(key, x.shape) < keep_threshold(rate)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros((), x.dtype))


def words_of(key: jax.Array | Words) -> Words:
    """Returns the two words of a key."""
    return key if isinstance(key, Words) else Words(*jax.random.bits(key, (2,), jnp.uint32))


def keep_threshold(rate: float) -> np.uint32:
    """Returns the number below which a random word keeps its element."""
    return np.uint32(min(round((1.0 - rate) * 2**32), 2**32 - 1))


def random_words_at(index: jax.Array, second: jax.Array) -> jax.Array:
    """Returns uniform 32-bit words: each index mixed twice, each time with one word of the key.

    Args:
      index: uint32, the key's first word plus the number of the element in its array.
      second: [] uint32, the key's second word.
    """
    return _mix(_mix(index) ^ second)


def _random_words(key: jax.Array | Words, shape: tuple[int, ...]) -> jax.Array:
    """Returns the `random_words_at` every element of an array.

    XLA fuses these operations into the multiplication that follows. On a CPU, this takes a fraction of the time of
    `jax.random.bits`. The index is a sum over the axes, so that each device of a mesh computes its own part. It begins
    with the key, or XLA would compute the indices of all elements before the loop over the layers, and keep them.
    """
    words = words_of(key)
    index = jnp.reshape(words.first, (1,) * len(shape))
    for axis, stride in enumerate(np.cumprod((1, *shape[:0:-1]))[::-1]):
        along = [size if number == axis else 1 for number, size in enumerate(shape)]
        index = index + jax.lax.broadcasted_iota(jnp.uint32, along, axis) * jnp.uint32(stride % 2**32)
    return random_words_at(index, words.second)


_GOLDEN = np.uint32(0x9E3779B9)
"""2^32 divided by the golden ratio, and odd: multiples of it are spread evenly (Knuth, TAOCP 3, §6.4)."""


def _mix(x: jax.Array) -> jax.Array:
    """Permutes 32-bit words so that every bit depends on every other: fmix32 of MurmurHash3 (Appleby 2011)."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
