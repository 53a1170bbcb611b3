"""Parity as an assertion, for anybody's tests."""

from __future__ import annotations

import io

from rich.console import Console

from jax_transformer.parity.gates.arrays import Arrays
from jax_transformer.parity.gates.stages import compare_stage
from jax_transformer.parity.report.console import show
from jax_transformer.parity.report.report import PASSED, Report


def assert_parity(
    candidate: Arrays, reference: Arrays, *, truth: Arrays | None = None, tolerance: float | None = None
) -> None:
    """Passes if every array of both sides is within its gate.

    Args:
      candidate, reference: arrays by name, the reference's in execution order.
      truth, tolerance: as of `compare_stage`.

    Raises:
      AssertionError: something differs, or nothing follows: names without a partner, no criterion, values that are not
        finite. Its text is the report.
    """
    report = Report(
        "candidate", "reference", (compare_stage("arrays", candidate, reference, truth=truth, tolerance=tolerance),)
    )
    if report.exit_code != PASSED:
        text = io.StringIO()
        show(report, Console(file=text, width=120, highlight=False))
        raise AssertionError(text.getvalue())
