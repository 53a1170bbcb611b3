"""Measure which tests notice a change of the package's core.

    python tests/mutants/run_mutants.py reach --marks /tmp/marks
    python tests/mutants/run_mutants.py kill --marks /tmp/marks --seed 1 --count 250 --write tests/mutants/record.csv
    python tests/mutants/run_mutants.py night --marks /tmp/marks --write tests/mutants/nightly.txt

`reach` runs every test once, and notes its time and the functions of the package that it calls. `kill` draws changes
(`mutations.py`), runs for each the tests that call the changed function, the quickest first, and stops at the first
that fails: so a slow test is a killer only of what no quicker test kills. A change that none notices is a survivor: a
gap in the tests, or a change that makes no difference. Rows of other seeds in the record stay.

`night` chooses the tests that wait for the night (`nights.py`), by their times and by the record. Further arguments go
to pytest.

A function that only a forked process, or only a program cached by an earlier test, calls is taken for unreached by the
tests that didn't call it themselves.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import mutant_core as core
import mutant_hook as hook
import pytest
from mutant_runner import Kill, Runner
from mutations import Mutant
from nights import Timed, waiting, with_shared_setups

HEAD = ["seed", "module", "number", "line", "function", "change", "outcome", "test", "test_seconds"]
ALIVE = ("survived", "unreached")
QUICK = 1.0
"""Seconds of a test that is quick."""
FIRST = 4.0, 4
QUICKS = 25.0, 8
SLOWS = 60.0, 2
"""Limits of a round: the total seconds of its tests, and the number of parametrisations of one function."""


def record_reach(marks: Path, arguments: list[str]) -> int:
    marks.mkdir(parents=True, exist_ok=True)
    for old in [*marks.glob("*.jsonl"), *marks.glob("process-*.json")]:
        old.unlink()
    core.write_marks(marks)
    here = Path(__file__).parent
    path = os.pathsep.join(map(str, (core.ROOT, here, here / "startup")))
    environment = {**os.environ, "PYTHONPATH": path, hook.MARKS: str(marks)}
    command = [sys.executable, "-m", "pytest", "-p", "reach_plugin", "-q", "-p", "no:cacheprovider", "-m", ""]
    return subprocess.run([*command, *arguments], cwd=core.ROOT, env=environment).returncode


def read_tests(marks: Path) -> list[Timed]:
    """Returns the tests that passed.

    Processor seconds leave out children that other processes waited for. Half of the wall time, which two tests at once
    make longer, stands for them.
    """
    others: dict[str, set[int]] = defaultdict(set)
    for file in marks.glob("process-*.json"):
        record = json.loads(file.read_text("utf-8"))
        others[record["test"]].update(record["reach"])
    tests, fixtures = [], json.loads((marks / "fixtures.json").read_text("utf-8"))
    for file in marks.glob("tests-*.jsonl"):
        for line in file.read_text("utf-8").splitlines():
            record = json.loads(line)
            if record["outcome"] == "passed":
                reach = frozenset(record["reach"]) | others[record["test"]]
                seconds = max(record["cpu"], record["seconds"] / 2)
                setup = seconds * record["phases"].get("setup", 0.0) / max(record["seconds"], 1e-9)
                shared = frozenset(fixtures.get(record["test"], ()))
                tests.append(Timed(record["test"], seconds, reach, setup, shared))
    if not any(test.reach for test in tests):
        raise SystemExit(f"{marks}: expected tests that call marked functions; received none: run `reach` again")
    return tests


def with_siblings(tests: list[Timed], names: list[str]) -> list[Timed]:
    """Returns the tests that there are. One that wasn't recorded is taken for what another parametrisation of its
    function is, a little slower."""
    recorded = {test.name: test for test in tests}
    by_function: dict[str, list[Timed]] = defaultdict(list)
    for test in tests:
        by_function[test.name.partition("[")[0]].append(test)
    found = []
    for name in names:
        if name in recorded:
            found.append(recorded[name])
        elif siblings := by_function.get(name.partition("[")[0]):
            reach = frozenset().union(*(test.reach for test in siblings))
            found.append(Timed(name, 1.2 * max(test.seconds for test in siblings), reach))
    return found


def rounds(tests: list[Timed]) -> list[list[Timed]]:
    """Returns which tests to try one after the other."""
    left = sorted(tests, key=lambda test: test.cost)
    chosen: list[list[Timed]] = []
    for slowest, (budget, most) in ((QUICK, FIRST), (QUICK, QUICKS), (float("inf"), SLOWS)):
        counts: Counter[str] = Counter()
        part, total = [], 0.0
        for test in left:
            function = test.function
            if test.seconds <= slowest and counts[function] < most and total + test.seconds <= budget:
                part.append(test)
                counts[function] += 1
                total += test.seconds
        if part:
            chosen.append(part)
        taken = {test.name for test in part}
        left = [test for test in left if test.name not in taken]
    return chosen


def kill_of(mutant: Mutant, tests: list[Timed], runner: Runner, most_rounds: int) -> Kill | None:
    for part in rounds(tests)[:most_rounds]:
        names, seconds = [test.name for test in part], sum(test.seconds for test in part)
        for kill in runner.kills(mutant, names, seconds):
            return kill
    return None


def measure(
    mutants: list[Mutant], tests: list[Timed], places: list[str], folder: Path, options: Any, paths: list[str]
) -> None:
    """Writes a line for each mutant. One that is known to be killed isn't tried again."""
    numbers = {place: number for number, place in enumerate(places)}
    seconds = {test.name: test.seconds for test in tests}
    known = {tuple(row[:2]): row for row in read_rows(folder)}
    until = time.time() + 60 * options.minutes

    def work(runner: Runner) -> None:
        everything = with_siblings(tests, list(runner.items))
        for mutant in mutants:
            if time.time() > until:
                return
            if known.get(mutant[:2], ["", "", "", "", "", "unreached"])[5] not in ALIVE:
                continue
            reaching = [test for test in everything if numbers.get(mutant.place) in test.reach]
            kill = kill_of(mutant, reaching, runner, options.rounds) if reaching else None
            outcome = kill.how if kill else "survived" if reaching else "unreached"
            row = [*mutant[:2], mutant.line, mutant.function, mutant.change, outcome]
            row += [kill.test, seconds.get(kill.test, 0.0)] if kill else ["", ""]
            with (folder / "kills.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    run_pytest(Runner(folder, work), folder, paths)


def run_pytest(runner: Runner, folder: Path, paths: list[str]) -> None:
    here = Path(__file__).parent
    os.chdir(core.ROOT)
    sys.path.insert(0, str(core.ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join((str(core.ROOT), str(here / "startup")))
    os.environ["PYTEST_XDIST_WORKER"] = "gw0"  # so that the cache of compiled programs lies beside the temporary files
    options = ["-n", "0", "-q", "-p", "no:cacheprovider", "-m", "", "--basetemp", str(folder / "popen-gw0")]
    pytest.main([*options, *paths], plugins=[runner])


def read_rows(folder: Path) -> list[list[Any]]:
    """Returns the last line of each mutant."""
    file = folder / "kills.jsonl"
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    return list({tuple(row[:2]): row for row in map(json.loads, lines)}.values())


def check_killers(rows: list[list[Any]], tests: list[Timed], folder: Path, paths: list[str]) -> set[str]:
    """Returns the killers that fail without a change too, when they run by themselves: those kill nothing."""
    seconds = {test.name: test.seconds for test in tests}
    names = sorted({row[6] for row in rows if row[6] in seconds})
    bad: set[str] = set()

    def work(runner: Runner) -> None:
        total = sum(seconds[name] for name in names)
        bad.update(kill.test for kill in runner.kills(None, names, total, only_first=False))

    run_pytest(Runner(folder, work), folder, paths)
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("reach", "kill", "night"))
    parser.add_argument("--marks", type=Path, required=True, help="the folder of what `reach` notes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=250, help="how many changes are drawn")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0, help="start no change after this time")
    parser.add_argument("--rounds", type=int, default=3, help="2: no slow tests; what was killed before stays so")
    parser.add_argument("--check", action="store_true", help="run the killers without a change")
    parser.add_argument("--work", type=Path, default=Path("/tmp/mutants"), help="a folder for temporary files")
    parser.add_argument("--write", type=Path, help="the record, a table; or the list of tests that wait")
    arguments, rest = parser.parse_known_args()
    if arguments.what == "reach":
        return record_reach(arguments.marks, rest)
    tests = read_tests(arguments.marks)
    if arguments.what == "night":
        write_nights(arguments.write, tests)
        return 0
    places = json.loads((arguments.marks / "functions.json").read_text("utf-8"))
    drawn = random.Random(arguments.seed).sample(core.all_mutants(), arguments.count)
    folders = [arguments.work / f"seed-{arguments.seed}-{index}" for index in range(arguments.processes)]
    children = []
    for index, folder in enumerate(folders):
        child = os.fork()
        if child == 0:
            measure(drawn[index :: arguments.processes], tests, places, folder, arguments, rest)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    rows = [row for folder in folders for row in read_rows(folder)]
    bad = check_killers(rows, tests, arguments.work / "check", rest) if arguments.check else set()
    print(*(f"fails without a change: {test}" for test in sorted(bad)), sep="\n")
    rows = [[arguments.seed, *(row if row[6] not in bad else [*row[:5], "unclear", *row[6:]])] for row in rows]
    rows.sort(key=lambda row: (row[1], row[2]))
    print(Counter(row[6] for row in rows))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"{sum(part.ru_utime + part.ru_stime for part in used):.0f} seconds of a core")
    if arguments.write:
        write_record(arguments.write, arguments.seed, rows)
    return 0


def write_nights(path: Path, tests: list[Timed]) -> None:
    with (Path(__file__).parent / "record.csv").open(encoding="utf-8", newline="") as file:
        killers = [row["test"] for row in csv.DictReader(file) if row["outcome"] not in ALIVE]
    found = waiting(with_shared_setups(tests), killers)
    path.write_text("".join(f"{name}\n" for name in sorted(test.name for test in found)), "utf-8")
    total, left = (sum(test.seconds for test in part) for part in (tests, found))
    print(f"{len(found)} of {len(tests)} tests wait for the night: {left:.0f} of {total:.0f} seconds of a core")


def write_record(path: Path, seed: int, rows: list[list[object]]) -> None:
    before: list[list[object]] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            before = [list(row) for row in csv.reader(file)][1:]
    kept = [row for row in before if row[0] != str(seed)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        writer.writerows(sorted([*kept, *rows], key=lambda row: int(str(row[0]))))


if __name__ == "__main__":
    sys.exit(main())
