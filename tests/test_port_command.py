"""jax-transformer port: both directions, --inspect, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from jax_transformer.cli import main
from jax_transformer.decoding.translation import translate
from jax_transformer.storage.model_directory import load_model

torch = pytest.importorskip("torch")

TOLD = ["--num-heads", "2", "--source-pad-id", "0", "--target-pad-id", "0"]


@pytest.fixture(scope="module")
def original() -> Any:
    """annotated_zh's model."""
    from torch_reference.annotated_zh import AnnotatedZhTransformer

    torch.manual_seed(0)
    sizes = {"source_vocab_size": 8, "target_vocab_size": 9, "d_model": 4, "num_heads": 2, "d_ff": 6, "max_length": 20}
    return AnnotatedZhTransformer(**sizes, num_encoder_layers=1, num_decoder_layers=2).eval()


@pytest.fixture(scope="module")
def file(original: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its checkpoint, saved while it was training on several GPUs."""
    path = tmp_path_factory.mktemp("checkpoint") / "model.pt"
    torch.save(
        {"epoch": 2, "model": {f"module.{name}": tensor for name, tensor in original.state_dict().items()}}, path
    )
    return path


def run(*arguments: str | Path) -> int:
    return main(["port", *map(str, arguments)])


def test_there_and_back(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, tmp_path / "model", "--dialect", "annotated_zh", *TOLD) == 0
    printed = capsys.readouterr().out
    assert "dialect:  annotated_zh" in printed
    assert "all named module.…" in printed
    assert "without vocabularies" in printed
    assert load_model(tmp_path / "model").config.num_decoder_layers == 2
    expected = torch.load(file, weights_only=True)["model"]
    assert run(tmp_path / "model", tmp_path / "back.pt") == 0
    assert run(tmp_path / "model", tmp_path / "back.safetensors") == 0
    parameters = sum(tensor.numel() for name, tensor in expected.items() if not name.endswith(".pe"))
    assert f"back.pt, {parameters:,} parameters" in capsys.readouterr().out
    back = torch.load(tmp_path / "back.pt", weights_only=True)
    assert list(back) == list(expected)
    assert all(torch.equal(back[name], tensor) for name, tensor in expected.items())
    assert run(tmp_path / "back.pt", "--inspect") == 0
    assert "exported by jax-transformer with its settings, as dialect annotated_zh" in capsys.readouterr().out
    for name in ("back.pt", "back.safetensors"):
        again = tmp_path / f"from {Path(name).suffix[1:]}"
        assert run(tmp_path / name, again) == 0
        assert "assumed" not in capsys.readouterr().out
        assert load_model(again).config == load_model(tmp_path / "model").config
    arrays = safetensors.numpy.load_file(tmp_path / "back.safetensors")
    assert arrays.keys() == expected.keys()
    assert all(np.array_equal(arrays[name], tensor.numpy()) for name, tensor in expected.items())


def test_with_vocabularies_it_translates(original: Any, file: Path, tmp_path: Path) -> None:
    """Translations equal those of PyTorch's own decoding."""
    from torch_reference.annotated_zh import greedy

    source, target = tmp_path / "source.txt", tmp_path / "target.txt"
    source.write_text("UNK\nBOS\nEOS\na\ncat\nsat\nPAD\n.\n")  # sentences are padded with UNK
    target.write_text("<unk>\n<s>\n</s>\n一\n只\n猫\n坐\n着\n。\n", encoding="utf-8")
    vocabularies = ["--source-vocab", source, "--target-vocab", target]
    assert run(file, tmp_path / "model", "--dialect", "annotated_zh", *TOLD, *vocabularies) == 0
    model = load_model(tmp_path / "model")
    assert (model.generation.decoder_start_id, model.generation.eos_id) == (1, 2)
    assert model.source_tokenizer is not None
    assert model.source_tokenizer.encode(["A cat sat."]) == [[1, 3, 4, 5, 7, 2]]
    assert model.generation.max_decode_length == 60
    assert model.target_tokenizer is not None
    ids = greedy(original, torch.tensor([[1, 3, 4, 5, 7, 2]]), 1, 2, 20).tolist()
    assert translate(model, ["A cat sat."]) == model.target_tokenizer.decode(ids) != [""]


def stepwise_file(directory: Path, source_words: int, target_words: int) -> Path:
    from torch_reference.stepwise import StepwiseTransformer

    torch.manual_seed(1)
    path = directory / "stepwise.pt"
    torch.save(StepwiseTransformer(source_vocab_size=source_words, target_vocab_size=target_words).state_dict(), path)
    return path


def test_the_same_token_may_begin_and_end_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So in stepwise's vocabularies, which also have no <unk>."""
    source, target = tmp_path / "source.txt", tmp_path / "target.txt"
    source.write_text("ein\nHund\n<PAD>\n")
    target.write_text("<PAD>\na\ndog\n<EOS>\nrests\n")
    file = stepwise_file(tmp_path, 3, 5)
    output = ["--dialect", "stepwise", "--num-heads", "2", "--source-pad-id", "2", "--target-pad-id", "0"]
    output += ["--source-vocab", source, "--target-vocab", target]
    assert run(file, tmp_path / "model", *output) == 0
    assert "parameters, ready to translate" in capsys.readouterr().out
    model = load_model(tmp_path / "model")
    assert (model.generation.decoder_start_id, model.generation.eos_id, model.generation.max_decode_length) == (
        3,
        3,
        40,
    )
    assert model.source_tokenizer is not None
    assert model.source_tokenizer.encode(["ein Hund"]) == [[0, 1]]
    assert set(translate(model, ["ein Hund"])[0].split()) <= {"a", "dog", "rests"}
    with pytest.raises(
        ValueError, match="expected tokens of the vocabulary only, for it has no <unk>; received 'eine'"
    ):
        translate(model, ["eine Hund"])
    assert run(file, tmp_path / "other", *output, "--decoder-start-id", "1") == 2
    assert f"--decoder-start-id: expected a special token of {target}, 0 or 3; received 1" in capsys.readouterr().err
    assert run(file, tmp_path / "other", *output, "--eos-id", "4") == 2
    assert f"--eos-id: expected 3, as {target} says; received 4" in capsys.readouterr().err
    target.write_text("<PAD>\na\ndog\nis\nrests\n")
    assert run(file, tmp_path / "model", *output) == 0
    assert (
        "without the ids that begin and end sentences: pass --decoder-start-id and --eos-id" in capsys.readouterr().out
    )
    assert run(file, tmp_path / "model", *output, "--decoder-start-id", "0", "--eos-id", "3") == 0
    source.write_text("ein\nHund\nruht\n")
    assert run(file, tmp_path / "other", *output) == 2
    assert (
        f"{source}: expected source_pad_id=2 to be its padding; received a list without any" in capsys.readouterr().err
    )
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_values_are_converted_on_request(file: Path, tmp_path: Path, dtype: str) -> None:
    """Position tables keep their precision."""
    assert run(file, tmp_path / "model", "--dialect", "harvard", *TOLD, "--dtype", dtype) == 0
    params = load_model(tmp_path / "model").params
    assert params["source_embedding"]["embedding"].dtype.name == dtype
    assert params["constants"]["encoder_positions"].dtype.name == ("float64" if dtype == "float64" else "float32")


def test_other_fields_are_set(file: Path, tmp_path: Path) -> None:
    options = ["--set", "dropout_rate=0.3", "--set", "norm-eps=1e-5", "--decoder-start-id", "1", "--eos-id", "2"]
    assert run(file, tmp_path / "model", "--dialect", "harvard", *TOLD, *options) == 0
    model = load_model(tmp_path / "model")
    assert (model.config.dropout_rate, model.config.norm_eps, model.generation.eos_id) == (0.3, 1e-5, 2)
    assert json.loads((tmp_path / "model" / "generation.json").read_text())["decoder_start_id"] == 1


def test_a_look_into_a_file(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--inspect") == 0
    printed = capsys.readouterr().out
    assert "src_embed.0.lut.weight" in printed
    assert "float32   8×4" in printed
    assert "the state_dict lies under 'model', and the model's names begin with 'module.'" in printed
    assert [line.split(":")[0] for line in printed.splitlines() if line.startswith("could be")] == [
        "could be annotated_zh",
        "could be harvard",
    ]
    torch.save({"a": torch.ones(())}, tmp_path / "other.pt")
    assert run(tmp_path / "other.pt", "--inspect") == 0
    assert capsys.readouterr().out.endswith("1 tensors, 1 values\nmatches no known dialect\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{file}", "{out}"], "several dialects have tensors of these names; say which this is"),
        (["{file}", "{out}", "--dialect", "annotated_zh"], "num_heads: how many heads its attentions have"),
        (
            ["{file}", "{out}", "--dialect", "annotated_zh", *TOLD[2:], "--num-heads", "3"],
            "num_heads must be a divisor of d_model=4",
        ),
        (["{file}", "{out}", "--dialect", "floydhub", *TOLD], "missing tensor encoder.embed.embed.weight"),
        (["{file}"], "expected two paths; received {file} alone"),
        (["{file}", "{out}.pt", "--dialect", "harvard", *TOLD], "expected a directory to write; received {out}.pt"),
        (["{file}", "{folder}", "--dialect", "harvard", *TOLD], "{folder} is a directory but no model's"),
        (["{folder}", "{out}"], "{folder} is no model directory (it has no manifest.json and no config.json)"),
        (
            ["{folder}", "{folder}/params.safetensors"],
            "expected a name outside of {folder}, whose files are under checksums",
        ),
        (["{folder}", "{out}/a.pt"], "there is no directory {out}"),
        (
            ["{file}", "{out}", "--dialect", "pytorch", *TOLD, "--set", "norm_first=[1]"],
            "norm_first must be True or False; received [1]",
        ),
        (["{file}", "{out}", "--inspect"], "expected none of these with --inspect; received {out}"),
        (["{file}", "--inspect", "--num-heads", "2"], "expected none of these with --inspect; received --num-heads"),
        (
            ["{folder}", "{out}.pt", "--num-heads", "2", "--set", "norm_eps=1"],
            "expected none of these with the directory {folder} as the source; received --num-heads, --set",
        ),
        (
            ["{file}", "{out}", "--dialect", "harvard", *TOLD, "--source-tokenizer", "words"],
            "expected none of these without --source-vocab and --target-vocab; received --source-tokenizer",
        ),
        (
            ["{file}", "{out}", "--dialect", "harvard", *TOLD, "--set", "num_heads=4"],
            "--set: expected num_heads=2, as set before; received 'num_heads=4'",
        ),
        (
            ["{file}", "{out}", "--dialect", "harvard", *TOLD, "--eos-id", "9"],
            "eos_id must be below target_vocab_size=9; received 9",
        ),
        (
            ["{file}", "{out}", "--dialect", "harvard", *TOLD, "--set", "dropout_rate"],
            "--set: expected FIELD=VALUE; received 'dropout_rate'",
        ),
        (
            ["{file}", "{out}", "--dialect", "harvard", *TOLD, "--source-vocab", "a.txt"],
            "expected both, or neither; received a.txt and None",
        ),
        (["nowhere.pt", "{out}"], "nowhere.pt: no such file or directory"),
        (["nowhere", "{out}.pt"], "nowhere: no such file or directory"),
    ],
)
def test_mistakes_give_an_error_and_write_nothing(
    file: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"file": file, "out": tmp_path / "out", "folder": file.parent}
    assert run(*(argument.format(**places) for argument in arguments)) == 2
    assert message.format(**places) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_vocabulary_of_another_size_is_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "v.txt").write_text("<unk>\n<s>\n</s>\n" + "".join(f"w{k}\n" for k in range(9)))
    options = [
        "--source-vocab",
        tmp_path / "v.txt",
        "--target-vocab",
        tmp_path / "v.txt",
        "--target-tokenizer",
        "words",
    ]
    assert run(file, tmp_path / "model", "--dialect", "harvard", *TOLD, *options, "--source-tokenizer", "words") == 2
    assert "expected 8 tokens, the rows of the source embedding; received 12" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_a_model_that_was_trained_here_needs_a_dialect(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import dataclasses

    from jax_transformer.storage.model_directory import save_model

    assert run(file, tmp_path / "model", "--dialect", "harvard", *TOLD) == 0
    save_model(dataclasses.replace(load_model(tmp_path / "model"), origin=None), tmp_path / "own")
    assert run(tmp_path / "own", tmp_path / "out.pt") == 2
    assert "a dialect must be given" in capsys.readouterr().err
    assert run(tmp_path / "own", tmp_path / "out.pt", "--dialect", "harvard") == 0
    names = list(torch.load(tmp_path / "out.pt", weights_only=True))
    assert not any(name.startswith("module.") for name in names)
    assert np.all(
        [name.split(".")[0] in ("encoder", "decoder", "src_embed", "tgt_embed", "generator") for name in names]
    )
