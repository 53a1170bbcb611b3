"""Directories of transformers that can't be carried over, and models that can't become one, are refused with the
reason, and nothing is half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hugging_face_directories import make_config, make_model, write

from jax_transformer.cli import main
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.storage.model_directory import save_model
from jax_transformer.storage.tensors import PortingError


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "t5",
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "is_encoder_decoder": ...},
            r"model_type must be one of marian, .*whisper, encoder-decoder, t5gemma; received 'gpt2' "
            r"\(GPT2LMHeadModel\), which isn't said to be an encoder-decoder",
        ),
        (
            "t5",
            {"architectures": ["T5EncoderModel"]},
            r"architectures must be T5ForConditionalGeneration or T5Model or .*; received T5Enc",
        ),
        (
            "marian",
            {"architectures": ["MarianForCausalLM"], "is_decoder": True, "is_encoder_decoder": False},
            r"is_encoder_decoder must be True; received False\n.*is_decoder must be False; received True\n.*received "
            r"MarianForCausalLM",
        ),
        (
            "bart",
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "quantization_config: quantised weights can't be carried over",
        ),
        (
            "bart",
            {"activation_function": "tanh"},
            "activation_function must be one of relu, .*; received 'tanh', which isn't built here",
        ),
        ("t5", {"dense_act_fn": "mish"}, "dense_act_fn must be one of relu, .*; received 'mish'"),
        (
            "t5",
            {"feed_forward_proj": "gated-mish", "dense_act_fn": ...},
            "feed_forward_proj must be one of .*; received 'gated-mish'",
        ),
        (
            "t5",
            {"feed_forward_proj": "half-relu"},
            "feed_forward_proj must be NAME or gated-NAME; received 'half-relu'",
        ),
        (
            "bart",
            {"activation_function": ["gelu"]},
            r"activation_function must be one of relu, .*; received \['gelu'\]",
        ),
        ("bart", {"architectures": "BertModel"}, "architectures must be .*; received BertModel, which"),
        ("bart", {"architectures": [None, 1]}, "architectures must be .*; received None, 1, which"),
        ("bart", {"model_type": ["bart"]}, r"model_type must be one of .*; received \['bart'\]"),
        ("bart", {"hidden_size": 24}, "d_model: config.json says 24; the tensors say 12"),
        ("t5", {"head_dim": 5}, "head_dim: config.json says 5; the tensors say 4"),
        ("t5", {"num_hidden_layers": 1}, "num_encoder_layers: config.json says 1; the tensors say 2"),
        (
            "encoder_decoder",
            {"encoder": {"model_type": "gpt2", "hidden_size": 24}, "pad_token_id": 5},
            r"encoder.model_type must be 'bert' or 'roberta'; received 'gpt2'\n.*decoder.hidden_size must be "
            r"encoder.hidden_size=24; received 12: no config has a projection .*\n.*pad_token_id must be "
            r"decoder.pad_token_id=1; received 5",
        ),
        (
            "encoder_decoder",
            {"decoder": {"model_type": "bert", "is_decoder": False, "position_embedding_type": "relative_key"}},
            r"decoder.position_embedding_type must be 'absolute'; received 'relative_key'\n.*decoder.is_decoder must "
            r"be True; received False",
        ),
        ("encoder_decoder", {"decoder": None}, "decoder.model_type must be 'bert' or 'roberta'; received None"),
        ("mvp", {"use_prompt": True}, "use_prompt must be False; received True"),
        ("marian", {"normalize_before": True}, "normalize_before must be False; received True"),
        ("bart", {"d_model": 24}, "d_model: config.json says 24; the tensors say 12"),
        ("t5", {"num_layers": 3}, "num_encoder_layers: config.json says 3; the tensors say 2"),
        ("t5", {"decoder_start_token_id": [3, 4]}, r"decoder_start_token_id must be one id; received \[3, 4\]"),
        ("t5", {"eos_token_id": [3, "4"]}, r"eos_token_id must be one id, or a list of ids; received \[3, '4'\]"),
    ],
)
def test_another_kind_of_model_is_refused(name: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    directory = write(tmp_path / "there", name, **options)
    with pytest.raises(PortingError, match=message):
        import_checkpoint(directory)
    assert main(["port", str(directory), str(tmp_path / "model")]) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bart", {"norm_eps": 0.1}, r"norm_eps must be 1e-05, as in its programs; received 0\.1"),
        (
            "bart",
            {"share_embeddings": False, "target_vocab_size": 17},
            "target_vocab_size must be source_vocab_size=13; received 17",
        ),
    ],
)
def test_what_a_directory_cannot_tell_is_refused(
    name: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PortingError, match=message):
        export_checkpoint(make_model(make_config(name, **options)), tmp_path / "there", name)
    assert list(tmp_path.iterdir()) == []


def test_another_family_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(import_checkpoint(write(tmp_path / "there", "t5")), tmp_path / "model")
    for name in ("marian", "bart"):
        assert main(["port", str(tmp_path / "model"), str(tmp_path / "out"), "--dialect", name]) == 2
        assert "norm_kind must be 'layer_norm'; received 'rms_norm'" in capsys.readouterr().err


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "there")
    (directory / "model.safetensors").rename(directory / "tf_model.h5")
    with pytest.raises(PortingError, match=r"expected weights, one of model\.safetensors, .*; received tf_model\.h5"):
        import_checkpoint(directory)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("missing.safetensors", "no such file"),
        ("../there/model.safetensors", "expected names of files in its own folder"),
    ],
)
def test_shards_that_are_missing_or_elsewhere_are_refused(place: str, message: str, tmp_path: Path) -> None:
    directory = write(tmp_path / "there")
    (directory / "model.safetensors").rename(directory / "shard.safetensors")
    places = {"shared.weight": "shard.safetensors", "lm_head.weight": place}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(PortingError, match=message):
        import_checkpoint(directory)


def test_a_config_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PortingError, match=r"config\.json: No such file or directory"):
        import_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PortingError, match=r"config\.json: no JSON"):
        import_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(PortingError, match="expected a JSON object; received list"):
        import_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(PortingError, match=r"config\.json: no JSON"):
        import_checkpoint(tmp_path)


def test_the_command_says_what_is_wrong_with_config_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "config.json").write_text("{}")
    assert main(["port", str(tmp_path / "there"), str(tmp_path / "model")]) == 2
    assert "config.json: model_type must be one of marian" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        ("led", "attention in windows, with global tokens"),
        ("longt5", "attention in windows, with summaries of blocks"),
        ("switch_transformers", "a feed-forward of routed experts"),
        ("nllb-moe", "a feed-forward of routed experts"),
        ("prophetnet", "decoder streams that predict several tokens ahead"),
        ("moonshine", "convolutions over samples of sound"),
    ],
)
def test_the_operation_that_a_family_lacks_here_is_named(kind: str, operation: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "architectures": ["Some"]}))
    with pytest.raises(PortingError, match=f"received '{kind}' \\(Some\\), with {operation}$"):
        import_checkpoint(tmp_path)


def test_hints_that_contradict_config_json_are_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "there")
    with pytest.raises(PortingError, match=r"activation: config\.json says 'silu'; received 'relu'"):
        import_checkpoint(directory, activation="relu")
    with pytest.raises(PortingError, match=r"dialect must be 't5', as its config\.json says; received 'mt5'"):
        import_checkpoint(directory, "mt5")
    assert import_checkpoint(directory, dropout_rate=0.4).config.dropout_rate == 0.4


def test_a_place_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    directory = write(tmp_path / "there")
    save_model(import_checkpoint(directory), tmp_path / "model")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    for place in ("taken", "there", "no/such/parent"):
        assert main(["port", str(tmp_path / "model"), str(tmp_path / place)]) == 2
    assert main(["port", str(tmp_path / "model"), str(tmp_path / "model" / "inside")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "taken", "there"]


def test_a_dialect_without_directories_says_so(tmp_path: Path) -> None:
    directory = write(tmp_path / "there")
    model = import_checkpoint(directory)
    with pytest.raises(
        PortingError, match=r"dialect harvard has no directories, as marian, .* have: expected a name that ends in \.pt"
    ):
        export_checkpoint(model, tmp_path / "out", "harvard")
