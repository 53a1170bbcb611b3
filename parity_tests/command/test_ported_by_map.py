"""A user's program from `port --map` to `parity` and back: heads in maps of their own, tied and ignored tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import user_heads
from parity_command import Run

from jax_transformer.cli import main

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the checkpoint, its map and config, and the model that `port` makes of them."""
    path = tmp_path_factory.mktemp("heads")
    torch.save(user_heads.build().state_dict(), path / "heads.pt")
    (path / "map.yaml").write_text(user_heads.MAP)
    (path / "config.yaml").write_text(user_heads.CONFIG)
    output = ["--map", str(path / "map.yaml"), "--config", str(path / "config.yaml")]
    assert main(["port", str(path / "heads.pt"), str(path / "model"), *output]) == 0
    return path


def test_the_ported_module_is_the_same_function(run: Run, folder: Path, tmp_path: Path) -> None:
    """Whether it stands alone, with the map that the model keeps, or in an adapter, with the map's file; and what is
    written back is the module's again."""
    stages = "weights,masks,forward,loss,gradients,step"
    outcome = run("model", "--reference", "user_heads:build", stages=stages)
    assert outcome.code == 0, outcome.output
    assert "✓ masks: 3 of 3" in outcome.output, "from the logits of single heads"
    assert "✓ forward: 55 of 55" in outcome.output
    outcome = run("model", "--reference", "user_heads:adapter", "--map", "map.yaml", stages="weights,forward,gradients")
    assert outcome.code == 0, outcome.output
    assert "✓ forward: 55 of 55" in outcome.output
    assert main(["port", "model", str(tmp_path / "back.pt")]) == 0
    module = user_heads.Program()
    module.load_state_dict(torch.load(tmp_path / "back.pt", weights_only=True), strict=True)
    assert module.scale.tolist() == [2.0, float("inf")]


def test_modules_that_are_not_called_show_nothing(run: Run, folder: Path) -> None:
    """A map of parameters promises no activations of theirs. The six are hidden units and outputs of three layers."""
    outcome = run("model", "--reference", "user_heads:uncalled", stages="forward,gradients")
    assert outcome.code == 0, outcome.output
    assert "✓ forward: 49 of 49" in outcome.output


def test_a_module_of_one_precision_is_reported(run: Run, folder: Path) -> None:
    outcome = run("model", "--reference", "user_heads:float32_only", stages="weights,forward")
    assert outcome.code == 3, outcome.output
    assert "in float64: its forward raised TypeError: float32 alone" in outcome.output


@pytest.mark.parametrize(
    ("name", "node", "cause"),
    [
        ("other_eps", "decoder.layers.0.cross_attention_norm", "norm: ε = 1e-06"),
        ("other_head", "encoder.layers.1.self_attention.logits", "diverged"),
    ],
)
def test_faults_are_found_under_a_prefix_and_in_single_heads(name: str, node: str, cause: str, run: Run) -> None:
    outcome = run("model", "--reference", f"user_heads:{name}", stages="forward")
    assert outcome.code in (1, 4), outcome.output
    assert node in outcome.output
    assert cause in outcome.output


def test_mistakes(run: Run, tmp_path: Path) -> None:
    outcome = run("model")
    assert outcome.is_one_clear_message
    assert "was imported by a map of names, and its program isn't known: give a reference" in outcome.output
    for right, wrong, output in (
        ("[tgt.weight, out.weight]", "tgt.weight", "unexpected tensor out.weight"),
        ("ignore: [causal, scale]", "ignore: [causal]", "unexpected tensor scale"),
        ("enc.{i}.attn.heads.{n}.q.bias", "enc.{i}.heads.{n}.q.bias", "no tensor matches enc.{i}.heads.{n}.q.bias"),
        ("dec_ln.bias: decoder/final_norm/bias", "", "decoder/final_norm/bias (12,): no rule leads to it"),
    ):
        assert right in user_heads.MAP
        (tmp_path / "wrong.yaml").write_text(user_heads.MAP.replace(right, wrong))
        outcome = run("model", "--reference", "user_heads:build", "--map", str(tmp_path / "wrong.yaml"))
        assert outcome.is_one_clear_message, outcome.output
        assert output in outcome.output
