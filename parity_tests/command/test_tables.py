"""`port` and `parity` on sinusoids that aren't the formula's: one line says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import user_models
from parity_command import PYTORCH, Run

from jax_transformer.cli import main

LINE = "positions differ from the sinusoids of the formula: the encoder's by up to 1.0e-02, in row 3"


def test_a_comparison_says_so(run: Run) -> None:
    outcome = run("--reference", "user_marian:with_trained_sinusoids", stages="weights,forward")
    assert outcome.code == 0, outcome.output
    assert outcome.output.count(f"{LINE}; both sides were given the table of the checkpoint") == 1
    assert "positions differ" not in run("--reference", "user_marian:marian", stages="weights").output


def test_porting_says_so(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = user_models.pytorch()
    for name in ("right", "trained"):
        torch.save(module.state_dict(), tmp_path / f"{name}.pt")
        assert main(["port", str(tmp_path / f"{name}.pt"), str(tmp_path / name), *PYTORCH]) == 0
        output = " ".join(capsys.readouterr().out.split())
        both = f"{LINE}; the decoder's by up to 1.0e-02, in row 3; kept as the checkpoint has them"
        assert output.count(f"note: {both}") == (name == "trained"), output
        with torch.no_grad():
            module.positions[3] += 0.01
