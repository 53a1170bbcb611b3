"""IndicTrans2's config.json: a vocabulary, a length and norms for each side; other models are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hugging_face_directories import make_config

from jax_transformer.config.model import TransformerConfig
from jax_transformer.porting.dialects import candidates, get_dialect
from jax_transformer.porting.hugging_face import config_fields
from jax_transformer.porting.one_level import config_from
from jax_transformer.storage.tensors import PortingError

TABLE = get_dialect("indictrans")
LARGE: dict[str, Any] = {
    "model_type": "IndicTrans",
    "encoder_vocab_size": 32322,
    "decoder_vocab_size": 122672,
    "encoder_embed_dim": 1024,
    "decoder_embed_dim": 1024,
    "encoder_layers": 18,
    "decoder_layers": 18,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 8192,
    "decoder_ffn_dim": 8192,
    "encoder_normalize_before": True,
    "decoder_normalize_before": True,
    "layernorm_embedding": True,
    "activation_function": "gelu",
    "max_source_positions": 256,
    "max_target_positions": 256,
    "dropout": 0.2,
}


def config_of(**more: Any) -> TransformerConfig:
    assert TABLE.config_file is not None
    fields = config_fields(TABLE.config_file, LARGE | more)
    return config_from({**TABLE.defaults, **TABLE.fixed, **TABLE.follows(fields), **fields})


def test_a_config_of_the_size_of_1b_is_read() -> None:
    config = config_of()
    assert (config.source_vocab_size, config.target_vocab_size) == (32322, 122672)
    for stack in (config.encoder, config.decoder):
        assert (stack.num_layers, stack.max_length, stack.table_rows) == (18, 256, 258)
        assert (stack.norm_placement, stack.final_norm, stack.embedding_norm) == ("pre", True, "after_positions")
        assert (stack.dropout.rate, stack.embedding_scale) == (0.2, "sqrt_d_model")
    assert not config.share_embeddings
    assert not config.tie_head
    assert config.source_pad_id == config.target_pad_id == 1


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"decoder_normalize_before": False, "layernorm_embedding": False, "max_target_positions": 200},
        {"encoder_normalize_before": False, "share_decoder_input_output_embed": True, "activation_function": "relu"},
        {"scale_embedding": False, "decoder_ffn_dim": 99, "decoder_attention_heads": 8, "decoder_layers": 3},
    ],
)
def test_the_file_that_is_written_is_read_again(more: dict[str, Any]) -> None:
    assert TABLE.config_file is not None
    config = config_of(**more)
    assert TABLE.refusals(config) == []
    written = TABLE.config_file.write(config)
    assert written.items() >= {key: value for key, value in (LARGE | more).items() if key != "model_type"}.items()
    assert config_of(**written) == config


def test_stacks_of_two_widths_are_refused() -> None:
    with pytest.raises(PortingError, match="decoder_embed_dim must be encoder_embed_dim=1024; received 512"):
        config_of(decoder_embed_dim=512)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"final_norm": False}, "final_norm must be True with norm_placement='pre'; received False"),
        ({"decoder_final_norm": False}, "decoder_final_norm must be True with norm_placement='pre'; received False"),
        ({"decoder_embedding_norm": "none"}, "decoder_embedding_norm must be encoder_embedding_norm='after_positions'"),
        ({"share_embeddings": True, "tie_head": True}, "share_embeddings must be False; received True"),
        ({"target_pad_id": 2}, "target_pad_id must be source_pad_id=1; received 2"),
        ({"position_offset": 0}, "position_offset must be source_pad_id=1; received 0"),
        ({"num_heads": 2, "head_dim": 3}, "head_dim must be d_model / num_heads = 6; received 3"),
    ],
)
def test_configs_without_such_models_are_refused(options: dict[str, Any], message: str) -> None:
    config = make_config("indictrans", decoder_norm_placement=None, decoder_final_norm=None)
    assert TABLE.refusals(config) == []
    assert message in "\n".join(TABLE.refusals(config.replace(**options)))


def test_names_alone_are_taken_for_m2m_100() -> None:
    names = [
        *(f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")),
        *(f"model.{stack}.layers.0.self_attn.q_proj.weight" for stack in ("encoder", "decoder")),
        "model.encoder.layer_norm.weight",
        "lm_head.weight",
    ]
    assert TABLE.recognises(names)
    assert "indictrans" not in [table.name for table in candidates(names)]
