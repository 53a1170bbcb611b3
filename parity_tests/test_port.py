"""The command `port` on every system: a torch file becomes a model directory, which is the same function, and the same
file again.

(What else the command takes and refuses: tests/test_port_command.py.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from systems import SYSTEMS, TIED, Case, bits, make_case, quick_logits

from jax_transformer.cli import main
from jax_transformer.parity.gates.compare import compare
from jax_transformer.parity.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.storage.model_directory import load_model

OPTIONS = {"num_heads": "--num-heads", "source_pad_id": "--source-pad-id", "target_pad_id": "--target-pad-id"}
"""Of the command, for what import is told. It takes the rest by --set."""


def told(case: Case, folder: Path) -> list[str]:
    """The command's options for this case."""
    words = ["--dialect", case.system.dialect]
    for name, value in case.hints.items():
        words += [OPTIONS[name], str(value)] if name in OPTIONS else ["--set", f"{name}={value}"]
    if case.system.computes_positions:
        table = folder / "positions.npy"
        np.save(table, case.torch64.encoder.emb.positions.numpy())
        words += ["--position-table", str(table)]
    return words


@pytest.mark.parametrize("name", [*SYSTEMS, *TIED])
def test_a_checkpoint_is_ported_and_back(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))  # no folder at home
    case = make_case(name)
    theirs, directory, back = (str(tmp_path / path) for path in ("theirs.pt", "model", "back.pt"))
    torch.save(case.torch64.state_dict(), theirs)
    assert main(["port", theirs, directory, *told(case, tmp_path)]) == 0, capsys.readouterr().err
    model = load_model(directory)
    assert model.config == case.config
    with torch.no_grad():
        expected = case.torch64(*case.ids()).numpy()
    received = np.asarray(quick_logits(model.config, model.params, case.source_ids, case.decoder_input_ids))
    assert received.dtype == np.float64
    assert compare(received, expected).within(FLOAT64_RELATIVE_RMS), compare(received, expected)
    assert main(["port", directory, back]) == 0, capsys.readouterr().err
    assert bits(torch.load(back, weights_only=True)) == bits(torch.load(theirs, weights_only=True))
