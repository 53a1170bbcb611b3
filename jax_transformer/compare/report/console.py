"""The text of a report, for terminals and test logs: the verdict, the causes, the stages, and the worst rows."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jax_transformer.compare.gates.stages import Row, Stage
from jax_transformer.compare.report.console_faults import REPLAY, Fact, causes_and_effect, notes

if TYPE_CHECKING:
    from jax_transformer.compare.report.report import Report

STYLES = {"passed": "green", "diverged": "bold red", "inconclusive": "yellow"}
PROOF_MARKS = {"proven": "✓", "refuted": "✗", "unknown": "?"}
MARKS = {"passed": "✓", "diverged": "✗", "inconclusive": "?"}
FEW_ROWS = 6
"""The most rows of a table that isn't verbose; all of them fail."""
MOST_ROWS = 40
"""The most rows of a verbose table; rows that pass are left out first, then the smaller errors."""
MOST_PASSED = 8
"""The most passing rows of a verbose table: those with the largest errors."""
MOST_REASONS = 4
"""The most reasons of single arrays listed below a stage."""
WIDE = 110
"""Columns from which on a table shows the largest error and its place."""


def show(report: Report, console: Console, *, verbose: bool = False) -> None:
    """Prints the verdict, the causes, a line for each stage, and the worst of the rows that fail.

    Args:
      verbose: print passing rows, versions and checksums, too; otherwise the last line says where to find them.
    """
    _print(_headline(report), console, STYLES[report.verdict])
    _print_facts([("doubt", doubt) for doubt in report.doubts], console)
    for facts in filter(None, [_local(report), *causes_and_effect(report)]):
        _print_facts(facts, console)
        _print("", console)
    if report.notes or report.remarks:
        _print_facts([*notes(report), *(("remark", remark) for remark in report.remarks)], console)
        _print("", console)
    for line, stage in zip(_stage_lines(report.stages), report.stages, strict=True):
        _print(line, console, STYLES[stage.verdict])
        for reason in (*stage.reasons, *_row_reasons(stage)):
            _print(f"    {reason}", console)
    if report.proof is not None:
        first, *rest = report.proof.summary()
        width = max((len(stage.name) for stage in report.stages), default=5) + 1
        _print(f"{PROOF_MARKS[report.proof.verdict]} {'proof:':{width}} {first}", console)
        for line in rest:
            _print(line, console)
    for stage in _tabled(report, verbose):
        _print("", console)
        console.print(_table(stage, console.width, verbose))
    if verbose:
        if console.width < WIDE:
            _print(f"\n{WIDE} columns have room for the largest error and its place, too.", console)
        _print_environment(report, console)
    else:
        _print(f"\n{_rest(report)}", console)


def _tabled(report: Report, verbose: bool) -> list[Stage]:
    """Returns the stages to print tables of: those with failing rows; if there are none, verbose, those with errors."""
    failing = [stage for stage in report.stages if any(row.verdict != "passed" for row in stage.rows)]
    if failing or not verbose:
        return failing
    return [
        stage for stage in report.stages if any(row.error is not None and not row.error.exact for row in stage.rows)
    ]


def _rest(report: Report) -> str:
    """Returns the line that says what was left out, and where to find it."""
    passed = sum(row.verdict == "passed" for stage in report.stages for row in stage.rows)
    parts = [f"{passed:,} passing row{'' if passed == 1 else 's'}"] if passed else []
    parts += ["versions"] if report.environment else []
    parts += ["checksums"] if report.sha256 else []
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]])) or "All rows"
    return f"{listed}: --verbose (in Python, show(verbose=True)), or the report as JSON or HTML"


def _print(text: str, console: Console, style: str = "") -> None:
    console.print(Text(text, style=style), highlight=False)


def _print_facts(facts: Sequence[Fact], console: Console) -> None:
    """Prints labels in a column and their texts beside them, wrapped; commands stay on one line, to be copied."""
    wrapper = textwrap.TextWrapper(max(40, console.width - 14), break_long_words=False, break_on_hyphens=False)
    for label, text in facts:
        for i, line in enumerate([text] if label == REPLAY else wrapper.wrap(text)):
            console.print(Text(f"  {'' if i else label:<10}  {line}"), highlight=False, soft_wrap=True)


def _headline(report: Report) -> str:
    sides = f"{report.candidate} against {report.reference}"
    if report.verdict == "passed":
        compared = sum(len(stage.rows) for stage in report.stages)
        arrays = "1 array within its gate" if compared == 1 else f"{compared:,} arrays within their gates"
        return f"parity: {sides}: {arrays}{_closest(report)}"
    first = _first_divergence(report)
    if first is None and report.verdict == "diverged":
        return f"{report.verdict}: {sides}\ntwo functions, though no float shows it: see the proof"
    where = "" if first is None else f"\nfirst at {first[1].name} ({_place(*first)}): {describe(first[1])}"
    return f"{report.verdict}: {sides}{where}"


def _closest(report: Report) -> str:
    """Returns a line on the row that comes closest to its gate; "" if all arrays are equal."""
    rows = [(stage, row) for stage in report.stages for row in stage.rows if 0 < row.times_allowed < math.inf]
    if not rows:
        return ""
    stage, row = max(rows, key=lambda pair: pair[1].times_allowed)
    return f"\nclosest at {row.name} ({_place(stage, row)}): {describe(row)}"


def _first_divergence(report: Report) -> tuple[Stage, Row] | None:
    """Returns the first stage that diverges, and its first row that does."""
    rows = ((stage, stage.first_divergence) for stage in report.stages)
    return next(((stage, row) for stage, row in rows if row is not None), None)


def _place(stage: Stage, row: Row) -> str:
    return f"{stage.name}, {row.case}" if row.case else stage.name


def _local(report: Report) -> list[Fact]:
    """Returns the errors of the first divergence if no fault gives them."""
    first = _first_divergence(report)
    depth = next((depth for depth in report.depth if first is not None and depth.name == first[1].name), None)
    if report.faults or depth is None:
        return []
    measured = {
        "propagated": depth.propagated,
        "local of the candidate": depth.local_candidate,
        "local of the reference": depth.local_reference,
    }
    return [("error", ", ".join(f"{name} {value:.2e}" for name, value in measured.items() if not math.isnan(value)))]


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


def _stage_lines(stages: Sequence[Stage]) -> list[str]:
    """Returns a line for each stage, names and numbers aligned."""
    name = max((len(stage.name) for stage in stages), default=0) + 1
    digits = len(str(max((len(stage.rows) for stage in stages), default=0)))
    lines = []
    for stage in stages:
        passed = sum(row.verdict == "passed" for row in stage.rows)
        counted = f"{passed:>{digits}} of {len(stage.rows):>{digits}} arrays pass" if stage.rows else "not compared"
        lines.append(f"{MARKS[stage.verdict]} {stage.name + ':':<{name}} {counted}")
    return lines


def _row_reasons(stage: Stage) -> list[str]:
    """Returns the reasons of single rows, each once with the number of rows that have it."""
    names: dict[str, list[str]] = {}
    for row in stage.rows:
        if row.reason:
            names.setdefault(row.reason, []).append(row.name)
    lines = [f"{rows[0]}{f' and {len(rows) - 1} more' if len(rows) > 1 else ''}: {why}" for why, rows in names.items()]
    left = len(lines) - MOST_REASONS
    return [*lines[:MOST_REASONS], *([f"and {left} more reason{'s' if left > 1 else ''}"] if left > 0 else [])]


def _table(stage: Stage, width: int, verbose: bool) -> Table:
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


def _print_environment(report: Report, console: Console) -> None:
    if report.environment or report.sha256:
        _print("", console)
    if report.environment:
        _print(", ".join(f"{name} {value}" for name, value in report.environment.items()), console)
    for path, digest in report.sha256.items():
        _print(f"sha256 {digest} {path}", console)


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2e}" if math.isfinite(value) else str(value)
