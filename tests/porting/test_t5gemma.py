"""T5Gemma's config.json: a part for each stack, in the words of transformers 4 and 5."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hugging_face_directories import make_config, make_model, write
from test_one_level import with_part

from jax_transformer.config.model import TransformerConfig
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.porting.hugging_face import config_fields
from jax_transformer.porting.one_level import config_from
from jax_transformer.storage.tensors import PortingError

TABLE = get_dialect("t5gemma")
SLIDING, FULL = "sliding_attention", "full_attention"


def published(**sides: dict[str, Any]) -> dict[str, Any]:
    """The settings of google/t5gemma-ml-ml-prefixlm, as transformers 4.53 wrote them."""
    side = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0,
        "classifier_dropout_rate": 0.0,
        "dropout_rate": 0.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "initializer_range": 0.02,
        "intermediate_size": 6912,
        "layer_types": [SLIDING, FULL] * 13,
        "max_position_embeddings": 8192,
        "model_type": "t5_gemma_module",
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "use_cache": True,
        "vocab_size": 256000,
    }
    return {
        "architectures": ["T5GemmaForConditionalGeneration"],
        "classifier_dropout_rate": 0.0,
        "dropout_rate": 0.0,
        "encoder": side | sides.get("encoder", {}),
        "decoder": side | {"is_decoder": True, "cross_attention_hidden_size": 1152} | sides.get("decoder", {}),
        "is_encoder_decoder": True,
        "model_type": "t5gemma",
        "pad_token_id": 0,
    }


def read(json: dict[str, Any]) -> TransformerConfig:
    """The config that the settings say."""
    assert TABLE.config_file is not None
    return config_from({**TABLE.defaults, **TABLE.fixed, **config_fields(TABLE.config_file, json)})


def test_the_settings_of_a_published_checkpoint() -> None:
    """The encoder's window counts the query, sliding_window only its neighbours on either side."""
    config = read(published())
    assert TABLE.refusals(config) == []
    assert (config.num_encoder_layers, config.num_decoder_layers, config.d_model, config.d_ff) == (26, 26, 1152, 6912)
    assert (config.source_vocab_size, config.target_vocab_size, config.tie_head) == (256000, 256000, True)
    assert [part.window for part in config.attentions] == [4097, 4096, None]
    assert [part.full_every for part in config.attentions] == [2, 2, None]
    assert [part.logits_cap for part in config.attentions] == [50.0] * 3
    assert config.attention_scale is None  # 1/√head_dim, as query_pre_attn_scalar says
    assert (config.logits_cap, config.max_length, config.norm_eps, config.rotary_base) == (30.0, 8192, 1e-6, 1e4)
    assert config.encoder.dropout.at("attention") == 0.0


@pytest.mark.parametrize(
    ("side", "path", "value"),
    [
        ({"layer_types": [FULL] * 26}, "self_attention.window", None),
        ({"layer_types": [SLIDING] * 26}, "self_attention.full_every", None),
        ({"layer_types": ([SLIDING] * 5 + [FULL]) * 4 + [SLIDING] * 2}, "self_attention.full_every", 6),
        ({"rope_theta": 500.0}, "positions.base", 500.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 20.0}}, "positions.base", 20.0),
        ({"rope_parameters": {"rope_theta": 20.0}, "rope_theta": 500.0}, "positions.base", 20.0),
        ({"query_pre_attn_scalar": 64}, "self_attention.scale", 0.125),
        ({"attn_logit_softcapping": None}, "self_attention.logits_cap", None),
    ],
)
def test_other_settings_of_a_stack(side: dict[str, Any], path: str, value: Any) -> None:
    config = read(published(encoder=side))
    part, _, field = path.partition(".")
    assert getattr(getattr(config.encoder, part), field) == value
    assert getattr(getattr(config.decoder, part), field) != value
    assert TABLE.refusals(config) == []


@pytest.mark.parametrize(
    ("side", "problem"),
    [
        ({"attention_bias": True}, "decoder.attention_bias must be False; received True"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            "decoder.rope_parameters.rope_type must be 'default'; received 'linear'",
        ),
        ({"rope_scaling": {"type": "yarn"}}, "decoder.rope_parameters.rope_type must be 'default'; received 'yarn'"),
        (
            {"layer_types": [FULL, SLIDING], "num_hidden_layers": 2},
            "decoder.layer_types must be sliding_attention but for each n-th layer, or full_attention in all; received "
            "full_attention, sliding_attention",
        ),
        (
            {"hidden_size": 2304},
            "decoder.hidden_size must be encoder.hidden_size=1152; received 2304: no config has stacks of two widths",
        ),
        ({"pad_token_id": 3}, "pad_token_id must be decoder.pad_token_id=3; received 0"),
    ],
)
def test_a_model_that_no_config_expresses_is_refused(side: dict[str, Any], problem: str) -> None:
    with pytest.raises(PortingError) as error:
        read(published(decoder=side))
    assert error.value.problems == [problem]


def differing() -> TransformerConfig:
    """A model whose stacks differ in all that they may."""
    config = make_config("t5gemma", decoder_num_kv_heads=1, decoder_head_dim=2, decoder_activation="relu")
    config = config.replace(logits_cap=7.0, num_decoder_layers=3, dropout_rate=0.0, attention_dropout_rate=0.0)
    for stack, more in (
        ("encoder", {"window": 4, "logits_cap": 3.0}),
        ("decoder", {"window": 5, "full_every": 2, "logits_cap": 2.0, "scale": 0.5}),
    ):
        config = with_part(config, f"{stack}.self_attention", **more)
    config = with_part(config, "decoder.cross_attention", logits_cap=2.0, scale=0.5)
    config = with_part(config, "encoder.norm", eps=1e-3)
    return with_part(config, "decoder.positions", base=70.0)


def test_a_directory_and_a_file_keep_what_may_differ_between_the_stacks(tmp_path: Path) -> None:
    config = differing()
    for path in (tmp_path / "directory", tmp_path / "model.safetensors"):
        export_checkpoint(make_model(config), path, "t5gemma")
        back = import_checkpoint(path).config
        for stack in ("encoder", "decoder"):
            assert getattr(back, stack).heads == getattr(config, stack).heads
            assert getattr(back, stack).positions == getattr(config, stack).positions
            assert getattr(back, stack).norm == getattr(config, stack).norm
        assert [(part.window, part.full_every, part.scale, part.logits_cap) for part in back.attentions] == [
            (4, None, None, 3.0),
            (5, 2, 0.5, 2.0),
            (None, None, 0.5, 2.0),
        ]
        assert (back.decoder.feed_forward, back.head) == (config.decoder.feed_forward, config.head)
    written = json.loads((tmp_path / "directory" / "config.json").read_text())
    assert [written[stack]["sliding_window"] for stack in ("encoder", "decoder")] == [3, 5]
    assert written["decoder"]["layer_types"] == [SLIDING, FULL, SLIDING]
    assert written["decoder"]["query_pre_attn_scalar"] == 4


@pytest.mark.parametrize(
    ("place", "options", "problems"),
    [
        (
            "decoder.self_attention",
            {"scale": 0.3},
            [
                "decoder.cross_attention.scale must be decoder.self_attention.scale=0.3; received 0.5",
                "decoder.self_attention.scale must be null, or the reciprocal root of an integer; received 0.3",
            ],
        ),
        (
            "encoder.self_attention",
            {"scale": 0.0},
            ["encoder.self_attention.scale must be null, or the reciprocal root of an integer; received 0.0"],
        ),
        ("encoder.self_attention", {"window": 1}, ["encoder.self_attention.window must be at least 2; received 1"]),
        ("encoder.norm", {"scale_offset": 0.0}, ["encoder.norm.scale_offset must be 1.0; received 0.0"]),
        (
            "decoder.cross_attention",
            {"logits_cap": 9.0},
            ["decoder.cross_attention.logits_cap must be decoder.self_attention.logits_cap=2.0; received 9.0"],
        ),
    ],
)
def test_a_config_without_words_in_config_json_is_refused(
    place: str, options: dict[str, Any], problems: list[str]
) -> None:
    assert TABLE.refusals(with_part(differing(), place, **options)) == problems


def test_targets_start_in_their_training_with_what_starts_them_here(tmp_path: Path) -> None:
    """transformers takes the decoder's bos_token_id, and generate that of generation_config.json."""
    export_checkpoint(make_model(make_config("t5gemma")), tmp_path / "there", "t5gemma")
    config = json.loads((tmp_path / "there" / "config.json").read_text())
    assert (config["decoder"]["bos_token_id"], config["decoder_start_token_id"]) == (2, 2)
    assert "bos_token_id" not in config["encoder"]


def test_several_end_tokens_come_back(tmp_path: Path) -> None:
    """As published models have them, for the end of a text and of a turn; what changes is written."""
    directory = write(tmp_path / "there", "t5gemma", eos_token_id=[3, 7])
    (directory / "generation_config.json").write_text('{"bos_token_id": 2, "eos_token_id": [3, 7], "pad_token_id": 1}')
    model = import_checkpoint(directory)
    assert (model.generation.eos_id, model.generation.more_eos_ids) == (3, (7,))
    export_checkpoint(model, tmp_path / "back")
    name = "generation_config.json"
    assert (tmp_path / "back" / name).read_bytes() == (directory / name).read_bytes()
    assert json.loads((tmp_path / "back" / "config.json").read_text())["eos_token_id"] == [3, 7]
    for more, written in (((8, 7), [3, 8, 7]), (None, 3)):
        changed = dataclasses.replace(model, generation=dataclasses.replace(model.generation, more_eos_ids=more))
        export_checkpoint(changed, tmp_path / f"{written}")
        for file in ("config.json", name):
            assert json.loads((tmp_path / f"{written}" / file).read_text())["eos_token_id"] == written
        assert import_checkpoint(tmp_path / f"{written}").generation == changed.generation


def test_a_directory_in_the_words_of_transformers_4_comes_back_as_it_was(tmp_path: Path) -> None:
    directory = write(tmp_path / "there", "t5gemma")
    content = json.loads((directory / "config.json").read_text())
    for stack in ("encoder", "decoder"):
        del content[stack]["rope_parameters"]
        content[stack] |= {"rope_theta": 300.0, "layer_types": None, "torch_dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(content))
    model = import_checkpoint(directory)
    assert model.config.rotary_base == 300.0
    assert (model.config.encoder.self_attention.window, model.config.decoder.self_attention.window) == (4097, 4096)
    export_checkpoint(model, tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == content | {"dtype": "float32"}
