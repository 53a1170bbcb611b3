"""Proves pairs one after another, keeps a row of each in a CSV file, and sums them up between the marks of a page."""

from __future__ import annotations

import csv
import io
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jax_transformer.proof import Result, Task, UnknownOperation, decide

Marks = tuple[str, str]
"""The lines of a page before and after a table."""


class AnyFault(Protocol):
    """Holds a program with a changed line, and the right one."""

    @property
    def name(self) -> str: ...

    def task(self) -> Task:
        """Lowers both programs."""

    def weights(self) -> Mapping[str, np.ndarray]:
        """Returns weights on which a difference is measured in float64."""

    def place(self, result: Result) -> tuple[str, str]:
        """Returns the operation and the text of the line at which the faulty program parts."""

    def is_located(self, result: Result) -> bool:
        """Returns whether the place is the expected one."""


@dataclass(frozen=True)
class Row:
    """What came of a pair or a fault."""

    cells: tuple[str, ...]
    is_right: bool
    is_located: bool = True
    is_unshown: bool = False
    """Whether 60 digits aren't expected to show a difference, which makes the verdict unknown."""

    def __str__(self) -> str:
        return " | ".join(self.cells)


Cells = Sequence[str]
FAULT_COLUMNS = ("fault", "from", "verdict", "float64 differs by", "found at", "in the line", "as expected")


@dataclass(frozen=True)
class Table:
    """Rows that a file next to the page keeps, and how the page sums them up."""

    file: str
    """The CSV file, in the folder tables/ next to the page."""
    marks: Marks
    columns: tuple[str, ...]
    summarize: Callable[[Sequence[dict[str, str]]], Iterable[str]]
    """Rows as dicts by column → lines of Markdown."""

    def as_csv(self, rows: Sequence[Cells]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *rows])
        return text.getvalue()

    def on_page(self, text: str, note: str = "") -> list[str]:
        """Returns the lines between the marks, from the text of the CSV file and what it can't say."""
        rows = list(csv.DictReader(io.StringIO(text)))
        return [*self.summarize(rows), "", *([note, ""] if note else []), f"[All {len(rows)} rows](tables/{self.file})"]

    def write(self, page: Path, rows: Sequence[Cells], note: str = "") -> None:
        """Writes the CSV file, and its summary between the marks of the page."""
        text, file = self.as_csv(rows), page.parent / "tables" / self.file
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        put(page, self.marks, self.on_page(text, note))


def markdown(columns: Cells, rows: Iterable[Sequence[object]]) -> list[str]:
    """Returns the lines of a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def by(column: str, rows: Iterable[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """Groups rows by the value of a column, in order of appearance."""
    groups: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def timed(lower: Any, weights: Mapping[str, np.ndarray] | None = None) -> tuple[Task | None, Result, float]:
    """Lowers and decides; an operation that isn't known leaves the verdict unknown.

    Args:
      weights: those of both programs, on which a difference is measured in float64.
    """
    start = time.process_time()
    try:
        task: Task = lower()
        result = decide(replace(task, own=None if weights is None else (weights, weights)))
    except UnknownOperation as error:
        return None, Result("unknown", reason=str(error)), time.process_time() - start
    return task, result, time.process_time() - start


def row_of_fault(source: str, fault: AnyFault, unshown: frozenset[str] | Mapping[str, str] = frozenset()) -> Row:
    """Proves nothing of a fault, if all is well.

    Args:
      source: where it comes from.
      unshown: the names of faults that 60 digits don't show.
    """
    task, result, _ = timed(fault.task, fault.weights())
    operation, line = fault.place(result) if task is not None else ("", "")
    witness = None if result.difference is None else result.difference.float64
    size = "–" if witness is None or math.isnan(witness) else f"{witness:.0e}"
    is_located = result.difference is not None and fault.is_located(result)
    cells = fault.name, source, result.verdict, size, operation, line, "yes" if is_located else "no"
    return Row(cells, result.verdict == "refuted", is_located, fault.name in unshown)


def summarize_faults(rows: Sequence[dict[str, str]]) -> list[str]:
    """Counts the verdicts on faults, and names those that are unlike the rest."""
    refuted = sum(row["verdict"] == "refuted" for row in rows)
    proven = sum(row["verdict"] == "proven" for row in rows)
    located = sum(row["as expected"] == "yes" for row in rows)
    rest = "; the rest differ in a field, by less than 60 digits show" if refuted + proven < len(rows) else ""
    lines = [
        f"{refuted} of {len(rows)} faults are refuted, and {proven} are proven equal{rest}. {located} "
        f"({located / len(rows):.1%}) are found at the operation and the line that were expected."
    ]
    unlike = [row for row in rows if row["verdict"] != "refuted" or row["as expected"] != "yes"]
    if unlike:
        cells = (
            [row["fault"], row["from"], row["verdict"], f"`{row['in the line']}`", row["as expected"]] for row in unlike
        )
        lines += [
            "",
            "Unlike the rest:",
            "",
            *markdown(("fault", "from", "verdict", "in the line", "as expected"), cells),
        ]
    return lines


def put(page: Path, marks: Marks, lines: Sequence[str]) -> None:
    """Writes lines between two marks of a page."""
    begin, end = marks
    before, _, after = re.split(f"{re.escape(begin)}|{re.escape(end)}", page.read_text(encoding="utf-8"))
    page.write_text("\n".join([before + begin, "", *lines, "", end + after]), encoding="utf-8")
