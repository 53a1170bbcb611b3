"""A directory's generation_config.json becomes the model's defaults of decoding, is kept as it is, and is written for
models of our own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hugging_face_directories import make_config, make_model, write

from jax_transformer.cli import main
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.storage.model_directory import load_model
from jax_transformer.storage.tensors import PortingError


def test_what_it_says_of_decoding_is_told_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Byte for byte; and what no decoding here obeys is named."""
    there = write(tmp_path / "there")
    text = '{"num_beams":4,\r\n"encoder_repetition_penalty":1.20, "name": "\\u00e4", "num_beams": 3 }'
    (there / "generation_config.json").write_bytes(text.encode())
    assert main(["port", str(there), str(tmp_path / "model")]) == 0
    printed = capsys.readouterr().out
    assert "decoding: beam_size=3\n" in printed
    assert "not decoded by: encoder_repetition_penalty=1.2 (kept for export)\n" in printed
    assert load_model(tmp_path / "model").generation.beam_size == 3
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    assert (tmp_path / "back" / "generation_config.json").read_bytes() == text.encode()


def test_what_is_said_of_decoding_may_be_given_instead(tmp_path: Path) -> None:
    there = write(tmp_path / "there")
    (there / "generation_config.json").write_text('{"num_beams": 4, "max_length": 20}')
    model = import_checkpoint(there, beam_size=2, bad_words=[[4], [5, 6]])
    assert (model.generation.beam_size, model.generation.bad_words, model.generation.max_new_tokens) == (
        2,
        ((4,), (5, 6)),
        19,
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"num_beams": "4"}', r"there/generation_config\.json: num_beams must be an integer; received '4'"),
        ('{"num_beams": 4', r"there/generation_config\.json: no JSON"),
        ('{"early_stopping": "sometimes"}', "early_stopping must be .*; received 'sometimes'"),
        ('{"bad_words_ids": [4]}', r"bad_words must be .*; received \(4,\)"),
        ('{"max_length": 1}', "max_new_tokens must be at least 1; received 0"),
        ('{"forced_bos_token_id": 13}', "forced_bos_id must be below target_vocab_size=13; received 13"),
    ],
)
def test_what_cannot_be_said_of_decoding_is_refused(content: str, message: str, tmp_path: Path) -> None:
    there = write(tmp_path / "there")
    (there / "generation_config.json").write_text(content)
    with pytest.raises(PortingError, match=message):
        import_checkpoint(there)


def test_a_model_directory_of_the_first_format_is_exported(tmp_path: Path) -> None:
    """It has the content of generation_config.json in place of its text, of which its generation.json says nothing."""
    model = import_checkpoint(write(tmp_path / "there"))
    assert model.origin is not None
    content = {"num_beams": 4, "eos_token_id": 3, "length_penalty": 2.0}
    model.origin["hugging_face"]["generation_config"] = content
    changed = dataclasses.replace(model, generation=dataclasses.replace(model.generation, beam_size=2))
    for name, one, expected in (("back", model, content), ("changed", changed, content | {"num_beams": 2})):
        export_checkpoint(one, tmp_path / name)
        assert json.loads((tmp_path / name / "generation_config.json").read_text()) == expected


def test_a_model_that_was_trained_here_says_how_long_its_translations_are(tmp_path: Path) -> None:
    """Or else transformers would stop after 20 tokens."""
    generation = GenerationConfig(decoder_start_id=2, eos_id=3, max_decode_length=15, beam_size=4)
    export_checkpoint(
        dataclasses.replace(make_model(make_config("bart")), generation=generation), tmp_path / "there", "bart"
    )
    assert json.loads((tmp_path / "there" / "generation_config.json").read_text()) == {
        "pad_token_id": 1,
        "num_beams": 4,
        "max_new_tokens": 15,
        "decoder_start_token_id": 2,
        "eos_token_id": 3,
    }


def test_no_generation_config_is_made_up(tmp_path: Path) -> None:
    """transformers makes one of config.json where there is none."""
    export_checkpoint(import_checkpoint(write(tmp_path / "there", forced_eos_token_id=3)), tmp_path / "back")
    assert not (tmp_path / "back" / "generation_config.json").exists()


def test_a_start_or_an_end_that_generate_lacks_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = write(tmp_path / "there", "bart", bos_token_id=5)
    (there / "generation_config.json").write_text('{"max_length": 12.0}')
    assert main(["port", str(there), str(tmp_path / "model")]) == 0
    line = "ids:      decoder_start_id=2, eos_id=3, from config.json: transformers' generate has none\n"
    assert line in capsys.readouterr().out
    (there / "generation_config.json").write_text('{"bos_token_id": 5, "eos_token_id": 3}')
    assert main(["port", str(there), str(tmp_path / "other")]) == 0
    assert "ids:" not in capsys.readouterr().out
    generation = load_model(tmp_path / "other").generation
    assert (generation.decoder_start_id, generation.eos_id) == (5, 3)
    assert main(["port", str(tmp_path / "other"), str(tmp_path / "back")]) == 0
    assert (tmp_path / "back" / "generation_config.json").read_text() == '{"bos_token_id": 5, "eos_token_id": 3}'


def test_numbers_of_config_json_that_are_written_as_floats(tmp_path: Path) -> None:
    """And booleans as 0 and 1."""
    expected = import_checkpoint(write(tmp_path / "there", "bart"))
    written = json.loads((tmp_path / "there" / "config.json").read_text())
    as_floats = {
        key: float(value) if isinstance(value, int) else value
        for key, value in written.items()  # booleans too
    } | {"is_encoder_decoder": True}
    (tmp_path / "there" / "config.json").write_text(json.dumps(as_floats))
    model = import_checkpoint(tmp_path / "there")
    assert (model.config, model.generation) == (expected.config, expected.generation)
    assert {name: type(value) for name, value in vars(model.config).items()} == {
        name: type(value) for name, value in vars(expected.config).items()
    }
