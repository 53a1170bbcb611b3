"""Proves every pair that is the same function, refutes every fault, and lists the verdicts.

    python parity_tests/proof/make_table.py [--write docs/proof_tables.md]

Takes about a minute. --write renews the files tables/proof_pairs.csv and tables/proof_faults.csv next to a page, and
their summaries between its marks. Exit code 1 if a pair isn't proven, or a fault isn't refuted."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

import jax
import torch

from proof.listed_faults import SOURCES, UNSHOWN
from proof.pairs import Pair
from proof.same_functions import SUBJECTS
from proof.tables import FAULT_COLUMNS, Row, Table, by, markdown, row_of_fault, summarize_faults, timed


def summarize_pairs(rows: Sequence[dict[str, str]]) -> list[str]:
    """Counts the proven pairs of each two frameworks."""
    counts = (
        [frameworks, len(listed), sum(row["verdict"] == "proven" for row in listed)]
        for frameworks, listed in by("in", rows).items()
    )
    proven = sum(row["verdict"] == "proven" for row in rows)
    return [*markdown(("in", "pairs", "proven"), counts), "", f"{proven} of {len(rows)} pairs are proven."]


PAIRS = Table(
    "proof_pairs.csv",
    ("<!-- pairs: written by parity_tests/proof/make_table.py -->", "<!-- end of pairs -->"),
    ("two ways to write it", "in", "operations", "verdict", "axioms", "error below", "seconds"),
    summarize_pairs,
)
FAULTS = Table(
    "proof_faults.csv",
    ("<!-- faults: written by parity_tests/proof/make_table.py -->", "<!-- end of faults -->"),
    FAULT_COLUMNS,
    summarize_faults,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the page; tables/ next to it gets every row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with jax.enable_x64(True):
        pairs = [row_of_pair(pair) for subject in SUBJECTS.values() for pair in subject]
        faults = [row_of_fault(source, fault, UNSHOWN) for source, listed in SOURCES.items() for fault in listed]
    for table, rows in ((PAIRS, pairs), (FAULTS, faults)):
        cells = [row.cells for row in rows]
        print("\n".join([*map(str, rows), "", *table.on_page(table.as_csv(cells))]), end="\n\n")
        if options.write:
            table.write(options.write, cells)
    return int(not all(row.is_right or row.is_unshown for row in (*pairs, *faults)))


def row_of_pair(pair: Pair) -> Row:
    task, result, seconds = timed(pair.task)
    axioms = ", ".join(result.axioms) or "none"
    bound = f"2^{result.log2_error:.0f}" if result.verdict == "proven" else result.reason
    frameworks = f"{TITLES[pair.candidate.framework]}, {TITLES[pair.reference.framework]}"
    operations = "–" if task is None else f"{len(task.candidate.operations)}, {len(task.reference.operations)}"
    cells = pair.name, frameworks, operations, result.verdict, axioms, bound, f"{seconds:.2f}"
    return Row(cells, result.verdict == "proven")


TITLES = {"jax": "JAX", "torch": "PyTorch"}


if __name__ == "__main__":
    sys.exit(main())
