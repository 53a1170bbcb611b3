"""Proves every pair that is the same function, refutes every fault, and tells what came of each.

    python parity_tests/proof/make_table.py [--write docs/proof_tables.md]

Takes about a minute. --write renews the tables between the marks of a page. Exit code 1 if a pair isn't proven, or a
fault isn't refuted."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

import jax
import torch

from jax_transformer.proof import Result, Task, UnknownOperation, decide
from proof.faults import Fault
from proof.listed_faults import SOURCES, UNSHOWN
from proof.pairs import Pair
from proof.same_functions import SUBJECTS

PAIRS = "<!-- pairs: written by parity_tests/proof/make_table.py -->", "<!-- end of pairs -->"
FAULTS = "<!-- faults: written by parity_tests/proof/make_table.py -->", "<!-- end of faults -->"


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the page whose tables are made anew")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with jax.enable_x64(True):
        pairs = [row_of_pair(pair) for subject in SUBJECTS.values() for pair in subject]
        faults = [row_of_fault(source, fault) for source, listed in SOURCES.items() for fault in listed]
    tables = {PAIRS: list(table_of_pairs(pairs)), FAULTS: list(table_of_faults(faults))}
    for lines in tables.values():
        print("\n".join(lines), end="\n\n")
    if options.write:
        put(options.write, tables)
    return int(not all(row.is_right or row.is_unshown for row in (*pairs, *faults)))


def row_of_pair(pair: Pair) -> Row:
    task, result, seconds = timed(pair.task)
    axioms = ", ".join(result.axioms) or "none"
    bound = f"2^{result.log2_error:.0f}" if result.verdict == "proven" else result.reason
    frameworks = f"{TITLES[pair.candidate.framework]}, {TITLES[pair.reference.framework]}"
    operations = "–" if task is None else f"{len(task.candidate.operations)}, {len(task.reference.operations)}"
    cells = pair.name, frameworks, operations, result.verdict, axioms, bound, f"{seconds:.2f}"
    return Row(tuple(map(escaped, cells)), result.verdict == "proven")


def row_of_fault(source: str, fault: Fault) -> Row:
    task, result, _ = timed(fault.task, fault)
    operation, line = fault.place(result) if task is not None else ("", "")
    distance = None if result.difference is None else result.difference.float64
    size = "–" if distance is None else f"{distance:.0e}"
    is_located = result.difference is not None and fault.is_located(result)
    cells = fault.name, source, result.verdict, size, operation, f"`{line}`", "yes" if is_located else "**no**"
    return Row(tuple(map(escaped, cells)), result.verdict == "refuted", is_located, fault.name in UNSHOWN)


TITLES = {"jax": "JAX", "torch": "PyTorch"}


def timed(lower: object, fault: Fault | None = None) -> tuple[Task | None, Result, float]:
    """Lowers and decides; an operation that isn't known leaves the verdict unknown."""
    start = time.process_time()
    try:
        task: Task = lower()  # type: ignore[operator]
        own = None if fault is None else (fault.pair().weights(),) * 2
        result = decide(replace(task, own=own))
    except UnknownOperation as error:
        return None, Result("unknown", reason=str(error)), time.process_time() - start
    return task, result, time.process_time() - start


def table_of_pairs(rows: list[Row]) -> Iterator[str]:
    yield "| two ways to write it | in | operations | verdict | axioms | error below | seconds |"
    yield "|---|---|---|---|---|---|---|"
    yield from map(str, rows)
    yield ""
    yield f"{sum(row.is_right for row in rows)} of {len(rows)} pairs are proven."


def table_of_faults(rows: list[Row]) -> Iterator[str]:
    yield "| fault | from | verdict | float64 differs by | found at | in the line | as expected |"
    yield "|---|---|---|---|---|---|---|"
    yield from map(str, rows)
    located, refuted = sum(row.is_located for row in rows), sum(row.is_right for row in rows)
    proven = sum("proven" in row.cells for row in rows)
    yield ""
    yield (
        f"{refuted} of {len(rows)} faults are refuted, and {proven} are proven equal; the others differ in a field, by "
        f"less than 60 digits show. {located} ({located / len(rows):.1%}) are found at the operation and the line that "
        "were expected."
    )


def escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def put(page: Path, tables: dict[tuple[str, str], list[str]]) -> None:
    """Writes tables between their marks."""
    text = page.read_text(encoding="utf-8")
    for (begin, end), lines in tables.items():
        before, _, after = re.split(f"{re.escape(begin)}|{re.escape(end)}", text)
        text = "\n".join([before + begin, "", *lines, "", end + after])
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
