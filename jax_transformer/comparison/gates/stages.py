"""Compares named arrays of two sides in stages, each pair under its gate, and gives a verdict on all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.comparison.gates.compare import Comparison, PrecisionVerdict, compare, precision_rule

Verdict = Literal["passed", "diverged", "inconclusive"]


@dataclass(frozen=True)
class Row:
    """Holds the comparison of one array."""

    name: str
    verdict: Verdict
    gate: str
    """The condition to pass, such as "relative RMS ≤ 1e-12"; "" if there is none."""
    error: Comparison | None = None
    """None if the arrays can't be compared."""
    allowed: float = 0.0
    """The largest relative RMS that passes; 0 if all values must be equal."""
    reason: str = ""
    """The reason for the verdict if the error doesn't show it."""
    local: float = math.nan
    """The larger of both sides' local errors, each computed from the side's own inputs; NaN if not measured."""
    case: str = ""
    """The problem (weights and inputs) with the largest error, if there are several."""

    @property
    def times_allowed(self) -> float:
        """Returns the error divided by the allowed one; infinity if none is allowed, NaN if there is no error."""
        if self.error is None:
            return float("nan")
        if self.allowed == 0.0:
            return 0.0 if self.error.exact else float("inf")
        return self.error.relative_rms / self.allowed


@dataclass(frozen=True)
class Stage:
    """Holds the rows of one comparison: of masks, a forward pass, gradients, …"""

    name: str
    rows: tuple[Row, ...] = ()
    """In the reference's order."""
    only_in_candidate: tuple[str, ...] = ()
    only_in_reference: tuple[str, ...] = ()
    not_run: str = ""
    """The reason why it could not run; "" if it did."""

    @property
    def verdict(self) -> Verdict:
        """Returns "passed" if every array of both sides was compared and passed, and there is at least one."""
        verdicts = {row.verdict for row in self.rows}
        if "diverged" in verdicts:
            return "diverged"
        return "passed" if verdicts == {"passed"} and not self.reasons else "inconclusive"

    @property
    def first_divergence(self) -> Row | None:
        return next((row for row in self.rows if row.verdict == "diverged"), None)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Lists the reasons why the stage is inconclusive even if every row passed."""
        found = [self.not_run] if self.not_run else []
        if not self.not_run and not self.rows:
            found.append("nothing was compared: no name is on both sides")
        for side, names in (("candidate", self.only_in_candidate), ("reference", self.only_in_reference)):
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                found.append(f"only the {side} has {', '.join(names[:3])}{more}")
        return tuple(found)


def compare_stage(
    name: str,
    candidate: Arrays,
    reference: Arrays,
    *,
    truth: Arrays | None = None,
    tolerance: float | None = None,
    where: Mapping[str, np.ndarray] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> Stage:
    """Compares every array of both sides, each under the gate of its dtype.

    Integers and booleans must be equal; float64 within FLOAT64_RELATIVE_RMS. In lower precision a candidate must be
    about as near to the truth as the reference is (`precision_rule`); without a truth there is no criterion.

    Args:
      truth: the reference's arrays in float64, on weights and inputs rounded to the lower precision.
      tolerance: a relative RMS, in place of the gates of floating-point arrays.
      where: for some arrays, boolean masks, broadcastable to them, of the values that count.
      dtypes: for arrays stored in a wider dtype, the dtype in which they were computed.
    """
    where, dtypes = where or {}, dtypes or {}
    shared = [key for key in reference if key in candidate]
    rows = tuple(
        compare_arrays(
            key,
            candidate[key],
            reference[key],
            truth=None if truth is None else truth.get(key),
            tolerance=tolerance,
            where=where.get(key),
            dtype=dtypes.get(key),
        )
        for key in shared
    )
    return Stage(
        name,
        rows,
        tuple(key for key in candidate if key not in reference),
        tuple(key for key in reference if key not in candidate),
    )


def merge_stages(stages: Mapping[str, Stage]) -> Stage:
    """Merges the results of one stage on several problems: the worst row of each array, with the problem's name.

    Args:
      stages: results by name of the problem; at least one.
    """
    worst: dict[str, Row] = {}
    for case, stage in stages.items():
        for row in stage.rows:
            if row.name not in worst or severity(row) > severity(worst[row.name]):
                worst[row.name] = replace(row, case=case)
    candidates = dict.fromkeys(name for stage in stages.values() for name in stage.only_in_candidate)
    references = dict.fromkeys(name for stage in stages.values() for name in stage.only_in_reference)
    reasons = dict.fromkeys(stage.not_run for stage in stages.values() if stage.not_run)
    first = next(iter(stages.values()))
    return Stage(first.name, tuple(worst.values()), tuple(candidates), tuple(references), "; ".join(reasons))


def severity(row: Row) -> tuple[int, float]:
    """Returns a key that sorts rows from good to bad: by verdict, then by error in multiples of the allowed one."""
    size = row.times_allowed
    return ("passed", "inconclusive", "diverged").index(row.verdict), np.inf if np.isnan(size) else size


def compare_arrays(
    name: str,
    candidate: np.ndarray,
    reference: np.ndarray,
    *,
    truth: np.ndarray | None = None,
    tolerance: float | None = None,
    where: np.ndarray | None = None,
    dtype: str | None = None,
) -> Row:
    """Compares one array; see `compare_stage`."""
    if candidate.shape != reference.shape:
        return Row(
            name, "diverged", "equal shapes", reason=f"shapes {list(candidate.shape)} and {list(reference.shape)}"
        )
    if candidate.dtype != reference.dtype:
        return Row(name, "diverged", "equal dtypes", reason=f"dtypes {candidate.dtype} and {reference.dtype}")
    if (where is not None and not np.broadcast_to(where, reference.shape).any()) or not reference.size:
        return Row(name, "inconclusive", "", reason="no value of it counts")
    error = compare(candidate, reference, where)
    if not np.issubdtype(reference.dtype, np.floating):
        return Row(name, "passed" if error.exact else "diverged", "equal", error)
    if error.non_finite_reference:
        reason = f"the reference has {error.non_finite_reference} values that are not finite"
        return Row(name, "inconclusive", "", error, reason=reason)
    if error.non_finite_candidate:
        return Row(name, "diverged", "finite", error, reason=f"{error.non_finite_candidate} values that are not finite")
    dtype = dtype or reference.dtype.name
    if tolerance is not None or dtype == "float64":
        allowed = tolerances.FLOAT64_RELATIVE_RMS if tolerance is None else tolerance
        return Row(
            name, "passed" if error.within(allowed) else "diverged", f"relative RMS ≤ {allowed:g}", error, allowed
        )
    if dtype not in tolerances.UNIT_ROUNDOFF:
        return Row(name, "inconclusive", "", error, reason=f"there is no criterion for {dtype}: give a tolerance")
    if truth is None:
        return Row(
            name,
            "inconclusive",
            "",
            error,
            reason=f"{dtype} has no criterion without a float64 truth: give one, or a tolerance",
        )
    verdict = precision_rule(candidate, reference, truth, dtype, where)
    farther = "" if verdict.passed else f"{_times(verdict)} as far from the float64 truth as the reference"
    gate = f"{dtype}: ≤ {tolerances.FACTOR_RMS:g} × the reference's distance from the truth"
    return Row(name, "passed" if verdict.passed else "diverged", gate, verdict.candidate, verdict.allowed_rms, farther)


def _times(verdict: PrecisionVerdict) -> str:
    ratio = verdict.candidate.relative_rms * tolerances.FACTOR_RMS / verdict.allowed_rms
    return f"{ratio:.1f} times"
