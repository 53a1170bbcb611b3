"""parity --diff: what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    rng = np.random.default_rng(0)
    arrays = {
        "mask.cross": np.array([True, False]),
        **{f"layers.{i}.output": rng.standard_normal((2, 3)) for i in range(60)},
    }
    other = arrays | {
        name: arrays[name] * (1 + 1e-6 * rng.standard_normal((2, 3)))
        for name in ("layers.58.output", "layers.59.output")
    }
    low = {name: array.astype(np.float32) if array.dtype == float else array for name, array in arrays.items()}
    for name, content in {"a": arrays, "b": other, "low": low, "fewer": {"mask.cross": arrays["mask.cross"]}}.items():
        np.savez(tmp_path / f"{name}.npz", **content)
    return {path.stem: str(path) for path in tmp_path.iterdir()}


def test_the_same_arrays(run: Run, files: dict[str, str], tmp_path: Path) -> None:
    code, out, _ = run("parity", "--diff", files["a"], files["a"], "--json", str(tmp_path / "report.json"))
    assert code == 0
    assert "61 arrays within their gates" in out
    assert "✓ arrays: 61 of 61 arrays pass" in out
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["verdict"], report["stages"][0]["compared"]) == ("passed", 61)
    assert list(report["sha256"]) == [files["a"]]
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_differences_come_first(run: Run, files: dict[str, str]) -> None:
    code, out, _ = run("parity", "--diff", files["b"], files["a"])
    assert code == 4
    lines = out.splitlines()
    assert lines[0].startswith("diverged: ")
    assert lines[1].startswith("first at layers.58.output (arrays): relative RMS ")
    assert "times what is allowed, most at [" in lines[1]
    table = [line for line in lines if line[:3] in ("✓  ", "✗  ")]
    assert [line[0] for line in table] == ["✗", "✗"]
    assert lines[-1].startswith("59 passing rows and checksums: --verbose")
    _, out, _ = run("parity", "--diff", files["b"], files["a"], "--verbose")
    table = [line for line in out.splitlines() if line[:3] in ("✓  ", "✗  ")]
    assert [line[0] for line in table].count("✗") == 2
    assert len(table) == 10
    assert "51 more that pass" in out
    assert "sha256 " in out


@pytest.mark.parametrize(
    ("candidate", "options", "code", "message"),
    [
        ("low", [], 4, "dtypes float32 and float64"),
        ("fewer", [], 3, "only the reference has layers.0.output, layers.1.output, layers.2.output and 57 more"),
        ("b", ["--tolerance", "1e-3"], 0, "within their gates"),
        ("b", ["--tolerance", "-1"], 2, "tolerance must be at least 0; received -1.0"),
        ("b", ["--truth", "nowhere.npz"], 2, "nowhere.npz: expected an .npz of named arrays; there is no such file"),
    ],
)
def test_exit_codes(
    candidate: str, options: list[str], code: int, message: str, run: Run, files: dict[str, str]
) -> None:
    received, out, err = run("parity", "--diff", files[candidate], files["a"], *options)
    assert received == code
    assert message in " ".join((out + err).split())


def test_lower_precision_wants_a_truth(run: Run, files: dict[str, str]) -> None:
    code, out, _ = run("parity", "--diff", files["low"], files["low"])
    assert code == 3
    assert "float32 has no criterion without a float64 truth" in out
    code, out, _ = run("parity", "--diff", files["low"], files["low"], "--truth", files["a"])
    assert code == 0
