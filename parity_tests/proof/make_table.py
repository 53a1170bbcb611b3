"""Proves every pair that is the same function, refutes every fault, and tells what came of each.

    python parity_tests/proof/make_table.py [--write docs/proof_tables.md]

Takes about a minute. --write renews the tables between the marks of a page. Exit code 1 if a pair isn't proven, or a
fault isn't refuted."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

import jax
import torch

from proof.listed_faults import SOURCES, UNSHOWN
from proof.pairs import Pair
from proof.same_functions import SUBJECTS
from proof.tables import Row, escaped, put, row_of_fault, table_of_faults, timed

PAIRS = "<!-- pairs: written by parity_tests/proof/make_table.py -->", "<!-- end of pairs -->"
FAULTS = "<!-- faults: written by parity_tests/proof/make_table.py -->", "<!-- end of faults -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the page whose tables are made anew")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with jax.enable_x64(True):
        pairs = [row_of_pair(pair) for subject in SUBJECTS.values() for pair in subject]
        faults = [row_of_fault(source, fault, UNSHOWN) for source, listed in SOURCES.items() for fault in listed]
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


TITLES = {"jax": "JAX", "torch": "PyTorch"}


def table_of_pairs(rows: list[Row]) -> Iterator[str]:
    yield "| two ways to write it | in | operations | verdict | axioms | error below | seconds |"
    yield "|---|---|---|---|---|---|---|"
    yield from map(str, rows)
    yield ""
    yield f"{sum(row.is_right for row in rows)} of {len(rows)} pairs are proven."


if __name__ == "__main__":
    sys.exit(main())
