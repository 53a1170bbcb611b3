"""Kill runs at random moments, resume them, and compare what they end with to runs that nothing disturbed.

    python tests/training/nightly_kills.py [--count 100] [--seed 0] [--only 17] [--write docs/reliability.md]

Signals, phases and options take turns, so that 28 kills meet every signal in every phase. --only repeats one of them.
--write puts the table between the markers of a page. Exits with 1 if any run differs.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "faults"))  # as pytest finds what tests share

from kills import OPTIONS, PHASES, SIGNALS, Kill, kill_and_resume, undisturbed, write_text

BEGIN, END = "<!-- kills: written by tests/training/nightly_kills.py -->\n", "<!-- end of kills -->\n"
QUICK = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "XLA_FLAGS": "--xla_cpu_parallel_codegen_split_count=1",
}
"""Programs run a few times on small arrays: the time goes into compiling them, which one process does for all."""


def cases(count: int, seed: int) -> list[Kill]:
    """Returns kills in a random order, in which signals, phases and options take turns."""
    chance, drawn = random.Random(seed), []
    options = list(OPTIONS)
    while len(drawn) < count:
        places = list(product(SIGNALS, PHASES))
        chance.shuffle(places)
        for number, place in enumerate(places, start=len(drawn)):
            if number % len(options) == 0:
                chance.shuffle(options)
            drawn.append(Kill(*place, options[number % len(options)]))
    return drawn[:count]


def table(kills: Sequence[Kill], seed: int) -> str:
    """Returns the kills that met a running process, by signal and phase, as Markdown."""
    lines = [f"| signal | {' | '.join(PHASES)} |", f"|---|{'---|' * len(PHASES)}"]
    for signal in SIGNALS:
        cells = []
        for phase in PHASES:
            there = [kill for kill in kills if (kill.signal, kill.phase) == (signal, phase) and kill.was_hit]
            cells.append(f"{sum(not kill.problems for kill in there)} of {len(there)}")
        lines.append(f"| {signal} | {' | '.join(cells)} |")
    hit = [kill for kill in kills if kill.was_hit]
    same = sum(not kill.problems for kill in hit)
    each = ", ".join(f"{sum(kill.options == name for kill in hit)} {name}" for name in OPTIONS)
    lines += ["", f"{same} of {len(hit)} killed runs ended identical (seed {seed}): {each}."]
    return "\n".join(lines) + "\n"


def put(page: Path, text: str) -> None:
    """Replaces what stands between the markers of a page."""
    before, found, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, has_end, after = rest.partition(END)
    if not (found and has_end):
        raise SystemExit(f"{page}: expected the lines {BEGIN!r} and {END!r}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one kill, to repeat")
    parser.add_argument("--workers", type=int, default=1, help="kills at once")
    parser.add_argument("--write", type=Path, help="put the table into this page, as Markdown")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.workers) as pool:
        folder = Path(name)
        os.environ.update({**QUICK, "JAX_COMPILATION_CACHE_DIR": str(folder / "xla")})
        numbered = list(enumerate(cases(options.count, options.seed)))
        if options.only is not None:
            numbered = [numbered[options.only]]
        for part in ("undisturbed", "killed"):
            write_text(folder / part)
        used = sorted({kill.options for _, kill in numbered})
        runs = pool.map(lambda name: undisturbed(folder / "undisturbed" / name, name), used)
        expected = dict(zip(used, runs, strict=True))

        def one(number: int, kill: Kill) -> Kill:
            chance = random.Random(f"{options.seed} {number}")
            done = kill_and_resume(folder / "killed" / str(number), kill, expected[kill.options], chance)
            print(f"{number}: {done}", flush=True)
            if not done.problems:
                shutil.rmtree(folder / "killed" / str(number))
            return done

        done = list(pool.map(lambda pair: one(*pair), numbered))
    print(table(done, options.seed))
    if options.write:
        put(options.write, table(done, options.seed))
    return int(any(kill.problems for kill in done))


if __name__ == "__main__":
    sys.exit(main())
