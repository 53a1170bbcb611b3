"""Proves every published system and every family of transformers, stage by stage, and prints what came of it.

    python parity_tests/proof/systems_table.py [--names harvard marian …] [--write docs/proof_tables.md]

All of them take some ten minutes on two cores. Exit code 1 if a stage isn't proven."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jax_transformer.parity.run_results import Pair
from jax_transformer.parity.stages.proof import prove_pair
from jax_transformer.proof import Certificate
from parity_tests import families, systems
from parity_tests.proof.tables import put

MARKS = "<!-- systems: written by parity_tests/proof/systems_table.py -->", "<!-- end of systems -->"
STAGES = ("forward", "loss", "gradients", "step 1", "step 3")
HEAD = (
    f"| program | {' | '.join(STAGES)} | axioms | error below | CPU seconds |",
    f"|---|{'---|' * len(STAGES)}---|---|---|",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="*", help="systems and families; default: all")
    parser.add_argument("--write", type=Path, help="the document whose table is made anew")
    options = parser.parse_args()
    rows, all_proven = [], True
    with tempfile.TemporaryDirectory() as folder:
        for name, pair in pairs(options.names, Path(folder)):
            began = time.process_time()
            certificate = prove_pair(pair)
            rows.append(row(name, certificate, time.process_time() - began))
            all_proven &= certificate.verdict == "proven"
            print(rows[-1], flush=True)
    if options.write:
        put(options.write, {MARKS: [*HEAD, *rows]})
    return 0 if all_proven else 1


def pairs(names: list[str] | None, folder: Path) -> Iterator[tuple[str, Pair]]:
    """Yields both sides of each program."""
    for name in systems.SYSTEMS | systems.TIED:
        if names is None or name in names:
            case = systems.make_case(name)
            sides = case.candidate, case.reference
            yield f"`{name}`", Pair(case.config, case.model.params, *sides, case.model.generation)
    for name in families.FAMILIES:
        if names is None or name in names:
            family = families.make_case(name, 0, folder)
            config = family.model.config
            sides = family.candidate, family.reference
            yield f"transformers, `{name}`", Pair(config, family.model.params, *sides, family.model.generation)


def row(name: str, certificate: Certificate, seconds: float) -> str:
    cells = []
    for stage in STAGES:
        found = next(each for each in certificate.stages if each.name == stage)
        why = found.reason or f"{len(found.different)} differ"
        cells.append(str(len(found.equal)) if found.verdict == "proven" else f"{found.verdict}: {why}")
    bounds = [each.log2_error for each in certificate.tasks if each.log2_error < 0]
    error = f"2^{math.ceil(math.log2(sum(2.0**each for each in bounds)))}"
    return f"| {name} | {' | '.join(cells)} | {', '.join(certificate.axioms)} | {error} | {seconds:.0f} |"


if __name__ == "__main__":
    sys.exit(main())
