"""Proves every published system and every family of transformers, stage by stage, and lists the verdicts.

    python parity_tests/proof/systems_table.py [--names harvard marian …] [--write docs/proof_tables.md]

All of them take some ten minutes on two cores. --write renews the file tables/proof_systems.csv next to a page, and its
summary between the marks of the page. Exit code 1 if a stage isn't proven."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jax_transformer.parity.run_results import Pair
from jax_transformer.parity.stages.proof import prove_pair
from jax_transformer.proof import Certificate
from parity_tests import families, systems
from parity_tests.proof.tables import Table, by, markdown

STAGES = ("forward", "loss", "gradients", "step 1", "step 3")


def summarize(rows: Sequence[dict[str, str]]) -> list[str]:
    """Counts the programs whose arrays are all proven, stage by stage, and names the stages that aren't."""
    counts = (
        [kind, len(listed), *(sum(row[stage].isdigit() for row in listed) for stage in STAGES)]
        for kind, listed in by("kind", rows).items()
    )
    unproven = [
        f"`{row['program']}`, {stage}: {row[stage]}" for row in rows for stage in STAGES if not row[stage].isdigit()
    ]
    arrays = sum(int(row[stage]) for row in rows for stage in STAGES if row[stage].isdigit())
    return [
        *markdown(("programs", "tried", *(f"{stage} proven" for stage in STAGES)), counts),
        "",
        f"{arrays:,} arrays are proven equal, {sum(int(row['CPU seconds']) for row in rows)} CPU seconds together. "
        f"Not proven: {'; '.join(unproven) or 'nothing'}.",
    ]


TABLE = Table(
    "proof_systems.csv",
    ("<!-- systems: written by parity_tests/proof/systems_table.py -->", "<!-- end of systems -->"),
    ("program", "kind", *STAGES, "axioms", "error below", "CPU seconds"),
    summarize,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="*", help="systems and families; default: all")
    parser.add_argument("--write", type=Path, help="the page; tables/ next to it gets every row")
    options = parser.parse_args()
    rows, all_proven = [], True
    with tempfile.TemporaryDirectory() as folder:
        for name, kind, pair in pairs(options.names, Path(folder)):
            began = time.process_time()
            certificate = prove_pair(pair)
            rows.append([name, kind, *cells(certificate), f"{time.process_time() - began:.0f}"])
            all_proven &= certificate.verdict == "proven"
            print(" | ".join(rows[-1]), flush=True)
    if options.write:
        TABLE.write(options.write, rows)
    return 0 if all_proven else 1


def pairs(names: list[str] | None, folder: Path) -> Iterator[tuple[str, str, Pair]]:
    """Yields the name, the kind and both sides of each program."""
    for name in systems.SYSTEMS | systems.TIED:
        if names is None or name in names:
            case = systems.make_case(name)
            sides = case.candidate, case.reference
            yield name, "published", Pair(case.config, case.model.params, *sides, case.model.generation)
    for name in families.FAMILIES:
        if names is None or name in names:
            family = families.make_case(name, 0, folder)
            config = family.model.config
            sides = family.candidate, family.reference
            yield name, "transformers", Pair(config, family.model.params, *sides, family.model.generation)


def cells(certificate: Certificate) -> list[str]:
    stages = []
    for stage in STAGES:
        found = next(each for each in certificate.stages if each.name == stage)
        why = found.reason or f"{len(found.different)} differ"
        stages.append(str(len(found.equal)) if found.verdict == "proven" else f"{found.verdict}: {why}")
    bounds = [each.log2_error for each in certificate.tasks if each.log2_error < 0]
    error = f"2^{math.ceil(math.log2(sum(2.0**each for each in bounds)))}"
    return [*stages, ", ".join(certificate.axioms), error]


if __name__ == "__main__":
    sys.exit(main())
