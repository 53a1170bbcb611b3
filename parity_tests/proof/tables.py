"""Proves pairs one after another, makes a row of a table of each, and puts tables between the marks of a page."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jax_transformer.proof import Result, Task, UnknownOperation, decide

Marks = tuple[str, str]
"""The lines of a page before and after a table."""


class AnyFault(Protocol):
    """A program with a changed line, beside a right one."""

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
        return f"| {' | '.join(self.cells)} |"


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
    cells = fault.name, source, result.verdict, size, operation, f"`{line}`", "yes" if is_located else "**no**"
    return Row(tuple(map(escaped, cells)), result.verdict == "refuted", is_located, fault.name in unshown)


def table_of_faults(rows: Sequence[Row]) -> Iterator[str]:
    yield "| fault | from | verdict | float64 differs by | found at | in the line | as expected |"
    yield "|---|---|---|---|---|---|---|"
    yield from map(str, rows)
    located, refuted = sum(row.is_located for row in rows), sum(row.is_right for row in rows)
    proven = sum("proven" in row.cells for row in rows)
    others = "; the others differ in a field, by less than 60 digits show" if refuted + proven < len(rows) else ""
    yield ""
    yield (
        f"{refuted} of {len(rows)} faults are refuted, and {proven} are proven equal{others}. {located} "
        f"({located / len(rows):.1%}) are found at the operation and the line that were expected."
    )


def escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def put(page: Path, tables: Mapping[Marks, Sequence[str]]) -> None:
    """Writes tables between their marks."""
    text = page.read_text(encoding="utf-8")
    for (begin, end), lines in tables.items():
        before, _, after = re.split(f"{re.escape(begin)}|{re.escape(end)}", text)
        text = "\n".join([before + begin, "", *lines, "", end + after])
    page.write_text(text, encoding="utf-8")
