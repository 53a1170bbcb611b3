"""Seek the cause of the catalogue's faults by proven repair alone, and compare it with what the catalogue says.

    python parity_tests/run_repairs.py --write docs/compare.md

Faults are drawn by the seed, --faults of each entry, from the first of the systems in which they occur; --all tries
every one at every activation of these, which takes days.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "zoo"))  # as pytest has it

import numpy as np
from proof.tables import Table
from selftest.by_repair import Subject
from selftest.injections import Injection, known_faults
from selftest.run import one_thread
from selftest.same_cause import COLUMNS, cells_of, entry_of, summarize

SYSTEMS = ("stepwise_masks", "stepwise_sublayers")
"""Small ones: with another encoder layer, the search takes three times as long."""
TABLE = Table(
    "selftest_repairs.csv",
    ("<!-- repairs: written by parity_tests/run_repairs.py -->", "<!-- end of repairs -->"),
    COLUMNS,
    summarize,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of weights, inputs, and the choice of faults")
    parser.add_argument("--faults", type=int, default=1, help="of each entry of the catalogue")
    parser.add_argument("--all", action="store_true", help="all faults, at all activations")
    parser.add_argument(
        "--systems", nargs="*", default=SYSTEMS, help="faults are tried in the first that they occur in"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="no entry is begun later; entries are in a drawn order"
    )
    parser.add_argument("--only", default="", help="a regular expression that faults' names match")
    parser.add_argument("--write", type=Path, help="the page; tables/ next to it gets every row")
    options = parser.parse_args()
    start, rows = time.perf_counter(), []
    with one_thread():
        subjects = {name: Subject(name, options.seed) for name in options.systems}
        entries: dict[str, list[tuple[Subject, Injection]]] = {}
        for subject in subjects.values():
            for injection in known_faults(subject.config, np.random.default_rng(options.seed)):
                if re.search(options.only, injection.name):
                    entries.setdefault(entry_of(injection.name), []).append((subject, injection))
        for entry in sorted(entries, key=lambda entry: zlib.crc32(f"{options.seed} {entry}".encode())):
            if time.perf_counter() - start > 60 * options.minutes:
                break
            choices = entries[entry]
            most = len(choices) if options.all else options.faults
            for subject, injection in _drawn(choices, entry, options.seed, most):
                rows.append(cells_of(subject.tried(injection)))
                print(" | ".join(rows[-1]), flush=True)
    tried, minutes = len({row[0] for row in rows}), (time.perf_counter() - start) / 60
    note = (
        f"The catalogue has {len(entries)} entries in {' and '.join(options.systems)}. {tried} of them were tried in "
        f"{minutes:.0f} minutes, in a drawn order; entries that make no difference there have no row."
    )
    print("\n".join(TABLE.on_page(TABLE.as_csv(rows), note)))
    if options.write:
        TABLE.write(options.write, rows, note)
    return 0


def _drawn(
    choices: list[tuple[Subject, Injection]], entry: str, seed: int, most: int
) -> Iterator[tuple[Subject, Injection]]:
    """Yields the first choices, system by system and in a drawn order, that can occur and change a number."""
    rng = np.random.default_rng([seed, zlib.crc32(entry.encode())])
    systems = [*dict.fromkeys(subject.name for subject, _ in choices)]
    drawn = [choices[number] for number in rng.permutation(len(choices))]
    for subject, injection in sorted(drawn, key=lambda choice: systems.index(choice[0].name)):
        if most == 0:
            return
        if subject.changes(injection):
            most -= 1
            yield subject, injection


if __name__ == "__main__":
    sys.exit(main())
