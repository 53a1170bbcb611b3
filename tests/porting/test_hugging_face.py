"""Directories of transformers become model directories and come back, whatever their config.json and weights are
called. (What they compute: parity_tests.)"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hugging_face_directories import FAMILIES, METADATA, make_config, make_model, write
from safetensors.numpy import save_file

from jax_transformer.cli import main
from jax_transformer.config.short_names import flat
from jax_transformer.model import functional
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import load_model


@pytest.mark.parametrize("name", FAMILIES)
def test_a_directory_becomes_a_model_directory_and_comes_back(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = write(tmp_path / "there", name)
    (there / "source.spm").write_bytes(b"\x00pieces")
    (there / "generation_config.json").write_text(json.dumps({"num_beams": 4, "eos_token_id": 3}))
    assert main(["port", str(there), str(tmp_path / "model")]) == 0
    printed = capsys.readouterr().out
    assert f"dialect:  {name}\n" in printed
    kept = "its tokenizer files are kept for export, but not used: expected"
    assert f"text:     {'transcripts by' if name == 'whisper' else kept} " in printed
    assert "parameters, without vocabularies\n" in printed
    model = load_model(tmp_path / "model")
    assert (model.generation.decoder_start_id, model.generation.eos_id) == (2, 3)
    assert model.tokenizer_files == {"source.spm": b"\x00pieces"}
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    for file in ("model.safetensors", "source.spm"):
        assert (tmp_path / "back" / file).read_bytes() == (there / file).read_bytes()
    config, generation = (
        json.loads((tmp_path / "back" / f"{file}.json").read_text()) for file in ("config", "generation_config")
    )
    assert config == json.loads((there / "config.json").read_text()) | {"dtype": "float32", "pad_token_id": 1}
    assert generation == {"num_beams": 4, "eos_token_id": 3}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_that_was_trained_here_can_go_to_transformers(name: str, tmp_path: Path) -> None:
    """Its config.json says all that its config does."""
    model = make_model(make_config(name, dropout_rate=0.2))
    export_checkpoint(model, tmp_path / "there", name)
    back = import_checkpoint(tmp_path / "there")
    before, after = flat(model.config), flat(back.config)
    of_dropout = {
        name for name in before if name.endswith("dropout_rate")
    }  # None is dropout_rate, and T5 has one rate for all
    assert {name for name in before if before[name] != after[name]} <= {*of_dropout, "head_dim", "num_kv_heads"}
    for stack in ("encoder", "decoder"):
        assert getattr(back.config, stack).heads == getattr(model.config, stack).heads
    assert after["dropout_rate"] == 0.2
    expected, received = flatten(model.params), flatten(back.params)
    assert all(np.array_equal(expected[path], received[path]) for path in expected)


@pytest.mark.parametrize(
    ("name", "options", "fields"),
    [
        ("bart", {"num_attention_heads": 6}, {"num_heads": 6}),
        ("bart", {"num_attention_heads": 6, "encoder_attention_heads": ...}, {"num_heads": 6}),
        (
            "t5",
            {"feed_forward_proj": "gated-gelu", "dense_act_fn": "relu"},
            {"activation": "relu", "feed_forward_gated": True},
        ),
        (
            "t5",
            {"feed_forward_proj": "gated-gelu", "dense_act_fn": ...},
            {"activation": "gelu_tanh", "feed_forward_gated": True},
        ),
        ("t5", {"scale_decoder_outputs": None, "tie_word_embeddings": True}, {"scale_head": False}),
        ("t5", {"scale_decoder_outputs": ..., "tie_word_embeddings": True}, {"scale_head": True}),
        ("t5", {"architectures": ["T5WithLMHeadModel"]}, {}),
    ],
)
def test_what_config_json_says_in_other_words(
    name: str, options: dict[str, Any], fields: dict[str, Any], tmp_path: Path
) -> None:
    """As transformers takes it: other names of keys prevail, and so do T5's dense_act_fn and is_gated_act. It is
    written back as it was."""
    directory = write(tmp_path / "there", name, **options)
    model = import_checkpoint(directory)
    assert {field: getattr(model.config, field) for field in fields} == fields
    export_checkpoint(model, tmp_path / "back")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (directory, tmp_path / "back"))
    assert after == before | {"dtype": "float32"}


def test_a_config_that_changed_is_written_without_other_names(tmp_path: Path) -> None:
    model = import_checkpoint(write(tmp_path / "there", "bart", num_attention_heads=6))
    export_checkpoint(
        dataclasses.replace(model, config=dataclasses.replace(model.config, dropout_rate=0.4)), tmp_path / "back"
    )
    back = import_checkpoint(tmp_path / "back").config
    assert (back.dropout_rate, back.num_heads) == (0.4, 6)
    assert "num_attention_heads" not in json.loads((tmp_path / "back" / "config.json").read_text())


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_dtype_that_is_told_is_that_of_most_values(key: str, tmp_path: Path) -> None:
    """Whatever the first tensor has."""
    directory = write(tmp_path / "there", "marian", **{key: "float16"})
    assert main(["port", str(directory), str(tmp_path / "model"), "--dtype", "bfloat16"]) == 0
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "back")]) == 0
    content = json.loads((tmp_path / "back" / "config.json").read_text())
    assert [content[name] for name in ("dtype", "torch_dtype") if name in content] == ["bfloat16"]


def test_two_embeddings_leave_the_shared_one_unread(tmp_path: Path) -> None:
    """Models that aren't tied have it nonetheless, so it is left out and written anew."""
    from safetensors.numpy import load_file

    config = make_config("bart", share_embeddings=False, tie_head=False)
    export_checkpoint(make_model(config), tmp_path / "there", "bart")
    weights = tmp_path / "there" / "model.safetensors"
    tensors = load_file(weights)
    assert np.array_equal(tensors["model.shared.weight"], tensors["model.encoder.embed_tokens.weight"])
    save_file(tensors | {"model.shared.weight": np.ones((13, 12), np.float32)}, weights, METADATA)
    model = import_checkpoint(tmp_path / "there")
    assert model.origin is not None
    assert model.origin["ignored"] == ["model.shared.weight"]
    assert not model.config.share_embeddings
    export_checkpoint(model, tmp_path / "back")
    assert set(load_file(tmp_path / "back" / "model.safetensors")) == set(tensors)


@pytest.mark.parametrize(
    "kept", ["lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
)
@pytest.mark.parametrize("name", ["bart", "marian"])
def test_a_tied_embedding_may_have_any_of_its_names(name: str, kept: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    directory = write(tmp_path / "there", name)
    tensors = load_file(directory / "model.safetensors")
    tensors[kept] = tensors.pop("model.shared.weight")
    save_file(tensors, directory / "model.safetensors", METADATA)
    config = import_checkpoint(directory).config
    assert config.share_embeddings
    assert config.tie_head


def test_weights_of_two_precisions_run(tmp_path: Path) -> None:
    """As T5's in float16, whose feed-forwards end in float32."""
    from safetensors.numpy import load_file

    directory = write(tmp_path / "there", "t5")
    tensors = load_file(directory / "model.safetensors")
    halves = {name: tensor if ".wo." in name else tensor.astype(np.float16) for name, tensor in tensors.items()}
    ids = np.array([[4, 5, 6]])
    whole = import_checkpoint(directory)
    save_file(halves, directory / "model.safetensors", METADATA)
    model = import_checkpoint(directory)
    logits, expected = (functional.apply(one.config, one.params, ids, ids) for one in (model, whole))
    assert np.linalg.norm(logits - expected) < 0.02 * np.linalg.norm(expected)


def test_a_link_to_an_empty_directory_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    export_checkpoint(import_checkpoint(write(tmp_path / "there")), tmp_path / "link")
    assert (tmp_path / "real" / "config.json").is_file()


def test_tensors_that_no_program_reads_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write(tmp_path / "there")
    from safetensors.numpy import load_file

    extra = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors = load_file(directory / "model.safetensors")
    save_file(tensors | {extra: np.zeros((32, 3), np.float32)}, directory / "model.safetensors", METADATA)
    assert main(["port", str(directory), str(tmp_path / "model")]) == 0
    assert f"ignored:  {extra} (its programs don't read them)\n" in capsys.readouterr().out
