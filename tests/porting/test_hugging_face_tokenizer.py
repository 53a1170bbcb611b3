"""The tokenizer in a directory of transformers becomes the model's where it fits, and is kept for export byte for
byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from hugging_face_directories import write, write_tokenizer

from jax_transformer.cli import main
from jax_transformer.decoding.translation import translate
from jax_transformer.porting import import_checkpoint
from jax_transformer.storage.model_directory import load_model, save_model


def test_its_tokenizer_is_the_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of the embedding beyond it have no token."""
    there = write(tmp_path / "there", tokenizer_class="PreTrainedTokenizerFast")
    write_tokenizer(there / "tokenizer.json")
    (there / "tokenizer_config.json").write_text('{"clean_up_tokenization_spaces": true}')
    assert main(["port", str(there), str(tmp_path / "model")]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "text:     by tokenizer.json, tokenizer_config.json",
        "          tags >>deu<<",
        "          not done: clean_up_tokenization_spaces, so that spaces before punctuation stay",
        f"model:    {tmp_path / 'model'}, 3,516 parameters, ready to translate",
    ]
    model = load_model(tmp_path / "model")
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    assert (model.source_tokenizer.vocab_size, model.target_tokenizer.vocab_size) == (13, 13)
    assert model.source_tokenizer.encode(["w0 w4 x"]) == [[4, 8, 0, 3]]
    assert model.target_tokenizer.decode([[2, 4, 12, 9, 3]]) == ["w0 <unk>"]
    assert translate(model, ["w0 w1", ""])[1] == ""
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    assert (tmp_path / "back" / "tokenizer.json").read_bytes() == (there / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("names", "words", "message"),
    [
        (
            ("<unk>", "<pad>", "<s>", "</s>"),
            9,
            "its tokenizer: expected at most 13 tokens, the rows of the source embedding; received 14",
        ),
        (("<pad>", "<unk>", "<s>", "</s>"), 5, ""),  # padded with <unk>
        (("<s>", "<pad>", "<unk>", "</s>"), 5, ""),
        (
            ("<unk>", "<s>", "<pad>", "</s>"),
            5,
            "expected source_pad_id=1 to be its padding; received a list whose padding is 2",
        ),
        (("<s>", "<pad>", "</s>", "<unk>"), 5, "--eos-id: expected 2, as its tokenizer says; received 3"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_kept_but_not_used(
    names: tuple[str, ...], words: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = write(tmp_path / "there", tokenizer_class="PreTrainedTokenizerFast")
    write_tokenizer(there / "tokenizer.json", names, words)
    assert main(["port", str(there), str(tmp_path / "model")]) == 0
    assert ("kept for export, but not used: " in (out := capsys.readouterr().out)) == bool(message)
    assert f"{message}\n" in out
    model = load_model(tmp_path / "model")
    assert (model.source_tokenizer is None) == (model.target_tokenizer is None) == bool(message)
    assert model.tokenizer_files is not None


def test_vocabularies_that_are_given_prevail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = write(tmp_path / "there", tokenizer_class="PreTrainedTokenizerFast")
    write_tokenizer(there / "tokenizer.json")
    given = str(write_tokenizer(tmp_path / "given.json", words=7))
    options = ["--source-vocab", given, "--target-vocab", given]
    assert main(["port", str(there), str(tmp_path / "model"), *options]) == 0
    model = load_model(tmp_path / "model")
    assert model.source_tokenizer is not None
    assert model.source_tokenizer.vocab_size == 13
    assert model.source_tokenizer.encode(["w6"]) == [[10, 3]]
    write_tokenizer(tmp_path / "given.json", words=9)
    assert main(["port", str(there), str(tmp_path / "other"), *options]) == 2
    assert (
        f"{given}: expected at most 13 tokens, the rows of the source embedding; received 14" in capsys.readouterr().err
    )


def test_the_tokenizers_files_are_under_checksums(tmp_path: Path) -> None:
    directory = write(tmp_path / "there")
    (directory / "spiece.model").write_bytes(b"pieces")
    save_model(import_checkpoint(directory), tmp_path / "model")
    (tmp_path / "model" / "tokenizer" / "spiece.model").write_bytes(b"others")
    with pytest.raises(ValueError, match=r"tokenizer/spiece\.model: altered since it was saved"):
        load_model(tmp_path / "model")
    (tmp_path / "model" / "tokenizer" / "spiece.model").unlink()
    with pytest.raises(ValueError, match=r"tokenizer/spiece\.model: missing"):
        load_model(tmp_path / "model")
    (tmp_path / "model" / "tokenizer" / "another").write_bytes(b"smuggled")
    with pytest.raises(ValueError, match="tokenizer/another: not listed in manifest"):
        load_model(tmp_path / "model")
