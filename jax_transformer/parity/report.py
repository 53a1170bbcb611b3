"""What a parity run found, what follows from it, and its JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jax_transformer.parity.compare import Comparison
from jax_transformer.parity.stages import Row, Stage, Verdict

SCHEMA = 1
"""Of the JSON; raised when a field changes its meaning or goes."""
PASSED, NAMED, INCONCLUSIVE, UNEXPLAINED = 0, 1, 3, 4
"""Exit codes. (2 is a mistake of the user's.)"""


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

    @property
    def verdict(self) -> Verdict:
        """A divergence anywhere counts most; without one, every stage must have passed."""
        verdicts = {stage.verdict for stage in self.stages}
        if "diverged" in verdicts:
            return "diverged"
        return "passed" if verdicts == {"passed"} else "inconclusive"

    @property
    def exit_code(self) -> int:
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
            "stages": [_stage(stage) for stage in self.stages],
            "environment": dict(self.environment),
        }
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


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
        "verdict": row.verdict,
        "gate": row.gate,
        "allowed": _finite(row.allowed),
        "times_allowed": _finite(row.times_allowed),
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
