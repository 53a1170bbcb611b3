"""The command `port` turns each system's checkpoint into a model directory of the same function, and back into the same
file. (tests/test_port_command.py has its options and refusals.)
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from systems import SYSTEMS, TIED, Case, bits, make_case

from jax_transformer.cli import main
from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.parity.backends.jax_sides import JaxSide
from jax_transformer.storage.model_directory import load_model

pytestmark = pytest.mark.usefixtures("quick_compilation")

OPTIONS = {"num_heads": "--num-heads", "source_pad_id": "--source-pad-id", "target_pad_id": "--target-pad-id"}
"""Hint of import → option of the command; --set takes the rest."""


def options(case: Case, folder: Path) -> list[str]:
    """Returns the command's options for this case."""
    words = ["--dialect", case.system.dialect]
    for name, value in case.hints.items():
        words += [OPTIONS[name], str(value)] if name in OPTIONS else ["--set", f"{name}={value}"]
    if case.system.computes_positions:
        table = folder / "positions.npy"
        np.save(table, case.program.encoder.emb.positions.numpy())
        words += ["--position-table", str(table)]
    return words


@pytest.mark.parametrize("name", [*SYSTEMS, *TIED])
def test_a_ported_checkpoint_is_the_same_function_and_comes_back_bit_for_bit(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))  # no folder at home
    case = make_case(name)
    theirs, directory, back = (str(tmp_path / path) for path in ("theirs.pt", "model", "back.pt"))
    torch.save(case.program.state_dict(), theirs)
    assert main(["port", theirs, directory, *options(case, tmp_path)]) == 0, capsys.readouterr().err
    model = load_model(directory)
    assert model.config == case.config
    with torch.no_grad():
        expected = case.program(*case.ids()).numpy()  # the published arguments decide, not the imported config
    problem = dataclasses.replace(case.problem, params=model.params)
    received = JaxSide("ported", model).forward(problem, "float64")["logits"]
    assert compare(received, expected).within(FLOAT64_RELATIVE_RMS), compare(received, expected)
    assert main(["port", directory, back]) == 0, capsys.readouterr().err
    assert bits(torch.load(back, weights_only=True)) == bits(torch.load(theirs, weights_only=True))
