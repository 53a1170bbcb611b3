"""Makes every call on a file fail, once in each way, in short runs of the commands, and reports the outcomes.

    python tests/faults/run_faults.py [--operations train port …] [--journal faults.jsonl] [--write docs/reliability.md]

All calls of all operations (--every-call) take some five hours on two cores, with --warm about two. With --journal, a
search that was stopped goes on where it was; --write renews the rows of the operations that were tried. Exit code 1 if
any fault went unnoticed or did harm."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, redirect_stdout
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from faults import ACCEPTED, FAULTS, Call, Laboratory, Server, build_shim, first_and_last
from operations import OPERATIONS, Operation, make_needs

EVERY_CALL = ("port", "export", "translate")
"""Beginnings of the names of operations of which every call fails; of the others, which take longer, the first and the
last on each file."""
BEGIN, END = "<!-- faults: written by tests/faults/run_faults.py -->", "<!-- end of faults -->"
NAMES = tuple(dict.fromkeys(chain.from_iterable(FAULTS.values())))
HEAD = (f"| operation | {' | '.join(NAMES)} | faults tried |", f"|---|{'---|' * (len(NAMES) + 1)}")

Case = tuple[Call, str]
"""A call and the name of its fault."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", nargs="*", default=[each.name for each in OPERATIONS])
    parser.add_argument("--kinds", nargs="*", default=list(FAULTS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--warm", action="store_true", help="run commands in processes that have run others before")
    parser.add_argument("--every-call", action="store_true", help="of all operations: see EVERY_CALL")
    parser.add_argument("--every", type=int, default=1, help="of the slower operations, try only each n-th fault")
    parser.add_argument("--journal", type=Path, help="what came of each fault; those that it holds aren't tried again")
    parser.add_argument("--write", type=Path, help="the document whose table is made anew")
    options = parser.parse_args()
    found: list[Tried] = []
    rows: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        environment = {
            "JAX_COMPILATION_CACHE_DIR": str(Path(directory) / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "OMP_NUM_THREADS": "1",
        }
        os.environ.update(environment)
        needs = Path(directory) / "needs"
        needs.mkdir()
        with chdir(needs), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            make_needs(needs)
        shim, journal = build_shim(Path(directory)), Journal(options.journal)
        servers = [Server(shim, environment) for _ in range(options.workers)]
        for operation in (each for each in OPERATIONS if each.name in options.operations):
            folders = [Path(directory) / f"{operation.name} {number}" for number in range(options.workers)]
            for folder in folders:
                folder.mkdir()
            laboratories = [
                Laboratory(server, operation, needs, folder) for server, folder in zip(servers, folders, strict=True)
            ]
            if options.warm:
                laboratories = [laboratory.warmed() for laboratory in laboratories]
            every_case = [(call, fault) for call in laboratories[0].calls for fault in FAULTS[call.kind]]
            tried = search(operation, laboratories, chosen(operation, laboratories[0].calls, options), journal)
            rows[operation.name] = tabulated(operation, tried, len(every_case))
            found += tried
        for server in servers:
            server.close()
    print("\n".join([*HEAD, *rows.values()]))
    if options.write:
        put(options.write, rows)
    return int(any(tried.outcome not in ACCEPTED for tried in found))


@dataclass(frozen=True)
class Tried:
    """Holds what came of one fault."""

    operation: str
    kind: str
    number: int
    fault: str
    outcome: str
    detail: str
    fell_on: str


class Journal:
    """Appends what came of each fault to a file, and knows what it held before."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
        held = [Tried(**json.loads(line)) for line in lines]
        self._held = {(tried.operation, tried.kind, tried.number, tried.fault): tried for tried in held}

    def find(self, operation: Operation, call: Call, fault: str) -> Tried | None:
        return self._held.get((operation.name, call.kind, call.number, fault))

    def add(self, tried: Tried) -> None:
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(asdict(tried))}\n")  # one write: threads don't mix their lines


def chosen(operation: Operation, calls: list[Call], options: argparse.Namespace) -> list[Case]:
    """Returns the faults that the options choose."""
    has_every = options.every_call or operation.name.startswith(EVERY_CALL)
    failing = [call for call in (calls if has_every else first_and_last(calls)) if call.kind in options.kinds]
    return [(call, fault) for call in failing for fault in FAULTS[call.kind]][:: 1 if has_every else options.every]


def search(
    operation: Operation, laboratories: Sequence[Laboratory], cases: list[Case], journal: Journal
) -> list[Tried]:
    """Tries faults, a share in each laboratory, and returns what came of those that fell on a call: threads make fewer
    calls in some runs than in others."""
    start = time.monotonic()

    def try_share(number: int) -> list[Tried]:
        return [try_one(laboratories[number], call, fault) for call, fault in cases[number :: len(laboratories)]]

    def try_one(laboratory: Laboratory, call: Call, fault: str) -> Tried:
        tried = journal.find(operation, call, fault)
        if tried is None:
            finding = laboratory.inject(call, FAULTS[call.kind][fault])
            tried = Tried(operation.name, call.kind, call.number, fault, **asdict(finding))
            journal.add(tried)
        if tried.outcome not in ACCEPTED:
            print(f"{operation.name}: {call.kind} {call.number} of {tried.fell_on} with {fault}: "
                  f"{tried.outcome}: {tried.detail}", flush=True)  # fmt: skip
        return tried

    with ThreadPoolExecutor(len(laboratories)) as pool:
        tried = list(chain.from_iterable(pool.map(try_share, range(len(laboratories)))))
    print(f"{operation.name}: {len(cases)} faults in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return [each for each in tried if each.fell_on]


def tabulated(operation: Operation, found: list[Tried], possible: int) -> str:
    """Returns a row: what came of each fault, and how many faults of how many were tried."""
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for tried in found:
        outcomes[tried.fault][tried.outcome] += 1
    cells = [counted(outcomes[name]) for name in NAMES]
    return f"| {operation.name} | {' | '.join(cells)} | {len(found):,} of {possible:,} |"


def counted(outcomes: Counter[str]) -> str:
    others = [f"**{count} {outcome}**" for outcome, count in outcomes.items() if outcome not in ACCEPTED]
    return ", ".join([f"{count} {outcome}" for outcome in ACCEPTED if (count := outcomes[outcome])] + others) or "–"


def put(page: Path, rows: dict[str, str]) -> None:
    """Writes rows into the table of a page, in place of earlier ones of the same operations."""
    before, old, after = re.split(f"{BEGIN}|{END}", page.read_text(encoding="utf-8"))
    earlier = {line.split(" | ")[0].removeprefix("| "): line for line in old.splitlines() if line.startswith("| ")}
    known = earlier | rows
    table = [*HEAD, *(known[operation.name] for operation in OPERATIONS if operation.name in known)]
    page.write_text("\n".join([before + BEGIN, "", *table, "", END + after]), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
