"""Positions: tables and the numbers that index them (Vaswani et al. 2017, §3.5, and its variants)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.positions import Learned, Sinusoidal
from jax_transformer.config.sizes import check_table
from jax_transformer.config.specs import Stack


class Places(NamedTuple):
    """Holds the positions of a stack's tokens."""

    numbers: jax.Array
    """Position numbers [B or 1, T] from `position_numbers`; while decoding, those of the K beams' newest tokens, [B or
    1, K or 1]."""
    length: int
    """Columns, of tokens or of a cache."""
    column: jax.Array | None = None
    """Column of the newest tokens while decoding: [] int32. None: every column has a query."""


def sinusoid_table(stack: Stack) -> np.ndarray:
    """Computes the sinusoids [rows, D] in float64; row r encodes position r for every offset.

    If positions count real tokens, the row of pads is zero (fairseq).

    Raises:
      ValueError: it doesn't fit into memory; the stack has no such table.
    """
    kind = stack.positions
    if not isinstance(kind, Sinusoidal):
        raise ValueError(f"positions: expected sinusoidal ones; received {stack.position_kind}")
    rows = stack.table_rows
    check_table(rows, stack.d_model)
    pairs = stack.d_model // 2
    pair = np.arange(pairs, dtype=np.float64)
    sine_exponent, cosine_exponent = {
        "standard": (pair / pairs, pair / pairs),
        "inclusive": (pair / max(pairs - 1, 1), pair / max(pairs - 1, 1)),
        # each column c = 2i or 2i + 1 uses 2c / D: the column number is doubled a second time
        "doubled": (2 * pair / pairs, (2 * pair + 1) / pairs),
    }[kind.frequency]
    position = np.arange(rows, dtype=np.float64)[:, None]
    sine = np.sin(position / 10000.0**sine_exponent)
    cosine = np.cos(position / 10000.0**cosine_exponent)
    if kind.layout == "halves":
        table = np.concatenate([sine, cosine], axis=1)
    else:
        table = np.stack([sine, cosine], axis=2).reshape(len(position), stack.d_model)
    if kind.index == "non_pad_count":
        table[kind.offset] = 0.0
    return table


def position_numbers(stack: Stack, is_real: jax.Array, segments: jax.Array | None = None) -> jax.Array:
    """Returns the table row of every token: integers [B, T], [1, T] or [B, 1].

    Args:
      is_real: boolean [B, T], False at pads.
      segments: integers [B, T], the number of each token's pair in a packed row; positions restart in each pair.
    """
    batch, length = is_real.shape
    index, offset = stack.numbering
    if segments is not None:
        counted = is_real if index == "non_pad_count" else jnp.ones_like(is_real)
        numbers = _counted_before(counted, segments) + (index == "non_pad_count")
        numbers = numbers * (counted & (segments > 0))  # [B, T]
    elif index == "column":
        numbers = jnp.arange(length)[None, :]  # [1, T]
    elif index == "batch_row":
        numbers = jnp.arange(batch)[:, None]  # [B, 1]
    else:
        numbers = jnp.cumsum(is_real, axis=1) * is_real  # [B, T]
    return numbers + offset


def _counted_before(counted: jax.Array, segments: jax.Array) -> jax.Array:
    """Returns for every token of `segments` [B, T] how many of `counted` precede it in its segment."""
    before = jnp.cumsum(counted, axis=1) - counted
    starts = jnp.diff(segments, axis=1, prepend=-1) != 0
    return before - jax.lax.cummax(jnp.where(starts, before, 0), axis=1)


def check_fits(stack: Stack, name: str, shape: tuple[int, ...]) -> None:
    """Raises ValueError if ids of shape (B, T) need more rows than the stack's position table has."""
    if not isinstance(stack.positions, Sinusoidal | Learned):
        return
    axis = 0 if stack.numbering[0] == "batch_row" else 1
    if shape[axis] > stack.max_length:
        what = "sentences in a batch (positions are indexed by batch row)" if axis == 0 else "tokens"
        raise ValueError(f"{name} has {shape[axis]} {what}; the position table allows {stack.max_length} (max_length)")
