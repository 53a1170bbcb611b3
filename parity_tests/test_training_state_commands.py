"""The commands port a training, continue it, and port it back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from text_families import PAIRS
from text_families import make_case as make_text_case

from jax_transformer.cli import main

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_the_commands_port_a_training_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a directory with an optimizer.pt, through a run of two more steps, to a directory and to a file."""
    monkeypatch.chdir(tmp_path)
    text = make_text_case("bart", tmp_path)
    optimizer = torch.optim.AdamW(text.model.parameters(), 1e-3, weight_decay=0.0)
    for _ in range(2):
        optimizer.zero_grad()
        text.model(input_ids=torch.tensor([[5, 6, 2]]), labels=torch.tensor([[7, 8, 2]])).loss.backward()
        optimizer.step()
    text.model.save_pretrained(text.directory)
    torch.save(optimizer.state_dict(), text.directory / "optimizer.pt")
    assert main(["port", str(text.directory), "model", "--with-optimizer"]) == 0
    assert "training: adam after 2 steps, moments of 49 parameters" in capsys.readouterr().out

    for side, number in (("en", 0), ("de", 1)):
        (tmp_path / f"text.{side}").write_text("".join(f"{pair[number]}\n" for pair in PAIRS[:10]), encoding="utf-8")
    options = (
        "--init-from model --init-optimizer --run-dir run --data.train text.en text.de --data.valid text.en text.de"
    )
    steps = "--train.max-steps 4 --train.evaluate-every 4 --train.evaluate-sentences 0 --train.schedule constant"
    quick = (
        "--data.batch-tokens 640 --data.num-shapes 1 --data.max-length 60 --data.max-unknown 1.0 --data.cache-dir cache"
    )
    arguments = [*options.split(), *steps.split(), *quick.split(), "--model.dropout-rate", "0.0"]
    assert main(["train", "finetune", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "continuing at step 2 with the adam state of model" in printed
    assert "note:" not in printed

    assert main(["port", "run", "back", "--with-optimizer"]) == 0
    assert "training: adam after 4 steps" in capsys.readouterr().out
    state = torch.load(tmp_path / "back" / "optimizer.pt", weights_only=True)
    assert {int(entry["step"]) for entry in state["state"].values()} == {4}
    assert state["param_groups"][0]["lr"] == 1e-3
    optimizer.load_state_dict(state)
    assert json.loads((tmp_path / "back" / "trainer_state.json").read_text())["global_step"] == 4
    assert main(["port", "run", "file.pt", "--with-optimizer", "--step", "4"]) == 0
    assert torch.load("file.pt", weights_only=True)["optimizer"]["state"].keys() == state["state"].keys()

    for wrong, expected in {
        ("port", "run", "file.pt", "--with-optimizer", "--step", "3"): "a step with a checkpoint (4); received 3",
        ("port", "run", "file.safetensors", "--with-optimizer"): "has no place for a training state",
        ("port", "run/model", "file.pt", "--with-optimizer"): "expected a model with a training state",
        ("port", "run", "file.pt", "--with-optimizer", "--dialect", "mvp"): "received dialect mvp: leave it out",
        ("port", "run", "file.pt", "--frozen", "encoder/*"): "expected --with-optimizer; received none",
        ("train", "finetune", *arguments, "--init-from", "run", "--run-dir", "other"): "with a training state, as port",
        ("train", "finetune", *arguments, "--train.max-steps", "2", "--run-dir", "other"): "more than the 2 steps",
        (
            "train",
            "finetune",
            *arguments,
            "--train.optimizer",
            "sgd",
            "--run-dir",
            "other",
        ): "expected adam, whose state",
    }.items():
        assert main(list(wrong)) == 2, wrong
        assert expected in capsys.readouterr().err, wrong
    assert not (tmp_path / "other").exists()
