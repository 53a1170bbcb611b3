"""Benchmark results are compared with recorded ones: what moved, what got worse, and where machines differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "compare_records.py"
MACHINE = {"processor": "one", "threads": 2}


def record(machine: Any = MACHINE, seconds: Any = (1.0, 1.1, 5.0), speed: float = 100.0) -> dict[str, Any]:
    rows = [
        {"beams": 1, "seconds": {"here": list(seconds), "there": [2.0, 2.0, 2.0]}},
        {"beams": 4, "tokens_per_second": speed},
    ]
    return {"machine": machine, "rows": rows}


def compared(folder: Path, old: Any, new: Any, *options: str) -> subprocess.CompletedProcess[str]:
    files = []
    for name, content in (("old", old), ("new", new)):
        files.append(folder / f"{name}.json")
        files[-1].write_text(json.dumps(content), encoding="utf-8")
    return subprocess.run([sys.executable, SCRIPT, *map(str, files), *options], capture_output=True, text=True)


def test_equal_records_have_nothing_to_tell(tmp_path: Path) -> None:
    found = compared(tmp_path, record(), record(seconds=(1.1, 1.0, 1.2)))  # one slow round is no change
    assert (found.returncode, found.stdout) == (0, "no measurement moved by more than 10%\n")


@pytest.mark.parametrize(
    ("change", "code", "line"),
    [
        ({"seconds": [2.0, 2.2, 2.1]}, 1, "worse   rows[beams=1].seconds.here: 1.1 -> 2.1"),
        ({"seconds": [0.5, 0.5, 0.5]}, 0, "better  rows[beams=1].seconds.here: 1.1 -> 0.5"),
        ({"speed": 50.0}, 1, "worse   rows[beams=4].tokens_per_second: 100 -> 50"),
        ({"speed": 150.0}, 0, "better  rows[beams=4].tokens_per_second: 100 -> 150"),
    ],
)
def test_changed_figures_are_judged_by_their_direction(tmp_path: Path, change: Any, code: int, line: str) -> None:
    found = compared(tmp_path, record(), record(**change))
    assert found.returncode == code
    assert line in found.stdout


def test_other_machines_are_shown_and_not_judged(tmp_path: Path) -> None:
    found = compared(tmp_path, record(), record({"processor": "two", "threads": 2}, speed=1.0))
    assert found.returncode == 0
    assert "other machines or versions" in found.stdout
    assert "100 -> 1" in found.stdout


def test_rows_are_matched_by_what_they_measure(tmp_path: Path) -> None:
    old, new = record(), record()
    new["rows"].reverse()
    new["rows"].append({"beams": 8, "seconds": [1.0]})
    found = compared(tmp_path, old, new)
    assert found.stdout == "     new          rows[beams=8].seconds\n"


def test_a_missing_record_is_one_line(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, SCRIPT, str(tmp_path / "none.json")], capture_output=True, text=True)
    assert found.returncode == 2
    assert "none.json" in found.stderr


def test_the_committed_records_are_read() -> None:
    for file in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        found = subprocess.run([sys.executable, SCRIPT, str(file), str(file)], capture_output=True, text=True)
        assert found.returncode == 0, (file, found.stderr)
