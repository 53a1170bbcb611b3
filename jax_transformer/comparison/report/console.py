"""Prints stages as text for terminals and test logs: a line for each, and a table of the worst rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from jax_transformer.comparison.gates.stages import Row, Stage

STYLES = {"passed": "green", "diverged": "bold red", "inconclusive": "yellow"}
MARKS = {"passed": "✓", "diverged": "✗", "inconclusive": "?"}
FEW_ROWS = 6
"""The most rows of a table that isn't verbose; all of them fail."""
MOST_ROWS = 40
"""The most rows of a verbose table; rows that pass are left out first, then the smaller errors."""
MOST_PASSED = 8
"""The most passing rows of a verbose table, chosen by the largest errors."""
MOST_REASONS = 4
"""The most reasons of single arrays listed below a stage."""
WIDE = 110
"""The least columns of a console at which a table shows the largest error and its place."""


def describe(row: Row) -> str:
    """Describes a row's error in words."""
    parts = [row.reason] if row.reason else []
    if row.error is not None and math.isinf(row.error.relative_rms):
        parts.append("all zero in the reference alone")
    if row.error is not None and math.isfinite(row.error.relative_rms):
        parts.append(f"relative RMS {row.error.relative_rms:.2e}")
        if math.isfinite(row.times_allowed):
            parts.append(f"{_times(row.times_allowed)} times what is allowed")
        parts.append(f"most at {list(row.error.worst_index)}")
    return ", ".join(parts)


def _times(value: float) -> str:
    if not math.isfinite(value) or value == 0:
        return _number(value)
    return f"{value:,.1f}" if 0.05 <= value < 1e5 else f"{value:.1e}"


def stage_lines(stages: Sequence[Stage]) -> list[str]:
    """Writes a line for each stage, names and numbers aligned."""
    name = max((len(stage.name) for stage in stages), default=0) + 1
    digits = len(str(max((len(stage.rows) for stage in stages), default=0)))
    lines = []
    for stage in stages:
        passed = sum(row.verdict == "passed" for row in stage.rows)
        counted = f"{passed:>{digits}} of {len(stage.rows):>{digits}} arrays pass" if stage.rows else "not compared"
        lines.append(f"{MARKS[stage.verdict]} {stage.name + ':':<{name}} {counted}")
    return lines


def row_reasons(stage: Stage) -> list[str]:
    """Lists the reasons of single rows, each once with the number of rows that have it."""
    names: dict[str, list[str]] = {}
    for row in stage.rows:
        if row.reason:
            names.setdefault(row.reason, []).append(row.name)
    lines = [f"{rows[0]}{f' and {len(rows) - 1} more' if len(rows) > 1 else ''}: {why}" for why, rows in names.items()]
    left = len(lines) - MOST_REASONS
    return [*lines[:MOST_REASONS], *([f"and {left} more reason{'s' if left > 1 else ''}"] if left > 0 else [])]


def stage_table(stage: Stage, width: int, verbose: bool) -> Table:
    """Returns the table of a stage's rows in execution order; on a narrow console it has fewer columns."""
    columns = ["array", "case", "local", "rel. RMS", "max", "× gate", "at"]
    if not any(row.case for row in stage.rows):
        columns.remove("case")
    if all(math.isnan(row.local) for row in stage.rows):
        columns.remove("local")
    if width < WIDE:
        columns = [column for column in columns if column not in ("max", "at")]
    table = Table(title=stage.name, title_justify="left", caption_justify="left", box=None, pad_edge=False)
    table.add_column()
    for column in columns:
        is_number = column in ("local", "rel. RMS", "max", "× gate")
        table.add_column(column, justify="right" if is_number else "left", no_wrap=column != "case", overflow="fold")
    chosen = _chosen(stage, verbose)
    for row in chosen:
        cells = _cells(row)
        style = None if row.verdict == "passed" else STYLES[row.verdict]
        table.add_row(MARKS[row.verdict], *(Text(cells[column]) for column in columns), style=style)
    table.caption = ", ".join(_left_out(stage, chosen)) or None
    return table


def _cells(row: Row) -> dict[str, str]:
    """Returns a row's cells by column; arrays that can't be compared have no numbers."""
    local = "" if math.isnan(row.local) else _number(row.local)
    cells = {"array": row.name, "case": row.case, "local": local, "rel. RMS": "", "max": "", "× gate": "", "at": ""}
    error = row.error
    if error is None:
        return cells
    place = "" if error.exact else str(list(error.worst_index))
    numbers = {
        "rel. RMS": _number(error.relative_rms),
        "max": _number(error.max_error),
        "× gate": _times(row.times_allowed),
    }
    return cells | numbers | {"at": place}


def _chosen(stage: Stage, verbose: bool) -> list[Row]:
    """Returns the rows to print, in execution order: the first divergence, other failing rows, the largest errors."""

    def rank(row: Row) -> tuple[bool, bool, float]:
        size = row.times_allowed
        unknown = 0.0 if row.verdict == "passed" else -math.inf
        return row is not stage.first_divergence, row.verdict == "passed", -size if math.isfinite(size) else unknown

    failing = sum(row.verdict != "passed" for row in stage.rows)
    count = min(failing + MOST_PASSED, MOST_ROWS) if verbose else min(failing, FEW_ROWS)
    kept = {id(row) for row in sorted(stage.rows, key=rank)[:count]}
    return [row for row in stage.rows if id(row) in kept]


def _left_out(stage: Stage, chosen: Sequence[Row]) -> list[str]:
    """Returns the numbers of rows that a table leaves out."""
    more = [row.verdict == "passed" for row in stage.rows if all(row is not one for one in chosen)]
    counts = {"that pass": sum(more), "that don't": len(more) - sum(more)}
    return [f"{count} more {which}" for which, count in counts.items() if count]


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2e}" if math.isfinite(value) else str(value)
