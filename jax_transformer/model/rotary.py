"""Rotary positions (Su et al. 2021): pairs of a head's features turn by angles that grow with the position, so that a
query's product with a key depends on the distance between them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.positions import Rotary
from jax_transformer.config.specs import Stack
from jax_transformer.model.dtypes import at_least_float32


class Angles(NamedTuple):
    """Holds the cosine and sine of the angle of every position and every pair of features."""

    cosine: jax.Array  # [B or 1, T, R / 2], where R features of a head are rotated
    sine: jax.Array  # [B or 1, T, R / 2]


class Rotation(NamedTuple):
    """Holds the rotation angles of one attention."""

    query: Angles
    key: Angles


def rotates_cross_attention(stack: Stack) -> bool:
    """Returns whether the positions of a decoder rotate cross-attention, too."""
    return isinstance(stack.positions, Rotary) and stack.positions.cross_attention


def frequencies(rotary: Rotary, head_dim: int) -> np.ndarray:
    """Returns the angle [R / 2] between neighbouring positions for each pair, in float64."""
    width = rotary.dim or head_dim
    return rotary.base ** (-np.arange(0, width, 2, dtype=np.float64) / width)


def angles(rotary: Rotary, head_dim: int, numbers: jax.Array, dtype: jnp.dtype) -> Angles:
    """Returns the angles of position numbers [B or 1, T], computed in `dtype` or, if that is narrower, in float32."""
    wide = at_least_float32(dtype)
    turned = numbers[..., None].astype(wide) * jnp.asarray(frequencies(rotary, head_dim), wide)
    return Angles(jnp.cos(turned), jnp.sin(turned))


def rotate(rotary: Rotary, x: jax.Array, by: Angles) -> jax.Array:
    """Rotates the first R features of heads x [B, T, N, H], in the dtype of x.

    The layout pairs neighbours, or feature i with feature i + R / 2.
    """
    cosine, sine = (array[:, :, None, :] for array in by)  # [B or 1, T, 1, R / 2]
    width = 2 * cosine.shape[-1]
    wide = x[..., :width].astype(jnp.promote_types(x.dtype, cosine.dtype))
    if rotary.layout == "halves":
        first, second = jnp.split(wide, 2, axis=-1)
    else:
        first, second = wide[..., 0::2], wide[..., 1::2]
    turned = first * cosine - second * sine, second * cosine + first * sine
    if rotary.layout == "halves":
        rotated = jnp.concatenate(turned, axis=-1)
    else:
        rotated = jnp.stack(turned, axis=-1).reshape(wide.shape)
    return jnp.concatenate([rotated.astype(x.dtype), x[..., width:]], axis=-1)
