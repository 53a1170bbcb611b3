"""Judge arrays that amplify rounding by how much each side differs from itself when its weights change in the last bit.

Softmax's gradients with respect to its logits sum to zero. If the keys of a deep layer are nearly the same, the
gradients of its queries are therefore the small rest of large numbers that cancel. Two correct programs then differ by
more than the gate allows, and so does each from itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from jax_transformer.compare.gates import tolerances
from jax_transformer.compare.gates.stages import Row, Stage

AMPLIFIES = "amplifies rounding: judged by how far the sides are from themselves when weights move in the last bit"
TOO_MUCH = "rounding alone moves it too far for a verdict"


def nudged(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns floating-point arrays in float64 with each value moved to the next number above or below, at random.

    Zeros, infinities and other arrays stay.
    """
    rng = np.random.default_rng(0)
    return {
        name: moved(array, rng) if np.issubdtype(array.dtype, np.floating) else array for name, array in weights.items()
    }


def moved(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns an array in float64 with each value moved to the next number above or below, at random.

    Zeros and infinities stay.
    """
    to = np.where(rng.integers(0, 2, array.shape, dtype=bool), np.inf, -np.inf)
    to = np.where(np.abs(array) < np.finfo(np.float64).max, to, 0.0)  # nothing finite lies beyond
    return np.where((array == 0) | np.isinf(array), array, np.nextafter(array.astype(np.float64), to))


def allow_for_rounding(stage: Stage, sides: Iterable[Callable[[], Stage]]) -> Stage:
    """Returns the stage with its diverged rows judged by what rounding alone does on both sides.

    The smaller of both sides' distances counts, so that an unstable side doesn't excuse itself.

    Args:
      sides: for each side, a function that compares its arrays with those it computes from `nudged` weights.
    """
    rows = {row.name: row for row in stage.rows}
    floors = {
        row.name: np.inf for row in stage.rows if row.verdict == "diverged" and row.allowed and row.error is not None
    }
    for from_itself in sides:
        if floors:
            distances = {row.name: _distance(row) for row in from_itself().rows}
            floors = {name: min(floor, distances.get(name, 0.0)) for name, floor in floors.items()}
            floors = {name: floor for name, floor in floors.items() if _judged(rows[name], floor).verdict != "diverged"}
    return replace(
        stage, rows=tuple(_judged(row, floors[row.name]) if row.name in floors else row for row in stage.rows)
    )


def _distance(row: Row) -> float:
    return row.error.relative_rms if row.error is not None and np.isfinite(row.error.relative_rms) else 0.0


def _judged(row: Row, floor: float) -> Row:
    assert row.error is not None
    allowed = tolerances.FACTOR_ROUNDING * floor
    if not row.error.within(allowed):
        return row
    if allowed > tolerances.MOST_FOR_ROUNDING:
        return replace(row, verdict="inconclusive", gate="", reason=TOO_MUCH)
    return replace(row, verdict="passed", gate=f"relative RMS ≤ {allowed:.1e}", allowed=allowed, reason=AMPLIFIES)
