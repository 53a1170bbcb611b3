"""Measures the difference of two arrays and its place, and applies gates to it. NumPy only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from jax_transformer.comparison.gates import tolerances


@dataclass(frozen=True)
class Comparison:
    """Measures how a candidate differs from a reference over the compared positions."""

    relative_rms: float
    """RMS of the difference / RMS of the reference; nan if either has a value that is not finite."""
    max_error: float
    """Largest difference / RMS of the reference."""
    worst_index: tuple[int, ...]
    """The index of the largest difference, or of the first value that is not finite."""
    exact: bool
    """Whether all compared values are finite and equal (+0 and -0 are equal)."""
    non_finite_candidate: int
    non_finite_reference: int
    compared: int
    """The number of values compared."""

    def within(self, relative_rms: float) -> bool:
        """Returns whether the relative RMS is at most this; False if a value is not finite."""
        return self.relative_rms <= relative_rms


@dataclass(frozen=True)
class PrecisionVerdict:
    """Compares a candidate and a reference in low precision with the truth in float64."""

    candidate: Comparison
    reference: Comparison
    allowed_rms: float
    allowed_max: float
    passed: bool


def compare(candidate: np.ndarray, reference: np.ndarray, where: np.ndarray | None = None) -> Comparison:
    """Compares two arrays of equal shape, in float64.

    Args:
      where: boolean, broadcastable to them; only positions where it is True count, in the errors and in the RMS of the
        reference.

    Raises:
      ValueError: the shapes differ, or nothing is left to compare.
    """
    candidate, reference = np.asarray(candidate), np.asarray(reference)
    if candidate.shape != reference.shape:
        raise ValueError(f"compare: expected equal shapes; received {candidate.shape} and {reference.shape}")
    if not (reference.size if where is None else np.broadcast_to(where, reference.shape).any()):
        raise ValueError(f"compare: no position of shape {reference.shape} is left to compare")
    a, b = candidate.astype(np.float64, copy=False), reference.astype(np.float64, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(np.subtract(a, b))
    largest = difference.max()  # NaN, if there is one; infinite or NaN, if either side isn't finite
    return (
        _compare_all(b, difference)
        if where is None and np.isfinite(largest)
        else _compare_some(a, b, difference, where)
    )


def _compare_all(b: np.ndarray, difference: np.ndarray) -> Comparison:
    """Compares all positions of finite arrays, with few temporary arrays, as these may be large."""
    size, worst = rms(b), int(difference.argmax())
    largest = float(difference.flat[worst])
    return Comparison(
        _ratio(rms(difference), size), _ratio(largest, size), _index(worst, b.shape), largest == 0.0, 0, 0, b.size
    )


def _compare_some(a: np.ndarray, b: np.ndarray, difference: np.ndarray, where: np.ndarray | None) -> Comparison:
    """Compares some positions, or arrays with values that aren't finite."""
    chosen = np.broadcast_to(True if where is None else where, b.shape)
    bad_a, bad_b = chosen & ~np.isfinite(a), chosen & ~np.isfinite(b)
    bad = bad_a | bad_b
    difference = np.where(chosen, difference, 0.0)
    worst = int(bad.argmax()) if bad.any() else int(difference.argmax())
    if bad.any():
        relative, largest = np.nan, np.nan
    else:
        size = rms(b[chosen])
        relative, largest = _ratio(rms(difference[chosen]), size), _ratio(float(difference.max()), size)
    return Comparison(
        relative_rms=float(relative),
        max_error=float(largest),
        worst_index=_index(worst, b.shape),
        exact=bool(not bad.any() and not difference.any()),
        non_finite_candidate=int(bad_a.sum()),
        non_finite_reference=int(bad_b.sum()),
        compared=int(chosen.sum()),
    )


def _index(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(number, shape))


def relative_rms(candidate: np.ndarray, reference: np.ndarray, where: np.ndarray | None = None) -> float:
    """Returns ‖candidate − reference‖ / ‖reference‖.

    It is 0 for two arrays of zeros, infinite for another array against zeros, and nan for non-finite values.
    """
    return compare(candidate, reference, where).relative_rms


def max_error(candidate: np.ndarray, reference: np.ndarray, where: np.ndarray | None = None) -> float:
    """Returns max |candidate − reference| / RMS of the reference, with the conventions of `relative_rms`."""
    return compare(candidate, reference, where).max_error


def float32_rule(
    candidate32: np.ndarray, reference32: np.ndarray, truth64: np.ndarray, where: np.ndarray | None = None
) -> PrecisionVerdict:
    """Judges whether a float32 candidate is as near to the truth as a float32 reference, by the factors allowed.

    The truth is the reference run in float64 on the same float32 weights and inputs.

    Raises:
      ValueError: shapes differ, or a dtype isn't the one that the rule needs.
    """
    return precision_rule(candidate32, reference32, truth64, "float32", where)


def precision_rule(
    candidate: np.ndarray, reference: np.ndarray, truth64: np.ndarray, dtype: str, where: np.ndarray | None = None
) -> PrecisionVerdict:
    """Applies `float32_rule` to any dtype of `tolerances.UNIT_ROUNDOFF`.

    The truth is computed from weights and inputs rounded to that dtype. Arrays computed in bfloat16 may be stored in
    float32, as NumPy lacks bfloat16.
    """
    kept = {"bfloat16": ("bfloat16", "float32")}.get(dtype, (dtype,))
    for what, array, expected in (
        ("candidate", candidate, kept),
        ("reference", reference, kept),
        ("truth", truth64, ("float64",)),
    ):
        if np.asarray(array).dtype.name not in expected:
            raise ValueError(
                f"precision_rule: expected a {expected[0]} {what}; received {np.asarray(array).dtype.name}"
            )
    of_candidate, of_reference = compare(candidate, truth64, where), compare(reference, truth64, where)
    floor = tolerances.FLOOR_ROUNDOFFS * tolerances.UNIT_ROUNDOFF[dtype]
    allowed_rms = tolerances.FACTOR_RMS * max(of_reference.relative_rms, floor)
    allowed_max = tolerances.FACTOR_MAX * max(of_reference.max_error, floor)
    is_finite = np.isfinite([allowed_rms, allowed_max]).all()  # of max(nan, x) either may come out
    return PrecisionVerdict(
        candidate=of_candidate,
        reference=of_reference,
        allowed_rms=allowed_rms,
        allowed_max=allowed_max,
        passed=bool(is_finite and of_candidate.relative_rms <= allowed_rms and of_candidate.max_error <= allowed_max),
    )


def rms(values: np.ndarray) -> float:
    """Returns the root mean square, without overflow: masked logits may be the lowest number there is."""
    flat = values.reshape(-1)
    if not flat.size:
        return 0.0
    with np.errstate(over="ignore"):
        squares = float(np.dot(flat, flat))
    if 1e-200 < squares < np.inf:  # values too small to be squared don't matter
        return math.sqrt(squares / flat.size)
    scale = np.abs(flat).max()
    return (
        float(scale * np.sqrt(np.mean(np.square(flat / scale)))) if scale > 0 and np.isfinite(scale) else float(scale)
    )


def _ratio(error: float, size: float) -> float:
    if size > 0:
        return error / size
    return 0.0 if error == 0 else np.inf
