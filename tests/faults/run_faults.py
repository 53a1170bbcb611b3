"""Makes every call on a file fail, once in each way, of short runs of the commands, and tells what came of it.

    python tests/faults/run_faults.py [--operations train port …] [--write docs/reliability.md]

Exit code 1 if any fault went unnoticed or did harm."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, redirect_stdout
from itertools import chain
from pathlib import Path

from faults import ACCEPTED, FAULTS, Finding, Laboratory, Outcome, Server, build_shim, first_and_last
from operations import OPERATIONS, make_needs

EVERY_CALL = ("port", "export", "translate")
"""Beginnings of the names of operations of which every call fails; of the others, which take longer, the first and the
last on each file."""
BEGIN, END = "<!-- faults: written by tests/faults/run_faults.py -->", "<!-- end of faults -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", nargs="*", default=[each.name for each in OPERATIONS])
    parser.add_argument("--kinds", nargs="*", default=list(FAULTS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every-call", action="store_true", help="of all operations: see EVERY_CALL")
    parser.add_argument("--every", type=int, default=1, help="of the slower operations, try only each n-th fault")
    parser.add_argument("--write", type=Path, help="the document whose table is made anew")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        environment = {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "OMP_NUM_THREADS": "1",
        }
        os.environ.update(environment)
        needs = folder / "needs"
        needs.mkdir()
        with chdir(needs), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            make_needs(needs)
        shim = build_shim(folder)
        with ThreadPoolExecutor(options.workers) as pool:
            shares = [folder / f"share{number}" for number in range(options.workers)]
            jobs = [pool.submit(search, shim, environment, needs, share, number, options)
                    for number, share in enumerate(shares)]  # fmt: skip
            results = [job.result() for job in jobs]
    found = list(chain.from_iterable(share for share, _ in results))
    table = tabulated(found, results[0][1])
    print("\n".join(table))
    if options.write:
        text = options.write.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        options.write.write_text("\n".join([before + BEGIN, "", *table, "", END + after]), encoding="utf-8")
    return int(any(finding.outcome not in ACCEPTED for *_, finding in found))


Found = tuple[str, str, str, Finding]
"""Operation, kind of call, fault, what came of it."""


def search(
    shim: Path, environment: dict[str, str], needs: Path, share: Path, number: int, options: argparse.Namespace
) -> tuple[list[Found], dict[str, int]]:
    """Tries one worker's share of the faults; returns what came of them, and how many there are of each operation."""
    share.mkdir()
    server, found, possible = Server(shim, environment), [], {}
    for operation in OPERATIONS:
        if operation.name not in options.operations:
            continue
        start = time.monotonic()
        laboratory = Laboratory(server, operation, needs, share)
        has_every = options.every_call or operation.name.startswith(EVERY_CALL)
        calls = laboratory.calls if has_every else first_and_last(laboratory.calls)
        cases = [(call, fault) for call in calls if call.kind in options.kinds for fault in FAULTS[call.kind]]
        possible[operation.name] = sum(len(FAULTS[call.kind]) for call in laboratory.calls)
        mine = cases[:: 1 if has_every else options.every][number :: options.workers]
        for call, fault in mine:
            finding = laboratory.inject(call, FAULTS[call.kind][fault])
            if not finding.fell_on:
                continue  # threads made fewer calls this time
            found.append((operation.name, call.kind, fault, finding))
            if finding.outcome not in ACCEPTED:
                print(f"{operation.name}: {call.kind} {call.number} of {finding.fell_on} with {fault}: "
                      f"{finding.outcome}: {finding.detail}", flush=True)  # fmt: skip
        print(f"{operation.name}: {len(mine)} faults in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    server.close()
    return found, possible


def tabulated(found: list[Found], possible: dict[str, int]) -> list[str]:
    """Returns a row for each operation, with what came of each fault, and how many faults of how many were tried."""
    outcomes: dict[tuple[str, str], Counter[Outcome]] = defaultdict(Counter)
    for operation, _, fault, finding in found:
        outcomes[operation, fault][finding.outcome] += 1
    faults = list(dict.fromkeys(fault for kinds in FAULTS.values() for fault in kinds))
    lines = [f"| operation | {' | '.join(faults)} | faults tried |", f"|---|{'---|' * (len(faults) + 1)}"]
    for operation in possible:
        cells = [counted(outcomes[operation, fault]) for fault in faults]
        tried = sum(outcomes[operation, fault].total() for fault in faults)
        lines.append(f"| {operation} | {' | '.join(cells)} | {tried:,} of {possible[operation]:,} |")
    return lines


def counted(outcomes: Counter[Outcome]) -> str:
    others = [f"**{count} {outcome}**" for outcome, count in outcomes.items() if outcome not in ACCEPTED]
    return ", ".join([f"{count} {outcome}" for outcome in ACCEPTED if (count := outcomes[outcome])] + others) or "–"


if __name__ == "__main__":
    sys.exit(main())
