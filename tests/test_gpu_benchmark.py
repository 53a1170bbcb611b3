"""The measurement on a GPU, on tiny models: parts end alone, and tables show what was written."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "gpu"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import parts
    import run
    import tables

    return argparse.Namespace(run=run, tables=tables, parts=parts)


def options(out: Path) -> argparse.Namespace:
    return argparse.Namespace(out=out, small=True, data=None, at_once=2, minutes=2.0, quick_compile=False)


def test_the_shortest_parts_run_on_a_cpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(FOLDER / "run.py"), "--small", "--least", "--minutes", "4", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = json.loads((tmp_path / "results.json").read_text())
    assert done.returncode == 0, done.stdout
    assert [row for row in rows if "error" in row] == []
    assert {row["part"] for row in rows} == {"options", "machine.ceilings", "train.jax_big", "attention.torch"}
    assert "| paper_big, V 300, 4 × 16 |" in done.stdout


def test_a_part_that_fails_or_takes_too_long_ends_alone(gpu: argparse.Namespace, tmp_path: Path) -> None:
    parts = [gpu.parts.Part("machine.missing", 60), gpu.parts.Part("machine.ceilings", 0.1)]
    run = gpu.run.Run(options(tmp_path), parts)
    run.run()
    run.close()
    rows = {row["part"]: row for row in gpu.run.read(tmp_path)}
    assert rows["machine.missing"]["error"].startswith("exit code 2: ")
    assert rows["machine.ceilings"]["error"] == "stopped after 0 s"
    assert run.active() == []


def test_only_the_last_results_of_a_part_count(gpu: argparse.Namespace, tmp_path: Path) -> None:
    lines = [{"run": run, "part": part, "what": run} for run, part in [(1, "a"), (1, "b"), (2, "a")]]
    (tmp_path / gpu.run.RESULTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(row["run"], row["part"]) for row in gpu.run.read(tmp_path)] == [(1, "b"), (2, "a")]


def test_the_page_shows_the_results_that_are_kept(gpu: argparse.Namespace, tmp_path: Path) -> None:
    page = ROOT / "docs" / "gpu.md"
    copy = tmp_path / "gpu.md"
    copy.write_text(page.read_text())
    gpu.run.write_page(copy, json.loads(gpu.run.KEPT.read_text()))
    assert copy.read_text() == page.read_text()
    files = {file.name: file.read_text() for file in (tmp_path / "tables").iterdir()}
    assert files == {file.name: file.read_text() for file in (page.parent / "tables").glob("gpu_*.csv")}
    assert files.keys() == {name for name, _ in gpu.tables.SHORTENED.values()}
    gpu.run.write_page(copy, [])
    assert "Nothing has been measured yet." in copy.read_text()
