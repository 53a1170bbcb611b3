"""Judge arrays that amplify rounding by how much each side differs from itself when it rounds otherwise.

Softmax's gradients with respect to its logits sum to zero. If the keys of a deep layer are nearly the same, the
gradients of its queries are therefore the small rest of large numbers that cancel. Two correct programs then differ by
more than the gate allows, and so does each from itself.

Weights changed in the last bit show what cancels in a forward pass, but not always what cancels on the way back. Where
softmax is nearly one-hot, its backward pass computes x − (x − c) with a c far below x: a multiple of x's last bit,
which stays the same when x and c change in theirs. So the loss is multiplied by a factor, too, and its gradients
divided by it: they are the same but for their rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.comparison.gates.compare import rms
from jax_transformer.comparison.gates.stages import Row, Stage

AMPLIFIES = "amplifies rounding: judged by how far the sides are from themselves when they round otherwise"
TOO_MUCH = "rounding alone moves it too far for a verdict"


def nudged(weights: Mapping[str, np.ndarray], dtype: str = "float64", draw: int = 0) -> dict[str, np.ndarray]:
    """Returns floating-point arrays with each value moved to the next number of the dtype above or below, at random.

    Zeros, infinities and other arrays stay.

    Args:
      dtype: float64, float32 or bfloat16. Numbers of bfloat16 are returned in float32.
      draw: seeds the directions.
    """
    rng = np.random.default_rng(draw)
    return {
        name: moved(array, rng, dtype) if np.issubdtype(array.dtype, np.floating) else array
        for name, array in weights.items()
    }


def loss_factor(draw: int = 0) -> float:
    """Returns a factor of the loss, at random between 1/2 and 1, which changes how its gradients are rounded."""
    return 0.5 + 0.5 * float(np.random.default_rng(draw).random())


def moved(array: np.ndarray, rng: np.random.Generator, dtype: str = "float64") -> np.ndarray:
    """Returns an array with each value moved to the next number of the dtype above or below, at random.

    Zeros and infinities stay.
    """
    kept = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    values = array.astype(kept)
    to = np.where(rng.integers(0, 2, array.shape, dtype=bool), np.inf, -np.inf)
    to = np.where(np.abs(values) < ml_dtypes.finfo(kept).max, to, 0.0)  # nothing finite lies beyond
    neighbour = np.nextafter(values, to.astype(kept))
    return np.where((array == 0) | np.isinf(array), values, neighbour).astype(np.promote_types(kept, np.float32))


def allow_for_rounding(stage: Stage, sides: Iterable[Callable[[], Stage]]) -> Stage:
    """Returns the stage with its diverged rows judged by what rounding alone does on both sides.

    The smaller of both sides' distances counts, so that an unstable side doesn't excuse itself.

    Args:
      sides: for each side, a function that compares its arrays with those it computes from `nudged` weights, gradients
        with a `loss_factor`.
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


def allow_for_last_bits(stage: Stage, dtype: str, moves: Callable[[str], Mapping[str, float]]) -> Stage:
    """Returns a stage of replays in float64 with its diverged rows judged by what last bits move.

    Tables and constants that programs make in float32 are rounded there, on each side in its own way: a row passes if
    it differs by no more than the last bits of float32 move it. In narrower types, it passes within what their last
    bits move, unless a sibling, a layer of the same list, does without: rounded tables and constants are the same in
    all layers.

    Args:
      dtype: in which the programs run.
      moves: dtype → for each row, how far the less sensitive side moves when its weights move in that dtype's last bit.
    """
    if all(row.verdict != "diverged" for row in stage.rows):
        return stage
    rows, known = [], moves("float32")
    for row in stage.rows:
        rows.append(_within(row, "float32", known.get(row.name, 0.0), tolerances.MOST_FOR_ROUNDING))
    left = [row for row in rows if row.verdict == "diverged"]
    if not left or dtype in ("float64", "float32"):
        return replace(stage, rows=tuple(rows))
    sharp = {sibling_of(row.name) for row in rows if row.verdict == "passed"}
    known = moves(dtype)
    judged = (
        row if sibling_of(row.name) in sharp else _within(row, dtype, known.get(row.name, 0.0), np.inf) for row in rows
    )
    return replace(stage, rows=tuple(judged))


def sibling_of(name: str) -> str:
    """Returns the name of a layer without numbers, which its siblings share."""
    return ".".join("{}" if part.isdecimal() else part for part in name.split("."))


def _within(row: Row, dtype: str, move: float, most: float) -> Row:
    """Returns a diverged row as passed if last bits move as much."""
    allowed = min(tolerances.FACTOR_LAST_BIT * move, most)
    if row.verdict != "diverged" or row.error is None or not row.allowed or not row.error.within(allowed):
        return row
    reason = f"differs in float64 by less than the last bits of {dtype} weights move"
    return replace(row, verdict="passed", gate=f"relative RMS ≤ {allowed:.1e}", allowed=allowed, reason=reason)


def without_cancelled(stage: Stage, candidate: Arrays, reference: Arrays) -> Stage:
    """Returns the stage of gradients in float64 with those diverged rows inconclusive that both sides have nearly zero.

    The gradients of a bias of keys are zero in exact arithmetic, as softmax takes no notice of it. What is left of them
    is the rounding of much larger numbers, and has nothing to do with the other side's. A row counts as such if it is
    smaller on both sides than the largest gradient is by the gate's relative RMS.
    """
    largest = max((rms(np.abs(array)) for array in reference.values()), default=0.0)
    most = tolerances.FLOAT64_RELATIVE_RMS * largest
    reason = f"{TOO_MUCH}: on both sides it is at most {tolerances.FLOAT64_RELATIVE_RMS:.0e} of the largest gradient"

    def judged(row: Row) -> Row:
        sides = [arrays.get(row.name) for arrays in (candidate, reference)]
        is_zero = all(array is not None and rms(np.abs(array)) <= most for array in sides)
        return replace(row, verdict="inconclusive", gate="", reason=reason) if is_zero else row

    return replace(stage, rows=tuple(judged(row) if row.verdict == "diverged" else row for row in stage.rows))


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


# --- several draws


def excuse_rounding(stage: Stage, dtype: str, sides: Mapping[str, Callable[[int], Stage]]) -> Stage:
    """Returns the stage with those diverged rows inconclusive that rounding alone explains.

    A softmax whose scores differ by hundreds picks another key when a score is rounded otherwise. In lower precision,
    two right programs may then be far apart, and it is chance which of them is nearer to the truth. In float64, their
    gradients may be what is left of numbers that cancel, and in one draw of several nothing. A row is excused if each
    side, when it rounds otherwise, moves farther than an exact reference's gate allows and, by the factors of that
    gate, as far as the candidate is from the truth, or in float64 from the reference. The largest of several draws
    counts, as a flip is a matter of chance, and the smaller of both sides', so that an unstable side doesn't excuse
    itself.

    Args:
      dtype: float64 (of gradients and steps), float32 or bfloat16.
      sides: for each side, a function that compares its arrays with those it computes from `nudged` weights of a draw,
        gradients with a `loss_factor`.
    """
    left = {row.name: row for row in stage.rows if row.verdict == "diverged" and row.allowed and row.error is not None}
    moves: dict[str, dict[str, float]] = {name: {} for name in left}
    for side, from_itself in sides.items():
        waiting = dict(left)
        left = {}
        for draw in range(tolerances.ROUNDING_DRAWS if waiting else 0):
            for row in from_itself(draw).rows:
                if row.name in waiting and _explains(row, waiting[row.name], dtype):
                    left[row.name] = waiting.pop(row.name)
                    moves[row.name][side] = _distance(row)
            if not waiting:
                break
    if not left:
        return stage
    first = next(name for name in moves if name in left)
    far = " and ".join(f"{move:.1e} in the {side}" for side, move in moves[first].items())
    moved = "weights moved in their last bit" + (" and another factor of the loss" if dtype == "float64" else "")
    reason = f"{TOO_MUCH}: {moved} move {first} by {far} (relative RMS)"
    excused = {name: replace(row, verdict="inconclusive", gate="", reason=reason) for name, row in left.items()}
    return replace(stage, rows=tuple(excused.get(row.name, row) for row in stage.rows))


def _explains(move: Row, row: Row, dtype: str) -> bool:
    """Returns whether a side's move is beyond what rounding usually does, and as large as a diverged row's error."""
    if move.error is None or row.error is None or not np.isfinite(move.error.relative_rms):
        return False
    roundoff = tolerances.FLOAT64_ROUNDOFF if dtype == "float64" else tolerances.UNIT_ROUNDOFF[dtype]
    usual = tolerances.FLOOR_ROUNDOFFS * roundoff
    rms, largest = tolerances.FACTOR_RMS * move.error.relative_rms, tolerances.FACTOR_MAX * move.error.max_error
    is_far = (
        move.error.max_error > tolerances.FACTOR_MAX * usual
        if row.error.within(row.allowed)  # its largest single error alone is beyond the gate
        else move.error.relative_rms > tolerances.FACTOR_RMS * usual
    )
    return is_far and row.error.relative_rms <= rms and row.error.max_error <= largest
