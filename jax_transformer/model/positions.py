"""Positions: tables and the numbers that index them (Vaswani et al. 2017, §3.5, and variants of other
implementations)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.sizes import check_table
from jax_transformer.config.specs import Stack as StackConfig


class Places(NamedTuple):
    """Holds where the tokens of a stack stand."""

    numbers: jax.Array
    """Position numbers [B or 1, T], as `position_numbers` gives them; while decoding, of the K beams' newest tokens,
    [B or 1, K or 1]."""
    length: int
    """Columns, of tokens or of a cache."""
    column: jax.Array | None = None
    """While decoding, that of the newest tokens: [] int32. None: there is a query in every column."""


def table_rows(config: TransformerConfig, stack: StackConfig) -> int:
    """Returns the number of rows of a stack's position table: one for every value of `position_numbers`."""
    counts_from_one = config.position_index == "non_pad_count"
    return stack.max_length + config.position_offset + counts_from_one


def sinusoid_table(config: TransformerConfig, stack: StackConfig) -> np.ndarray:
    """Computes the sinusoids [rows, D] in float64; row r encodes position r, whatever the offset.

    If positions count real tokens, the pads' row is zero (fairseq).

    Raises:
      ValueError: it doesn't fit into memory.
    """
    rows = table_rows(config, stack)
    check_table(rows, config.d_model)
    pairs = config.d_model // 2
    pair = np.arange(pairs, dtype=np.float64)
    sine_exponent, cosine_exponent = {
        "standard": (pair / pairs, pair / pairs),
        "inclusive": (pair / max(pairs - 1, 1), pair / max(pairs - 1, 1)),
        # each column c = 2i or 2i + 1 uses 2c / D: the column number is doubled a second time
        "doubled": (2 * pair / pairs, (2 * pair + 1) / pairs),
    }[config.position_frequency]
    position = np.arange(rows, dtype=np.float64)[:, None]
    sine = np.sin(position / 10000.0**sine_exponent)
    cosine = np.cos(position / 10000.0**cosine_exponent)
    if config.position_layout == "halves":
        table = np.concatenate([sine, cosine], axis=1)
    else:
        table = np.stack([sine, cosine], axis=2).reshape(len(position), config.d_model)
    if config.position_index == "non_pad_count":
        table[config.position_offset] = 0.0
    return table


def position_numbers(
    config: TransformerConfig, ids: jax.Array, pad_id: int, segments: jax.Array | None = None
) -> jax.Array:
    """Returns the table row of every token of ids [B, T]: integers [B, T], [1, T] or [B, 1].

    Args:
      segments: integers [B, T], the number of each token's pair in a packed row, in which positions start anew.
    """
    batch, length = ids.shape
    if segments is not None:
        counted = ids != pad_id if config.position_index == "non_pad_count" else jnp.ones_like(ids, bool)
        numbers = _counted_before(counted, segments) + (config.position_index == "non_pad_count")
        numbers = numbers * (counted & (segments > 0))  # [B, T]
    elif config.position_index == "column":
        numbers = jnp.arange(length)[None, :]  # [1, T]
    elif config.position_index == "batch_row":
        numbers = jnp.arange(batch)[:, None]  # [B, 1]
    else:
        is_real = ids != pad_id
        numbers = jnp.cumsum(is_real, axis=1) * is_real  # [B, T]
    return numbers + config.position_offset


def _counted_before(counted: jax.Array, segments: jax.Array) -> jax.Array:
    """Returns for every token of `segments` [B, T] how many of `counted` precede it in its segment."""
    before = jnp.cumsum(counted, axis=1) - counted
    starts = jnp.diff(segments, axis=1, prepend=-1) != 0
    return before - jax.lax.cummax(jnp.where(starts, before, 0), axis=1)


def check_fits(config: TransformerConfig, stack: StackConfig, name: str, shape: tuple[int, ...]) -> None:
    """Raises ValueError if ids of shape (B, T) need more rows than the stack's position table has."""
    if not stack.has_table:
        return
    axis = 0 if config.position_index == "batch_row" else 1
    if shape[axis] > stack.max_length:
        what = "sentences in a batch (positions are indexed by batch row)" if axis == 0 else "tokens"
        raise ValueError(f"{name} has {shape[axis]} {what}; the position table allows {stack.max_length} (max_length)")
