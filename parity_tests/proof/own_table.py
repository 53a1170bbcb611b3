"""Proves whole programs of this library against each other, refutes them with a fault, and tells what came of each.

    python parity_tests/proof/own_table.py [--names packed cache …] [--write docs/proof_tables.md]

All of them take some eight minutes of one core. --write renews the tables between the marks of a page. Exit code 1 if
a pair isn't proven, or a fault isn't refuted."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

import jax

from jax_transformer.proof import Result, Task
from proof.own_faults import FAULTS
from proof.own_models import MODELS, OwnPair
from proof.own_pairs import PAIRS
from proof.tables import Row, escaped, put, row_of_fault, table_of_faults, timed

OWN = "<!-- own pairs: written by parity_tests/proof/own_table.py -->", "<!-- end of own pairs -->"
OWN_FAULTS = "<!-- own faults: written by parity_tests/proof/own_table.py -->", "<!-- end of own faults -->"
COMPARED = ("logits", "output", "loss", "gradient of", "after step 1", "after step 3")
"""Beginnings of the names of outputs → what the table calls them."""
Found = tuple[OwnPair, Task | None, Result, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="*", default=[""], help="parts of the names of pairs and faults; default: all")
    parser.add_argument("--write", type=Path, help="the page whose tables are made anew")
    options = parser.parse_args()

    def is_chosen(name: str) -> bool:
        return any(part in name for part in options.names)

    with jax.enable_x64(True):
        names = dict.fromkeys(pair.name for pair in PAIRS if is_chosen(pair.name))
        rows = [shown(row_of_pairs([pair for pair in PAIRS if pair.name == name])) for name in names]
        faults = [shown(row_of_fault(fault.pair, fault)) for fault in FAULTS if is_chosen(fault.name)]
    tables = {OWN: list(table_of_pairs(rows)), OWN_FAULTS: list(table_of_faults(faults)) if faults else []}
    if options.write:
        put(options.write, tables)
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
    return Row(tuple(map(escaped, row)), all(is_proven(result) for *_, result, _ in found))


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


def table_of_pairs(rows: Sequence[Row]) -> Iterator[str]:
    yield f"| two programs | compared | {' | '.join(MODELS)} | left out | axioms | error below | CPU seconds |"
    yield f"|---|---|{'---|' * len(MODELS)}---|---|---|---|"
    yield from map(str, rows)
    yield ""
    yield f"{sum(row.is_right for row in rows)} of {len(rows)} are proven in each model that they were tried in."


if __name__ == "__main__":
    sys.exit(main())
