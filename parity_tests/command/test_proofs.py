"""`jax-transformer parity --prove`, its certificates, and the proof at the end of a comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from parity_command import PYTORCH, Run, module

from jax_transformer.cli import main

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_a_module_is_proven_and_its_certificate_verified(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "proof.json"
    arguments = ["pytorch.pt", *PYTORCH, *module("pytorch"), "--prove"]
    outcome = run(*arguments, "--certificate", str(file), stages="forward,loss")
    assert outcome.code == 0, outcome.told
    assert "✓ forward:" in outcome.told
    held = json.loads(file.read_text())
    assert held["verdict"] == "proven"
    assert held["command"] == [*arguments, "--dtypes", "float64", "--stages", "forward,loss"]
    assert main(["parity", "--verify", str(file)]) == 0
    assert "holds: proven" in capsys.readouterr().out
    file.write_text(json.dumps({**held, "inputs": {}}))
    assert main(["parity", "--verify", str(file)]) == 4
    assert "the ids are others" in capsys.readouterr().out


def test_a_comparison_ends_with_a_proof(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module("pytorch"), stages="weights,forward,proof")
    assert outcome.code == 0, outcome.told
    assert "✓ proof: one function for all weights: forward, loss, gradients" in outcome.told


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--certificate", "proof.json"], "--certificate: expected --prove"),
        (["--prove", "--json", "report.json"], "--prove compares nothing in floats"),
        (["--prove", "--loss", "user_models:loss"], "--prove takes the built-in loss"),
        (["--prove"], "stages: expected some of forward, loss, gradients, steps; received weights"),
        (["--prove", "--certificate", "nowhere/proof.json"], "there is no nowhere"),
    ],
)
def test_wrong_options_are_one_clear_message(arguments: list[str], expected: str, run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *module("pytorch"), *arguments)
    assert outcome.is_one_clear_message, outcome.told
    assert expected in outcome.told


def test_a_file_that_is_no_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no.json").write_text('{"schema": 1}')
    assert main(["parity", "--verify", str(tmp_path / "no.json")]) == 2
    assert "expected a certificate" in capsys.readouterr().err
