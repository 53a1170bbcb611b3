"""Proves whole programs of this library against each other, refutes them with a fault, and lists the verdicts.

    python parity_tests/proof/own_table.py [--names packed cache …] [--write docs/proof_tables.md]

All of them take some eight minutes of one core. --write renews the files tables/proof_programs.csv and
tables/proof_program_faults.csv next to a page, and their summaries between its marks. Exit code 1 if a pair isn't
proven, or a fault isn't refuted."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

import jax

from jax_transformer.proof import Result, Task
from proof.own_faults import FAULTS
from proof.own_models import MODELS, OwnPair
from proof.own_pairs import PAIRS
from proof.tables import FAULT_COLUMNS, Row, Table, by, markdown, row_of_fault, summarize_faults, timed

COMPARED = ("logits", "output", "loss", "gradient of", "after step 1", "after step 3")
"""Beginnings of the names of outputs → what the table calls them."""
Found = tuple[OwnPair, Task | None, Result, float]


def summarize_pairs(rows: Sequence[dict[str, str]]) -> list[str]:
    """Counts the pairs that are proven in each model that they were tried in, by what is compared."""
    counts = (
        [compared, len(listed), sum(map(_is_proven_everywhere, listed)), sum(_arrays(row) for row in listed)]
        for compared, listed in by("compared", rows).items()
    )
    casts = [f"{row['two programs']} ({row['left out']})" for row in rows if row["left out"] != "nothing"]
    return [
        *markdown(("compared", "pairs of programs", "proven", "arrays"), counts),
        "",
        f"{sum(map(_is_proven_everywhere, rows))} of {len(rows)} are proven in each model that they were tried in. "
        f"Casts are left out in: {'; '.join(casts) or 'none'}.",
    ]


def _is_proven_everywhere(row: dict[str, str]) -> bool:
    return all(row[model].isdigit() or row[model] == "–" for model in MODELS)


def _arrays(row: dict[str, str]) -> int:
    return sum(int(row[model]) for model in MODELS if row[model].isdigit())


PROGRAMS = Table(
    "proof_programs.csv",
    ("<!-- own pairs: written by parity_tests/proof/own_table.py -->", "<!-- end of own pairs -->"),
    ("two programs", "compared", *MODELS, "left out", "axioms", "error below", "CPU seconds"),
    summarize_pairs,
)
PROGRAM_FAULTS = Table(
    "proof_program_faults.csv",
    ("<!-- own faults: written by parity_tests/proof/own_table.py -->", "<!-- end of own faults -->"),
    FAULT_COLUMNS,
    summarize_faults,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="*", default=[""], help="parts of the names of pairs and faults; default: all")
    parser.add_argument("--write", type=Path, help="the page; tables/ next to it gets every row")
    options = parser.parse_args()

    def is_chosen(name: str) -> bool:
        return any(part in name for part in options.names)

    with jax.enable_x64(True):
        names = dict.fromkeys(pair.name for pair in PAIRS if is_chosen(pair.name))
        rows = [shown(row_of_pairs([pair for pair in PAIRS if pair.name == name])) for name in names]
        faults = [shown(row_of_fault(fault.pair, fault)) for fault in FAULTS if is_chosen(fault.name)]
    if options.write:
        PROGRAMS.write(options.write, [row.cells for row in rows])
        if faults:
            PROGRAM_FAULTS.write(options.write, [row.cells for row in faults])
    return int(not all(row.is_right for row in (*rows, *faults)))


def shown(row: Row) -> Row:
    print(row, flush=True)
    return row


def row_of_pairs(pairs: Sequence[OwnPair]) -> Row:
    """Proves a pair of programs in each model."""
    found: list[Found] = [(pair, *timed(pair.task)) for pair in pairs]
    cells = {pair.model: cell_of(result) for pair, _, result, _ in found}
    axioms = sorted({axiom for *_, result, _ in found for axiom in result.axioms})
    bounds = [result.log2_error for *_, result, _ in found]
    row = (
        pairs[0].name, compared(found), *(cells.get(model, "–") for model in MODELS), left_out(found),
        ", ".join(axioms), f"2^{math.ceil(max(bounds))}", f"{sum(seconds for *_, seconds in found):.0f}",
    )  # fmt: skip
    return Row(row, all(is_proven(result) for *_, result, _ in found))


def is_proven(result: Result) -> bool:
    """Returns whether all outputs of both programs are the same function."""
    return result.verdict == "proven" and not result.alone


def cell_of(result: Result) -> str:
    why = result.reason or f"{len(result.different)} of {len(result.different) + len(result.equal)} differ"
    alone = f"{len(result.alone)} are on one side alone"
    return str(len(result.equal)) if is_proven(result) else alone if result.alone else f"{result.verdict}: {why}"


def compared(found: Sequence[Found]) -> str:
    """Names the outputs of the programs."""
    names = {name for _, _, result, _ in found for name in (*result.equal, *result.different)}
    stages = [stage for stage in COMPARED if any(name.startswith(stage) for name in names)]
    return ", ".join(TITLES.get(stage, stage) for stage in stages)


TITLES = {"output": "log-probabilities", "gradient of": "gradients", "after step 1": "step 1", "after step 3": "step 3"}


def left_out(found: Sequence[Found]) -> str:
    """Counts the casts to narrower types, which a proof leaves out."""
    dtypes: dict[str, int] = {}
    for _, task, *_ in found[:1]:
        for cast in () if task is None else (*task.candidate.narrowing, *task.reference.narrowing):
            dtype = cast.partition(" (")[0]
            dtypes[dtype] = dtypes.get(dtype, 0) + 1
    return ", ".join(f"{count} casts to {dtype}" for dtype, count in dtypes.items()) or "nothing"


if __name__ == "__main__":
    sys.exit(main())
