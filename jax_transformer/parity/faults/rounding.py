"""Distinguish rounding to a lower precision from a fault that hides in it.

Two programs that compute in float32 round differently, so neither can be replayed to the last bit. But rounding has a
size and a shape: it is as large as the change of the node's formula when its inputs move by the dtype's unit, it is
zero where the inputs can't change the value (such as ReLU of clearly negative numbers), and it is unbiased, both around
zero and along the value. A biased or larger error is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.parity.faults.replay import Replay
from jax_transformer.parity.oracle.graph import Kind

RUNS = 12
"""The computations with inputs off by rounding, from which the size of an error is estimated."""
LEANING_DEVIATIONS = 7.0
"""Largest bias of the mean of a row's errors, in standard deviations: chance exceeds it once in 10⁹ times for about
sixty rows."""
LEAST_LEANING = 0.25
"""The least mean that counts as leaning, in units of the dtype or in deviations of single values."""
LEAST_ROWS, MOST_ROWS = 8, 256
"""Minimum and maximum number of rows for the test of bias."""
ALIKE = 64.0
"""Largest distance of two rows that count as one, in units of the dtype: they round the same way."""
WITH_CONSTANTS: tuple[Kind, ...] = ("token_embedding", "attention_logits", "logits")
"""Nodes that multiply by a constant, whose own rounding scales all values equally."""
UNITS = {"float16": 2.0**-11} | tolerances.UNIT_ROUNDOFF
LEAST_NUMBER = {"float16": 2.0**-14, "float32": 2.0**-126, "bfloat16": 2.0**-126}
"""The least normal number: smaller ones have fewer digits, or are zero."""
LOWEST = {
    "float16": float(np.finfo(np.float16).min),
    "bfloat16": -(2.0 - 2.0**-7) * 2.0**127,
    "float32": float(np.finfo(np.float32).min),
}
Compute = Callable[[Replay], np.ndarray]


def is_rounding(replay: Replay, compute: Compute, dtype: str, where: np.ndarray | None = None) -> bool:
    """Returns whether the received value differs from a formula's by rounding to a lower precision alone.

    Args:
      compute: the node's formula, or one with a fault.
      where: mask of the values that count. None: all.
    """
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        runs = [_scattered(compute(_off_by_rounding(replay, dtype, rng)), dtype, rng) for _ in range(RUNS)]
        centres = [compute(_rounded(replay, dtype)), compute(replay)]
    counts = np.broadcast_to(True if where is None else where, replay.received.shape)
    return any(_is_scatter(replay, np.array(runs), centre, counts, dtype) for centre in centres)


def _is_scatter(replay: Replay, runs: np.ndarray, centre: np.ndarray, counts: np.ndarray, dtype: str) -> bool:
    if centre.shape != counts.shape or not np.isfinite(centre[counts]).all():
        return False
    spread = np.sqrt(np.square(runs - runs.mean(axis=0)).mean(axis=0))
    size = np.abs(runs - centre).max(axis=0)
    error = np.where(counts, replay.received - centre, 0.0)
    if np.any(np.abs(error) > tolerances.FACTOR_MAX * size.max(where=counts, initial=0.0)):
        return False
    still = counts & (size <= LEAST_NUMBER[dtype])
    moving = counts & ~still & (spread > 0.0)
    if np.any(np.abs(error[still]) > LEAST_NUMBER[dtype]):
        return False
    if not moving.any():
        return True
    scaled = np.divide(error, spread, out=np.zeros_like(error), where=moving)
    if np.sqrt(np.square(scaled[moving]).mean()) > tolerances.FACTOR_RMS:
        return False
    return not _leans(scaled, np.where(moving, centre / np.where(moving, spread, 1.0), 0.0), moving, replay, dtype)


def _leans(scaled: np.ndarray, values: np.ndarray, counts: np.ndarray, replay: Replay, dtype: str) -> bool:
    """Returns whether the errors of all rows are biased to the same side: up, or along the value.

    Args:
      scaled: the errors in multiples of their spread.
      values: the values in the same multiples.
      counts: mask of the values that count.
    """
    rows = [array.reshape(-1, array.shape[-1]) for array in (scaled, values, counts)]
    unit = UNITS[dtype]
    kept = _different(rows[1], rows[2], ALIKE * unit)
    if len(kept) < LEAST_ROWS:
        return False
    error, value, known = (array[kept] for array in rows)
    along = (error * value).sum(axis=-1) / np.maximum(np.square(value).sum(axis=-1), 1e-300)
    if replay.node.kind in WITH_CONSTANTS:
        return _leans_beyond(along, unit)
    return _leans_beyond(along, LEAST_LEANING * unit) or _leans_beyond(
        error.sum(axis=-1) / known.sum(axis=-1), LEAST_LEANING
    )


def _different(values: np.ndarray, counts: np.ndarray, distance: float) -> list[int]:
    """Returns the indices of pairwise different rows that have values that count."""
    kept: list[int] = []
    for number in np.flatnonzero(counts.any(axis=-1)):
        row = values[number]
        size = np.square(row).sum()
        if all(np.square(values[other] - row).sum() > distance**2 * size for other in kept):
            kept.append(int(number))
        if len(kept) == MOST_ROWS:
            break
    return kept


def _leans_beyond(means: np.ndarray, least: float) -> bool:
    """Returns whether numbers that should scatter around zero have a mean that is larger, and no chance."""
    deviation = means.std(ddof=1) / np.sqrt(len(means))
    return bool(np.abs(means.mean()) > max(least, LEANING_DEVIATIONS * deviation))


# --- replays with rounding


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Rounds to the nearest numbers of a dtype, in float64; integers and booleans stay.

    NumPy lacks bfloat16, which is the upper half of float32.
    """
    if array.dtype.kind != "f":
        return array
    if dtype != "bfloat16":
        return array.astype(dtype).astype(np.float64)
    bits = array.astype(np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(array), np.nan, nearest.view(np.float32).astype(np.float64))


def is_of(array: np.ndarray, dtype: str) -> bool:
    """Returns whether every value is a number of the dtype."""
    return np.array_equal(array, rounded(array, dtype), equal_nan=True)


def _rounded(replay: Replay, dtype: str) -> Replay:
    def all_rounded(arrays: Arrays) -> dict[str, np.ndarray]:
        return {name: rounded(_clipped(array, dtype), dtype) for name, array in arrays.items()}

    return replace(replay, inputs=all_rounded(replay.inputs), parameters=all_rounded(replay.parameters))


def _off_by_rounding(replay: Replay, dtype: str, rng: np.random.Generator) -> Replay:
    def off(arrays: Arrays) -> dict[str, np.ndarray]:
        return {name: _scattered(array, dtype, rng) for name, array in arrays.items()}

    return replace(replay, inputs=off(replay.inputs), parameters=off(replay.parameters))


def _scattered(array: np.ndarray, dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Moves each number randomly by up to a unit of the dtype, except masked logits, which all round the same way."""
    if array.dtype.kind != "f":
        return array
    units = np.where(array > tolerances.MASKED_BELOW, UNITS[dtype], 0.0)
    return np.asarray(array * (1.0 + units * rng.uniform(-1.0, 1.0, array.shape)))


def _clipped(array: np.ndarray, dtype: str) -> np.ndarray:
    """Clips an array to the range of the dtype."""
    return array.clip(LOWEST[dtype], -LOWEST[dtype]) if array.dtype.kind == "f" else array
