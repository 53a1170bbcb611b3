"""Arrays that amplify rounding, judged by how far each side is from itself once its weights move in the last bit.

Softmax's gradients to its logits sum to zero, so that where the keys of a deep layer are nearly the same the gradients
to its queries are what is left of large numbers that cancel. Two right programs then differ by more than the gate
allows, and so does each from itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from jax_transformer.parity.gates import tolerances
from jax_transformer.parity.gates.stages import Row, Stage

AMPLIFIES = "amplifies rounding: judged by how far the sides are from themselves when weights move in the last bit"
TOO_MUCH = "rounding alone moves it too far for anything to be told"


def nudged(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Floating-point arrays in float64, their values moved to the next number above or below; zeros, and other arrays,
    as they are."""
    rng = np.random.default_rng(0)
    return {
        name: _nudged(array, rng) if np.issubdtype(array.dtype, np.floating) else array
        for name, array in weights.items()
    }


def _nudged(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    to = np.where(rng.integers(0, 2, array.shape, dtype=bool), np.inf, -np.inf)
    return np.where(array == 0, 0.0, np.nextafter(array.astype(np.float64), to))


def allow_for_rounding(stage: Stage, sides: Iterable[Callable[[], Stage]]) -> Stage:
    """The stage with what diverged allowed as much as rounding alone does on either side.

    A side that computes badly is far from itself where the other isn't: the lesser of both distances counts.

    Args:
      sides: of each side, what compares its arrays with what they are once its weights are `nudged`.
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
