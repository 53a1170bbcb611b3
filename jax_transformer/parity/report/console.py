"""A report for a terminal: the worst first."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jax_transformer.parity.gates.stages import Row, Stage
from jax_transformer.parity.report.console_faults import REPLAY, Fact, told
from jax_transformer.parity.report.report import Report

STYLES = {"passed": "green", "diverged": "bold red", "inconclusive": "yellow"}
MARKS = {"passed": "✓", "diverged": "✗", "inconclusive": "?"}
MOST_ROWS = 40
"""Of a table; what passes is left out first, then the smaller errors."""
MOST_PASSED = 8
"""Of those in a table that pass: the largest errors."""
MOST_REASONS = 4
"""Of single arrays, below a stage."""
WIDE = 110
"""Columns from which on a table has all of its own."""


def show(report: Report, console: Console) -> None:
    """Prints the verdict, what diverged and why, the stages, what was compared in execution order, and the
    environment."""
    _print(_headline(report), console, STYLES[report.verdict])
    _print_facts([("doubt", doubt) for doubt in report.doubts], console)
    for facts in filter(None, [_local(report), *told(report)]):
        _print_facts(facts, console)
        _print("", console)
    for line, stage in zip(_funnel(report.stages), report.stages, strict=True):
        _print(line, console, STYLES[stage.verdict])
        for reason in (*stage.reasons, *_counted(stage)):
            _print(f"    {reason}", console)
    for stage in _tabled(report):
        _print("", console)
        console.print(_table(stage, console.width))
    if console.width < WIDE:
        _print(f"\n{WIDE} columns have room for the largest error and its place, too.", console)
    _print_environment(report, console)


def _tabled(report: Report) -> list[Stage]:
    """The stages whose arrays are listed: those that don't pass; of a report without any, those with something to
    see."""
    failing = [stage for stage in report.stages if stage.rows and stage.verdict != "passed"]
    return failing or [
        stage for stage in report.stages if any(row.error is not None and not row.error.exact for row in stage.rows)
    ]


def _print(text: str, console: Console, style: str = "") -> None:
    console.print(Text(text, style=style), highlight=False)


def _print_facts(facts: Sequence[Fact], console: Console) -> None:
    """Labels in a column, and texts beside them that fit into the console; commands stay in one piece, to be copied."""
    wrapper = textwrap.TextWrapper(max(40, console.width - 14), break_long_words=False, break_on_hyphens=False)
    for label, text in facts:
        for i, line in enumerate([text] if label == REPLAY else wrapper.wrap(text)):
            console.print(Text(f"  {'' if i else label:<10}  {line}"), highlight=False, soft_wrap=True)


def _headline(report: Report) -> str:
    sides = f"{report.candidate} against {report.reference}"
    if report.verdict == "passed":
        return f"parity: {sides}: {sum(len(stage.rows) for stage in report.stages):,} arrays within their gates"
    found = _first(report)
    where = "" if found is None else f"\nfirst at {found[1].name} ({_seen(*found)}): {describe(found[1])}"
    return f"{report.verdict}: {sides}{where}"


def _first(report: Report) -> tuple[Stage, Row] | None:
    """What diverged first, and in which stage."""
    found = ((stage, stage.first_divergence) for stage in report.stages)
    return next(((stage, row) for stage, row in found if row is not None), None)


def _seen(stage: Stage, row: Row) -> str:
    return f"{stage.name}, {row.case}" if row.case else stage.name


def _local(report: Report) -> list[Fact]:
    """The errors of what diverged first, where no fault tells them."""
    found = _first(report)
    depth = next((depth for depth in report.depth if found is not None and depth.name == found[1].name), None)
    if report.faults or depth is None:
        return []
    measured = {
        "propagated": depth.propagated,
        "local of the candidate": depth.local_candidate,
        "local of the reference": depth.local_reference,
    }
    return [("error", ", ".join(f"{name} {value:.2e}" for name, value in measured.items() if not math.isnan(value)))]


def describe(row: Row) -> str:
    """What is wrong with an array, in words."""
    parts = [row.reason] if row.reason else []
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


def _funnel(stages: Sequence[Stage]) -> list[str]:
    """A line for each stage, their names and numbers in columns."""
    name = max((len(stage.name) for stage in stages), default=0) + 1
    digits = len(str(max((len(stage.rows) for stage in stages), default=0)))
    lines = []
    for stage in stages:
        passed = sum(row.verdict == "passed" for row in stage.rows)
        counted = f"{passed:>{digits}} of {len(stage.rows):>{digits}} arrays pass" if stage.rows else "not compared"
        lines.append(f"{MARKS[stage.verdict]} {stage.name + ':':<{name}} {counted}")
    return lines


def _counted(stage: Stage) -> list[str]:
    """The reasons of single arrays, each once, and how many more there are."""
    names: dict[str, list[str]] = {}
    for row in stage.rows:
        if row.reason:
            names.setdefault(row.reason, []).append(row.name)
    told = [f"{of[0]}{f' and {len(of) - 1} more' if len(of) > 1 else ''}: {reason}" for reason, of in names.items()]
    left = len(told) - MOST_REASONS
    return [*told[:MOST_REASONS], *([f"and {left} more reason{'s' if left > 1 else ''}"] if left > 0 else [])]


def _table(stage: Stage, width: int) -> Table:
    """The stage's arrays in execution order; a narrow one has fewer columns."""
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
    chosen = _chosen(stage)
    for row in chosen:
        cells = _cells(row)
        style = None if row.verdict == "passed" else STYLES[row.verdict]
        table.add_row(MARKS[row.verdict], *(Text(cells[column]) for column in columns), style=style)
    table.caption = ", ".join(_left_out(stage, chosen)) or None
    return table


def _cells(row: Row) -> dict[str, str]:
    """By column; what can't be compared has no numbers."""
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


def _chosen(stage: Stage) -> list[Row]:
    """As many as are shown, in order: what diverged first, what doesn't pass, and then the largest errors."""

    def rank(row: Row) -> tuple[bool, bool, float]:
        size = row.times_allowed
        unknown = 0.0 if row.verdict == "passed" else -math.inf
        return row is not stage.first_divergence, row.verdict == "passed", -size if math.isfinite(size) else unknown

    failing = sum(row.verdict != "passed" for row in stage.rows)
    kept = {id(row) for row in sorted(stage.rows, key=rank)[: min(failing + MOST_PASSED, MOST_ROWS)]}
    return [row for row in stage.rows if id(row) in kept]


def _left_out(stage: Stage, chosen: Sequence[Row]) -> list[str]:
    """What a table doesn't show."""
    more = [row.verdict == "passed" for row in stage.rows if all(row is not one for one in chosen)]
    counts = {"that pass": sum(more), "that don't": len(more) - sum(more)}
    return [f"{count} more {what}" for what, count in counts.items() if count]


def _print_environment(report: Report, console: Console) -> None:
    if report.environment or report.sha256:
        _print("", console)
    if report.environment:
        _print(", ".join(f"{name} {value}" for name, value in report.environment.items()), console)
    for path, digest in report.sha256.items():
        _print(f"sha256 {digest} {path}", console)


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2e}" if math.isfinite(value) else str(value)
