"""Tests that `doctor` reports compilers that compute wrong results, which the package's flag prevents."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from jax_transformer.cli import main
from jax_transformer.integrity import doctor
from jax_transformer.runtime import compiler_flags
from jax_transformer.runtime.compiler_flags import FLAG, NAME, keep_products_apart

FUSED = f"{NAME}=LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE,LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"
"""What jaxlib 0.10.2 does by itself."""


@pytest.mark.skipif(not compiler_flags._has_flag(), reason="this jaxlib isn't known to have the flag")
def test_the_installed_versions_are_safe_with_the_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    keep_products_apart()
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert output.count("✓ ") == 3
    assert f"XLA_FLAGS: {FLAG}\n" in output
    assert output.endswith("these versions are safe here\n")


@pytest.mark.skipif("0.10.2" not in doctor.versions().get("jaxlib", ""), reason="other versions may be mended")
@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("sums of products over 16,385 rows", r"differs by "),
        ("sums along one of seven axes", "ended by SIG"),
    ],
)
def test_without_the_flag_they_arent(monkeypatch: pytest.MonkeyPatch, name: str, outcome: str) -> None:
    monkeypatch.setenv("XLA_FLAGS", FUSED)
    found = doctor._examined(name)
    assert not found.is_right
    assert found.outcome.startswith(outcome)


def test_a_sentinel_that_fails_or_never_ends_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "KeyError" in doctor._examined("no such one").outcome
    monkeypatch.setattr(doctor, "SECONDS", 0.01)
    assert doctor._examined("a training step in float64").outcome == "didn't end within 0.01 seconds"


@pytest.mark.parametrize(
    ("flags", "version", "expected"),
    [
        ("", "0.10.2", FLAG),
        ("--xla_a=1", "0.12.0.1", f"--xla_a=1 {FLAG}"),
        (f"{NAME}=", "0.10.2", f"{NAME}="),
        ("", "0.10.1", ""),
        ("", "0.13.0", ""),
        ("", "", ""),
    ],
)
def test_the_flag_is_added_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch, flags: str, version: str, expected: str
) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(compiler_flags, "_installed", lambda: version)
    keep_products_apart()
    assert os.environ["XLA_FLAGS"] == expected or (not expected and not os.environ["XLA_FLAGS"])


def test_importing_the_package_sets_the_flag() -> None:
    code = "import os, jax_transformer; print(os.environ.get('XLA_FLAGS', ''))"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    output = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == (FLAG if compiler_flags._has_flag() else "")
