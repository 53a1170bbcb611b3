"""What a parity run found, what follows from it, and its JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax_transformer.parity.diagnosis.findings import Fault
from jax_transformer.parity.gates.compare import Comparison
from jax_transformer.parity.gates.stages import Row, Stage, Verdict

SCHEMA = 1
"""Of the JSON; raised when a field changes its meaning or goes."""
PASSED, NAMED, INCONCLUSIVE, UNEXPLAINED = 0, 1, 3, 4
"""Exit codes. (2 is a mistake of the user's.)"""


class Depth(NamedTuple):
    """How far one activation is off, as a relative RMS; NaN where it wasn't measured."""

    name: str
    propagated: float = math.nan
    """The candidate from the reference, each computing from the ids."""
    local_candidate: float = math.nan
    """The candidate from what the config says should be made of its own inputs."""
    local_reference: float = math.nan
    float32_candidate: float = math.nan
    """The candidate in float32 from the truth in float64."""
    float32_reference: float = math.nan


def depth_of(stage: Stage) -> tuple[Depth, ...]:
    """Of a stage of activations alone."""
    return tuple(Depth(row.name, row.error.relative_rms) for row in stage.rows if row.error is not None)


class HeatMap(NamedTuple):
    """Where in an activation the sides differ."""

    name: str
    case: str
    rows: str
    """What a row is: "row of the batch, position"."""
    columns: str
    row_labels: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    """|candidate − reference| / RMS of the reference, the largest of what falls into a cell."""


class Effect(NamedTuple):
    """What a divergence does to what comes out, on the problem where it does most."""

    case: str
    relative_rms: float
    """Of the logits."""
    max_error: float
    """Largest difference of two logits / RMS of the reference's."""
    divergence: float
    """Mean Kullback-Leibler divergence of the candidate's next-token distribution from the reference's, in nats."""
    changed: int
    """Places whose likeliest token is another."""
    places: int


@dataclass(frozen=True)
class Report:
    """A candidate against a reference."""

    candidate: str
    """What it is called: a path, or a factory."""
    reference: str
    stages: tuple[Stage, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Versions, machine and the precision that was in force."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Of the files of either side, by path."""
    faults: tuple[Fault, ...] = ()
    """Where a side computes something else than it should; in execution order."""
    doubts: tuple[str, ...] = ()
    """Why nothing follows, whatever the stages say: a side that differs from itself, a precision that wasn't in
    force."""
    effect: Effect | None = None
    depth: tuple[Depth, ...] = ()
    heat_map: HeatMap | None = None

    @property
    def verdict(self) -> Verdict:
        """Where there are doubts nothing follows; else a divergence anywhere counts most; without one, every stage must
        have passed."""
        verdicts = {stage.verdict for stage in self.stages}
        if self.doubts:
            return "inconclusive"
        if "diverged" in verdicts:
            return "diverged"
        return "passed" if verdicts == {"passed"} else "inconclusive"

    @property
    def exit_code(self) -> int:
        """A divergence is named if every fault that was found is, and there is one."""
        if self.verdict == "diverged" and self.faults and all(fault.finding.matches for fault in self.faults):
            return NAMED
        return {"passed": PASSED, "diverged": UNEXPLAINED, "inconclusive": INCONCLUSIVE}[self.verdict]

    def to_json(self) -> str:
        """Numbers that JSON can't say become null."""
        content = {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "candidate": self.candidate,
            "reference": self.reference,
            "sha256": dict(self.sha256),
            "doubts": list(self.doubts),
            "faults": [_fault(fault) for fault in self.faults],
            "effect": None if self.effect is None else _numbers(self.effect),
            "stages": [_stage(stage) for stage in self.stages],
            "depth": [_numbers(depth) for depth in self.depth],
            "heat_map": None if self.heat_map is None else _numbers(self.heat_map),
            "environment": dict(self.environment),
        }
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _fault(fault: Fault) -> dict[str, Any]:
    return {
        "side": fault.side,
        "stage": fault.stage,
        "case": fault.case,
        "node": fault.finding.node,
        "kind": fault.finding.kind,
        "cause": fault.finding.cause,
        "local_error": _finite(fault.finding.local_error),
        "propagated_error": _finite(fault.propagated_error),
        "matches": [_numbers(match) for match in fault.finding.matches],
        "runner_up": None if fault.finding.runner_up is None else _numbers(fault.finding.runner_up),
        "told_apart_by": fault.finding.told_apart_by,
        "command": fault.command,
    }


def _numbers(values: Any) -> dict[str, Any]:
    """A named tuple's fields, of which some are tables of numbers."""
    return {name: _finite_all(value) for name, value in values._asdict().items()}


def _finite_all(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_finite_all(inner) for inner in value]
    return _finite(value) if isinstance(value, float) else value


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "verdict": stage.verdict,
        "reasons": list(stage.reasons),
        "compared": len(stage.rows),
        "only_in_candidate": list(stage.only_in_candidate),
        "only_in_reference": list(stage.only_in_reference),
        "rows": [_row(row) for row in stage.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "case": row.case,
        "verdict": row.verdict,
        "gate": row.gate,
        "allowed": _finite(row.allowed),
        "times_allowed": _finite(row.times_allowed),
        "local_error": _finite(row.local),
        "reason": row.reason,
        "error": None if row.error is None else _error(row.error),
    }


def _error(error: Comparison) -> dict[str, Any]:
    return {
        "relative_rms": _finite(error.relative_rms),
        "max_error": _finite(error.max_error),
        "worst_index": list(error.worst_index),
        "exact": error.exact,
        "non_finite_candidate": error.non_finite_candidate,
        "non_finite_reference": error.non_finite_reference,
        "compared": error.compared,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
