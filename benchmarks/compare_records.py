"""Compare benchmark results with the last recorded ones.

    python benchmarks/compare_records.py benchmarks/results/corpus.json     # with the committed file
    python benchmarks/compare_records.py OLD.json NEW.json [--most 0.1]

Prints new / old of every measurement that moved by more than `--most`, the largest first, and where the machines or
versions differ. Several rounds count by their median. Exit codes: 0 nothing got worse by more than that; 1 something
did; 2 a mistake in the call. Measurements of one machine and one set of versions are compared; others are listed, and
the exit code is then 0.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LESS_IS_BETTER = ("seconds", "bytes", "peak", "memory", "mib", "gib", "latency", "_ms", "p50", "p99")
MORE_IS_BETTER = ("per_second", "ratio", "share", "bleu", "speed")


def is_rounds(value: Any) -> bool:
    """Returns whether a value is a list of numbers, one for each round."""
    return isinstance(value, list) and bool(value) and all(type(item) in (int, float) for item in value)


def label_of(row: dict[str, Any], number: int) -> str:
    """Returns the identity of a row in a list: its texts and whole numbers, at any depth."""
    words = [f"{name}={value}" for name, value in leaves(row) if isinstance(value, (str, bool)) or type(value) is int]
    return ", ".join(words) or str(number)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the path and the value of every leaf; rounds of a measurement are one leaf, their median."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}" if path else name)
    elif is_rounds(value):
        yield path, float(statistics.median(value))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            label = label_of(inner, number) if isinstance(inner, dict) else str(number)
            yield from leaves(inner, f"{path}[{label}]")
    else:
        yield path, value


def measurements(record: Any) -> dict[str, float]:
    """Returns the fractional numbers of a record by their paths; whole numbers say what was measured."""
    return {path: value for path, value in leaves(record) if isinstance(value, float)}


def got_worse(path: str, ratio: float) -> bool | None:
    """Returns whether new / old is worse; None where the name doesn't tell which direction is."""
    name = path.rpartition("]")[2].lower() or path.lower()
    if any(word in name for word in MORE_IS_BETTER):
        return ratio < 1.0
    return ratio > 1.0 if any(word in name for word in LESS_IS_BETTER) else None


def compare(old: Any, new: Any, most: float) -> tuple[list[str], bool]:
    """Returns a line for every measurement that moved, and whether one got worse by more than `most`."""
    before, after = measurements(old), measurements(new)
    moved = []
    for path in before.keys() & after.keys():
        if before[path] > 0.0 and after[path] > 0.0:
            ratio = after[path] / before[path]
            if max(ratio, 1.0 / ratio) > 1.0 + most:
                moved.append((max(ratio, 1.0 / ratio), path, ratio))
    lines = []
    any_worse = False
    for _, path, ratio in sorted(moved, reverse=True):
        worse = got_worse(path, ratio)
        any_worse |= worse is True
        word = {True: "worse", False: "better", None: "other"}[worse]
        lines.append(f"{ratio:8.3f}  {word:6}  {path}: {before[path]:.6g} -> {after[path]:.6g}")
    lines += [f"    gone          {path}" for path in sorted(before.keys() - after.keys())]
    lines += [f"     new          {path}" for path in sorted(after.keys() - before.keys())]
    return lines, any_worse


def committed(path: Path) -> Any:
    """Returns the record as it is in the last commit. Raises ValueError if there is none."""
    name = path.resolve().relative_to(ROOT)
    found = subprocess.run(["git", "show", f"HEAD:{name}"], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        raise ValueError(f"{path}: expected a record that is committed; received {found.stderr.strip()}")
    return json.loads(found.stdout)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD", help="the new one, or the old and the new")
    parser.add_argument("--most", type=float, default=0.1, help="relative change that counts (default: %(default)s)")
    options = parser.parse_args(arguments)
    if len(options.records) > 2:
        parser.error(f"expected one or two records; received {len(options.records)}")
    *first, last = options.records
    try:
        old = json.loads(first[0].read_text(encoding="utf-8")) if first else committed(last)
        new = json.loads(last.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    machines = [record.get("machine") if isinstance(record, dict) else None for record in (old, new)]
    lines, any_worse = compare(old, new, options.most)
    print("\n".join(lines) or f"no measurement moved by more than {options.most:.0%}")
    if machines[0] != machines[1]:
        print(f"other machines or versions, so that nothing is judged:\n  old {machines[0]}\n  new {machines[1]}")
        return 0
    return int(any_worse)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
