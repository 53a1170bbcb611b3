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


ROUNDS = 13
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


def _random_words(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform 32-bit words: Threefry-2x32 of each element's index under the key (Salmon et al. 2011; 13 rounds are the fewest that pass
    BigCrush, their table 2).

    Written out, because XLA fuses this into the product that follows, which takes a fifth of the time of `jax.random.bits` on a CPU.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    keys = (first, second, first ^ second ^ jnp.uint32(0x1BD11BDA))
    index = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    x, y = index + keys[0], jnp.broadcast_to(keys[1], shape)
    for number in range(ROUNDS):
        x = x + y
        rotation = ROTATIONS[number % 8]
        y = ((y << rotation) | (y >> (32 - rotation))) ^ x
        if number % 4 == 3:
            injection = number // 4 + 1
            x = x + keys[injection % 3]
            y = y + keys[(injection + 1) % 3] + jnp.uint32(injection)
    return x
