"""Run the tests in several environments, and keep a table of what passed with which versions.

    python tests/run_versions.py py311/bin/python py312/bin/python [--write docs/reliability.md] [-- tests/model]

Each argument is the interpreter of an environment with the package's dependencies:

    python3.12 -m venv py312 && py312/bin/pip install -e '.[dev]' -c constraints.txt

What follows -- goes to pytest; by default, the whole suite runs (nightly tests too), one environment after the other.
--write puts a row for each environment between the markers of a page, in place of an earlier one for the same versions.
Exits with 1 if any test fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- versions: written by tests/run_versions.py -->\n", "<!-- end of versions -->\n"
HEAD = ["| Python | jax | flax | PyTorch | tests | passed | skipped | failed | seconds |", f"|{'---|' * 9}"]
PACKAGES = ("jax", "flax", "torch")
ASK = f"""
import json, platform
from importlib import metadata
found = [platform.python_version()]
for name in {PACKAGES}:
    try: found.append(metadata.version(name))
    except metadata.PackageNotFoundError: found.append("none")
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Outcome:
    """Holds what the tests of one environment came to."""

    versions: tuple[str, ...]
    """Of Python and of PACKAGES."""
    tests: str
    passed: int
    skipped: int
    failed: int
    seconds: float

    @property
    def row(self) -> str:
        figures = (f"{number:,}" for number in (self.passed, self.skipped, self.failed, round(self.seconds)))
        return f"| {' | '.join((*self.versions, self.tests, *figures))} |"


def run_tests(interpreter: str, arguments: list[str]) -> Outcome:
    """Runs pytest with the tests' own options, and counts."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    asked = subprocess.run([interpreter, "-c", ASK], capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        report, start = Path(folder) / "report.xml", time.perf_counter()
        command = [interpreter, "-m", "pytest", "-q", "-m", "", f"--junitxml={report}", *arguments]
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
        seconds = time.perf_counter() - start
        if not report.exists():
            raise SystemExit(f"{interpreter}: expected pytest to run tests; it ended with {code}")
        counts = {"tests": 0, "skipped": 0, "failures": 0, "errors": 0}
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            counts = {name: count + int(suite.get(name, 0)) for name, count in counts.items()}
    failed = counts["failures"] + counts["errors"]
    return Outcome(
        versions=tuple(json.loads(asked.stdout)),
        tests=" ".join(path for path in arguments if (ROOT / path.partition("::")[0]).exists()) or "all",
        passed=counts["tests"] - counts["skipped"] - failed,
        skipped=counts["skipped"],
        failed=failed,
        seconds=seconds,
    )


def table(rows: list[str]) -> str:
    return "\n".join([*HEAD, *rows])


def put(page: Path, outcomes: list[Outcome]) -> None:
    """Adds rows to the table between the markers of a page; a row replaces one with the same first cells."""
    before, found, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    old, has_end, after = rest.partition(END)
    if not (found and has_end):
        raise SystemExit(f"{page}: expected the lines {BEGIN!r} and {END!r}")
    rows = [line for line in old.splitlines() if line.startswith("| ") and line not in HEAD]
    by_key = {tuple(row.split(" | ")[:5]): row for row in [*rows, *(outcome.row for outcome in outcomes)]}
    page.write_text(f"{before}{BEGIN}\n{table(list(by_key.values()))}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interpreters", nargs="+", help="one of each environment")
    parser.add_argument("--write", type=Path, help="put the rows into this page, as Markdown")
    options = parser.parse_args(given[:cut])
    outcomes = []
    for interpreter in options.interpreters:
        outcomes.append(run_tests(interpreter, given[cut + 1 :]))
        if options.write:
            put(options.write, outcomes)
    print(table([outcome.row for outcome in outcomes]))
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
