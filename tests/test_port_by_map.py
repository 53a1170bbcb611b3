"""jax-transformer port --map: both directions, what it prints, and mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mapped_program import CONFIG, CONFIG_TEXT, MAP, make_tensors

from jax_transformer.cli import main
from jax_transformer.storage.model_directory import load_model
from jax_transformer.storage.tensor_files import read_tensors, write_tensors


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the working directory, with the program's checkpoint, its map and its config."""
    monkeypatch.chdir(tmp_path)
    write_tensors("model.safetensors", make_tensors("module."))
    (tmp_path / "map.yaml").write_text(MAP)
    (tmp_path / "config.yaml").write_text(CONFIG_TEXT)
    return tmp_path


TOLD = ["--map", "map.yaml", "--config", "config.yaml"]


def test_there_and_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", "model.safetensors", "model", *TOLD, "--eos-id", "3", "--set", "dropout_rate=0.3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "map:      46 entries",
        "file:     model.safetensors, 215 tensors, named module.…",
        "ignored:  module.steps, criterion.weight, module.enc.0.mask, module.enc.1.mask (kept for export)",
        "note:     positions differ from the sinusoids of the formula: the encoder's by up to 3.2e+00, in row 2; the "
        "decoder's by up to 3.2e+00, in row 2; kept as the checkpoint has them",
        "model:    model, 2,010 parameters, without vocabularies",
    ]
    model = load_model("model")
    assert (model.config.dropout_rate, model.config.tie_head, model.generation.eos_id) == (0.3, True, 3)
    (folder / "map.yaml").rename("other.yaml")
    assert main(["port", "model", "back.safetensors"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "map:      46 entries",
        "file:     back.safetensors, 2,010 parameters, 4 ignored tensors",
    ]
    back, tensors = read_tensors("back.safetensors"), make_tensors("module.")
    assert set(back) == set(tensors)
    assert all(back[name].tobytes() == tensor.tobytes() for name, tensor in tensors.items())
    assert main(["port", "back.safetensors", "again"]) == 0
    assert load_model("again").config == model.config
    capsys.readouterr()
    assert main(["port", "back.safetensors", "--inspect"]) == 0
    assert capsys.readouterr().out.endswith("exported by jax-transformer with its settings, by a map of names\n")


def test_another_map_for_export(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", "model.safetensors", "model", *TOLD]) == 0
    text = MAP.replace("enc.{i}", "layers.{i}").replace("  pe: ", "  # ").partition("ignore:")[0]
    (folder / "other.yaml").write_text(text)
    capsys.readouterr()
    assert main(["port", "model", "other.safetensors", "--map", "other.yaml"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "map:      45 entries",
        "file:     other.safetensors, 2,010 parameters",
        "          without position tables, which its programs compute; this model's tables differ from the computed "
        "ones, so keep the original file",
    ]
    assert "layers.1.attn.heads.2.q.weight" in read_tensors("other.safetensors")


def test_vocabularies_and_computed_positions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {name: tensor for name, tensor in make_tensors().items() if tensor.dtype == "float32" and name != "pe"}
    write_tensors("bare.safetensors", tensors)
    (folder / "bare.yaml").write_text(MAP.replace("  pe: ", "  # ").partition("ignore:")[0])
    (folder / "source.txt").write_text("\n".join(["<unk>", "<pad>", "</s>", *"abcdefghij"]) + "\n")
    (folder / "target.txt").write_text("\n".join(["<unk>", "<s>", "<pad>", "</s>", *"abcdefg"]) + "\n")
    message = ["--map", "bare.yaml", "--config", "config.yaml"]
    vocabularies = ["--source-vocab", "source.txt", "--target-vocab", "target.txt"]
    assert main(["port", "bare.safetensors", "model", *message, *vocabularies]) == 0
    printed = capsys.readouterr().out
    assert "computed: constants/encoder_positions, constants/decoder_positions (the map doesn't name them)" in printed
    assert "ready to translate" in printed
    assert load_model("model").generation.decoder_start_id == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model.safetensors", "model", "--map", "map.yaml"], "expected its config with the map (--config FILE)"),
        (["model.safetensors", "model", *TOLD, "--dialect", "bart"], "expected --map or --dialect; received both"),
        (["model.safetensors", "model", "--config", "config.yaml"], "--config config.yaml: expected --map;"),
        (["model.safetensors", "model", *TOLD, "--num-heads", "2"], "expected shape (3,); received (2,)"),
        (["model.safetensors", "model", "--map", "none.yaml"], "none.yaml: expected a YAML file that maps names"),
        (["model.safetensors", "model", *TOLD, "--set", "d_mode=3"], "d_mode: no such hint (nearest: d_model)"),
        (
            ["model.safetensors", "--inspect", "--map", "map.yaml"],
            "none of these with --inspect; received --map",
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert not Path("model").exists()


def test_a_config_that_does_not_fit_lists_what_does_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", "model.safetensors", "model", *TOLD, "--set", "d_ff=4", "--set", "num_encoder_layers=1"]) == 2
    problems = capsys.readouterr().err.splitlines()
    assert "does not fit the map of names and the config" in problems[0]
    assert any("dec.2.up.weight: expected shape (4, 6); received (5, 6)" in problem for problem in problems)
    assert any("unexpected tensor module.enc.1.attn.heads.0.q.weight" in problem for problem in problems)


def test_values_are_cast_and_ignored_ones_are_not(folder: Path) -> None:
    assert main(["port", "model.safetensors", "model", *TOLD, "--dtype", "float64"]) == 0
    assert main(["port", "model", "back.safetensors"]) == 0
    back = read_tensors("back.safetensors")
    assert back["module.src.weight"].dtype == np.float64
    assert back["criterion.weight"].dtype == np.float16
    assert load_model("model").config == CONFIG
