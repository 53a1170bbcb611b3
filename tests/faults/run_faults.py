"""Makes every call on a file fail, once in each way, of short runs of the commands, and tells what came of it.

    python tests/faults/run_faults.py [--operations train port …] [--write docs/reliability.md]

Exit code 1 if any fault went unnoticed or did harm."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from itertools import chain
from pathlib import Path

from faults import ACCEPTED, FAULTS, Finding, Laboratory, Outcome, Server, build_shim, first_and_last
from operations import OPERATIONS, make_needs

EVERY_CALL = ("port", "export", "translate")
"""Beginnings of the names of operations of which every call fails; of the others, which take longer, the first and the
last on each file."""
BEGIN, END = "<!-- faults -->", "<!-- /faults -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", nargs="*", default=[each.name for each in OPERATIONS])
    parser.add_argument("--kinds", nargs="*", default=list(FAULTS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every-call", action="store_true", help="of all operations: see EVERY_CALL")
    parser.add_argument("--every", type=int, default=1, help="try only each n-th fault")
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
        with chdir(needs), open(os.devnull, "w") as nowhere:
            printed, sys.stdout = sys.stdout, nowhere
            make_needs(needs)
            sys.stdout = printed
        shim = build_shim(folder)
        with ThreadPoolExecutor(options.workers) as pool:
            shares = [folder / f"share{number}" for number in range(options.workers)]
            jobs = [pool.submit(search, shim, environment, needs, share, number, options)
                    for number, share in enumerate(shares)]  # fmt: skip
            found = list(chain.from_iterable(job.result() for job in jobs))
    table = tabulated(found)
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
) -> list[Found]:
    share.mkdir()
    server, found = Server(shim, environment), []
    for operation in OPERATIONS:
        if operation.name not in options.operations:
            continue
        start = time.monotonic()
        laboratory = Laboratory(server, operation, needs, share)
        has_every = options.every_call or operation.name.startswith(EVERY_CALL)
        calls = laboratory.calls if has_every else first_and_last(laboratory.calls)
        cases = [(call, fault) for call in calls if call.kind in options.kinds for fault in FAULTS[call.kind]]
        mine = cases[:: options.every][number :: options.workers]
        for call, fault in mine:
            finding = laboratory.inject(call, FAULTS[call.kind][fault])
            found.append((operation.name, call.kind, fault, finding))
            if finding.outcome not in ACCEPTED:
                print(f"{operation.name}: {call.kind} {call.number} of {finding.fell_on or call.path} with {fault}: "
                      f"{finding.outcome}: {finding.detail}", flush=True)  # fmt: skip
        print(f"{operation.name}: {len(mine)} faults in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    server.close()
    return found


def tabulated(found: list[Found]) -> list[str]:
    counts: dict[tuple[str, str, str], Counter[Outcome]] = {}
    for operation, kind, fault, finding in found:
        counts.setdefault((operation, kind, fault), Counter())[finding.outcome] += 1
    lines = ["| operation | call | fault | calls | right | told | other |", "|---|---|---|---|---|---|---|"]
    for (operation, kind, fault), outcomes in sorted(counts.items()):
        others = [f"{count} {outcome}" for outcome, count in outcomes.items() if outcome not in ACCEPTED]
        lines.append(
            f"| {operation} | {kind} | {fault} | {outcomes.total()} | {outcomes[Outcome.RIGHT]} | "
            f"{outcomes[Outcome.TOLD]} | {', '.join(others) or 0} |"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
