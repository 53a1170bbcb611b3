"""A report for a terminal: the worst first."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jax_transformer.parity.report import Report
from jax_transformer.parity.stages import Row, Stage

STYLES = {"passed": "green", "diverged": "bold red", "inconclusive": "yellow"}
MARKS = {"passed": "✓", "diverged": "✗", "inconclusive": "?"}
MOST_ROWS = 40
"""Of a table; what passes is left out first."""


def show(report: Report, console: Console) -> None:
    """Prints the verdict, the stages, and what was compared in execution order."""
    console.print(Text(_headline(report), style=STYLES[report.verdict]))
    for stage in report.stages:
        console.print(_funnel(stage), highlight=False)
        for reason in (*stage.reasons, *_counted(stage)):
            console.print(f"    {reason}", highlight=False, markup=False)
    for stage in report.stages:
        if stage.rows:
            console.print(_table(stage))
    if report.environment:
        console.print(", ".join(f"{name} {value}" for name, value in report.environment.items()), highlight=False, markup=False)


def _headline(report: Report) -> str:
    sides = f"{report.candidate} against {report.reference}"
    if report.verdict == "passed":
        return f"parity: {sides}: {sum(len(stage.rows) for stage in report.stages)} arrays within their gates"
    if report.verdict == "inconclusive":
        return f"inconclusive: {sides}"
    stage = next(stage for stage in report.stages if stage.first_divergence is not None)
    row = stage.first_divergence
    assert row is not None
    return f"diverged: {sides}\nfirst at {row.name} ({stage.name}): {describe(row)}"


def describe(row: Row) -> str:
    """What is wrong with an array, in words."""
    parts = [row.reason] if row.reason else []
    if row.error is not None and math.isfinite(row.error.relative_rms):
        parts.append(f"relative RMS {row.error.relative_rms:.2e}")
        if math.isfinite(row.times_allowed):
            parts.append(f"{row.times_allowed:,.1f} times what is allowed")
        parts.append(f"most at {list(row.error.worst_index)}")
    return ", ".join(parts)


def _funnel(stage: Stage) -> Text:
    passed = sum(row.verdict == "passed" for row in stage.rows)
    counted = f"{passed} of {len(stage.rows)} arrays pass" if stage.rows else "not compared"
    return Text(f"{MARKS[stage.verdict]} {stage.name}: {counted}", style=STYLES[stage.verdict])


def _counted(stage: Stage) -> list[str]:
    """The reasons of single arrays, each once."""
    names: dict[str, list[str]] = {}
    for row in stage.rows:
        if row.reason:
            names.setdefault(row.reason, []).append(row.name)
    return [f"{of[0]}{f' and {len(of) - 1} more' if len(of) > 1 else ''}: {reason}" for reason, of in names.items()]


def _table(stage: Stage) -> Table:
    table = Table(title=stage.name, title_justify="left", box=None, pad_edge=False)
    table.add_column()
    table.add_column("array", no_wrap=True, overflow="fold")
    for column in ("relative RMS", "max", "× allowed"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("at", no_wrap=True)
    for row in _chosen(stage.rows):
        error = row.error
        numbers = ("", "", "") if error is None else (_number(error.relative_rms), _number(error.max_error), _number(row.times_allowed))
        place = "" if error is None or error.exact else str(list(error.worst_index))
        table.add_row(
            MARKS[row.verdict], Text(row.name), *numbers, Text(place), style=None if row.verdict == "passed" else STYLES[row.verdict]
        )
    left_out = len(stage.rows) - table.row_count
    table.caption = f"{left_out} more that pass" if left_out else None
    return table


def _chosen(rows: tuple[Row, ...]) -> list[Row]:
    """At most MOST_ROWS, in order: those that don't pass, and then the largest errors."""

    def rank(row: Row) -> tuple[bool, float]:
        size = row.times_allowed
        return row.verdict == "passed", -size if math.isfinite(size) else 0.0

    kept = sorted(rows, key=rank)[:MOST_ROWS]
    return [row for row in rows if any(row is one for one in kept)]


def _number(value: float) -> str:
    return f"{value:.2e}" if math.isfinite(value) else str(value)
