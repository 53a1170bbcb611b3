"""Follow the constants that mask entries of rows, such as −10⁹ and −∞, through a program.

An entry is a sum c + x. c follows from constants, and x is the rest, which axiom "masks" assumes to be within ±10³. An
array of `fills` holds each c: 0 for an ordinary entry, NaN after multiplying a large c by an unknown value. So a fill
that is scaled down, or subtracted again, masks nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_transformer.proof.programs import UnknownOperation

FILL = -1e4
"""An entry with a constant of at most this, and as far below the row's largest, is masked."""
ORDINARY = 1e3
"""Constants up to this are left out of fills."""
MET = "∞ meets a number that depends on weights"

Fills = np.ndarray | None
"""Float64; None: all are zero."""


def fills_of_constant(array: np.ndarray) -> Fills:
    return tidy(without_nan(array))


def without_nan(array: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(array), 0.0, array)


def tidy(fills: Fills) -> Fills:
    """Leaves out constants that aren't large."""
    if fills is None:
        return None
    kept = np.where(np.abs(fills) <= ORDINARY, 0.0, fills)
    return kept if kept.any() else None


def infinite(fills: Fills) -> bool:
    return fills is not None and bool(np.isinf(fills).any())


def added(x: Fills, y: Fills, line: str) -> Fills:
    """Returns the fills of a sum of two arrays. Raises UnknownOperation for ∞ − ∞."""
    if x is None or y is None:
        return y if x is None else x
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.asarray(x + y)
    return _defined(total, np.isinf(x) | np.isinf(y), line)


def negated(x: Fills) -> Fills:
    return None if x is None else -x


def summed(x: Fills, axes: tuple[int, ...], line: str) -> Fills:
    if x is None:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        return _defined(np.asarray(x.sum(axis=axes)), np.isinf(x).any(axis=axes), line)


def scaled(x: Fills, factor: np.ndarray, line: str) -> Fills:
    """Returns the fills of an array that is multiplied by a constant one."""
    if x is None:
        return None
    if (np.isinf(x) & (factor == 0)).any():
        raise UnknownOperation("multiply", line, "0 · ∞ is NaN")
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.where(factor == 0, 0.0, x * factor))


def lost(x: Fills, line: str) -> Fills:
    """Returns the fills of an array that is multiplied by weights: no one knows how large they are then."""
    if x is None:
        return None
    if infinite(x):
        raise UnknownOperation("multiply", line, MET)
    return np.where(x == 0, 0.0, np.nan)


def counting(x: Fills, axes: tuple[int, ...], line: str) -> np.ndarray | None:
    """Returns a mask of the entries that count in a softmax; None: all. In a fully masked row, all entries count.

    Raises UnknownOperation for a row that is masked as a whole by −∞: its softmax is NaN.
    """
    if x is None:
        return None
    if np.isneginf(x).all(axis=axes).any():
        raise UnknownOperation("softmax", line, "all entries of a row are -inf, which leaves 0/0")
    if np.isposinf(x).any():
        raise UnknownOperation("softmax", line, "an entry of a row is inf, which leaves NaN")
    is_zero = np.isneginf(x) | hidden(x, axes)
    return None if not is_zero.any() else ~is_zero


def hidden(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Returns a mask of entries that are masked relative to another entry of their row: by a constant far below the
    largest one. Unknown fills hide nothing."""
    highest = np.where(np.isnan(x), -np.inf, x).max(axis=axes, keepdims=True)
    return np.asarray((x <= FILL) & (x <= highest + FILL) & (highest > FILL))


def low(x: Fills, line: str) -> np.ndarray | None:
    """Returns a mask of exponents whose exponential is 0; None: none is. Raises UnknownOperation for exp(∞)."""
    if x is None:
        return None
    if np.isposinf(x).any():
        raise UnknownOperation("exp", line, "of ∞, which leaves NaN")
    is_low = x <= FILL
    return is_low if is_low.any() else None


def fills_of_largest(x: Fills, counts: np.ndarray | None, axes: tuple[int, ...]) -> Fills:
    """Returns the fills of the largest entries of rows."""
    if x is None:
        return None
    high = np.where(counts, x, -np.inf) if counts is not None else x
    low = np.where(counts, x, np.inf) if counts is not None else x
    highest, lowest = high.max(axis=axes), low.min(axis=axes)
    is_known = (highest == lowest) | np.isposinf(highest)
    return tidy(np.where(is_known, highest, np.where(highest == 0, 0.0, np.nan)))


def fills_of_maximum(x: np.ndarray, y: np.ndarray) -> Fills:
    """Returns the fills of the larger ones of two arrays' entries."""
    is_known = (x == y) | (np.abs(x - y) >= -FILL)
    return tidy(np.where(is_known, np.maximum(x, y), np.nan))


def fills_of_mean(x: Fills, counts: np.ndarray | None, axis: int) -> Fills:
    """Returns the fills of the means of rows over the entries that count."""
    if x is None:
        return None
    if counts is None:
        return np.asarray(x.mean(axis=axis, keepdims=True))
    return np.asarray(np.where(counts, x, 0.0).sum(axis=axis, keepdims=True) / counts.sum(axis=axis, keepdims=True))


def _defined(total: np.ndarray, has_infinity: Any, line: str) -> np.ndarray:
    if (np.isnan(total) & has_infinity).any():
        raise UnknownOperation("add", line, "∞ − ∞ is NaN")
    return total
