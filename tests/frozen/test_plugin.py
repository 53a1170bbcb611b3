"""The pytest plugin: failures without a traceback of ours, a JSON file for each test, and nothing loaded unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax_transformer as jt
from jax_transformer.plugin.parity import file_name

ROOT = Path(jt.__file__).parent.parent
SIDES = """
import numpy as np
from jax_transformer.parity import Side


def scaled(factor):
    return Side(lambda p, i: i["x"] @ p["kernel"] * factor, params={"kernel": np.ones((3, 2), np.float32)})


INPUTS = {"x": np.ones((2, 3), np.float32)}
"""
TESTS = """
import pytest
from jax_transformer.parity import assert_same
from sides import INPUTS, scaled


def test_same(parity):
    parity.assert_same(scaled(2.0), scaled(2.0), INPUTS, stages=["forward"])


@pytest.mark.parametrize("factor", [3.0])
def test_another(parity, factor):
    parity.assert_same(scaled(factor), scaled(2.0), INPUTS, stages=["forward"])


def test_without_the_fixture():
    assert_same(scaled(3.0), scaled(2.0), INPUTS, stages=["forward"])


def test_arrays(parity):
    parity.assert_parity({"logits": [1.0, 2.0]}, {"logits": [1.0, 2.5]})


def test_without():
    assert 1 + 1 == 2
"""
UNUSED = """
import sys


def test_nothing_is_loaded():
    assert not {"jax", "torch", "numpy", "jax_transformer.parity", "jax_transformer.comparison"} & {*sys.modules}
"""


def ran(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest in a fresh process, with the plugin as an installation registers it."""
    (folder / "sides.py").write_text(SIDES)
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    plugin = ["-p", "no:jax-transformer", "-p", "jax_transformer.plugin.parity", "-p", "no:cacheprovider"]
    # On a CI server pytest's last summary repeats whole messages, so that their lines couldn't be counted.
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *plugin, *options, "test_it.py"]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def test_failures_are_readable_and_reported(tmp_path: Path) -> None:
    result = ran(tmp_path, TESTS, "--jax-transformer-reports", "reports")
    assert "3 failed, 2 passed" in result.stdout, result.stdout + result.stderr
    assert "test_it.py:13\nrefuted: scaled.<locals>.<lambda> against scaled.<locals>.<lambda>" in result.stdout
    assert "AssertionError: refuted: scaled.<locals>.<lambda> against scaled.<locals>.<lambda>" in result.stdout
    assert result.stdout.count("first difference: output (forward)") == 2
    assert "first difference: output (forward)" in result.stdout
    assert "  repair: " in result.stdout
    assert "with 2.0, the two are proven the same" in result.stdout
    assert "  unknown: nothing" in result.stdout
    assert "proofs/api.py" not in result.stdout
    assert "plugin/parity.py" not in result.stdout
    found = {}
    for file in (tmp_path / "reports").iterdir():
        held = json.loads(file.read_text())
        found[held["test"]] = held
    assert {*found} == {f"test_it.py::test_{name}" for name in ("same", "another[3.0]", "arrays")}
    same, another = found["test_it.py::test_same"], found["test_it.py::test_another[3.0]"]
    assert (same["verdict"], same["passed"], same["first_difference"], same["repair"]) == ("proven", True, None, None)
    assert (another["verdict"], another["passed"], another["exit_code"]) == ("refuted", False, 1)
    assert another["first_difference"]["place"] == "output"
    assert "sides.py" in another["first_difference"]["candidate"]["line"]
    assert "proven the same" in another["repair"]
    assert another["details"]["stages"][0]["verdict"] == "refuted"
    arrays = found["test_it.py::test_arrays"]
    assert (arrays["verdict"], arrays["first_difference"]["place"]) == ("diverged", "logits")


def test_it_is_inert_if_unused(tmp_path: Path) -> None:
    result = ran(tmp_path, UNUSED, "--jax-transformer-reports", "reports")
    assert "1 passed" in result.stdout, result.stdout + result.stderr
    assert not (tmp_path / "reports").exists()


def test_files_of_different_tests_have_different_names() -> None:
    names = [f"tests/test_it.py::test[{each}]" for each in ("a/b", "a b", "x" * 300, "x" * 301)]
    files = [file_name(name) for name in names]
    assert len({*files}) == len(names)
    assert all(len(file) < 200 and "/" not in file for file in files)


def test_the_plugin_is_registered() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"jax-transformer": "jax_transformer.plugin.parity"}
