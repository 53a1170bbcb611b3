"""Tables fit checkpoints of the sizes that were published: names and shapes, without weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from families import head_of

from jax_transformer.config.shapes import param_shapes
from jax_transformer.porting.dialects import all_dialects
from jax_transformer.porting.hugging_face import config_fields
from jax_transformer.porting.one_level import config_from


def _fairseq(d_model: int, layers: tuple[int, int], heads: int, d_ff: int, length: int, **more: Any) -> dict[str, Any]:
    sizes = {"d_model": d_model, "max_position_embeddings": length}
    for stack, count in zip(("encoder", "decoder"), layers, strict=True):
        sizes |= {f"{stack}_layers": count, f"{stack}_attention_heads": heads, f"{stack}_ffn_dim": d_ff}
    return sizes | more


def _t5(d_model: int, d_kv: int, d_ff: int, layers: tuple[int, int], heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"d_model": d_model, "d_kv": d_kv, "d_ff": d_ff, "num_heads": heads}
    return sizes | {"num_layers": layers[0], "num_decoder_layers": layers[1]} | more


def _t5gemma(d_model: int, layers: int, heads: int, head_dim: int, d_ff: int, kv_heads: int) -> dict[str, Any]:
    side = {"hidden_size": d_model, "num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": head_dim}
    side |= {"intermediate_size": d_ff, "num_key_value_heads": kv_heads, "query_pre_attn_scalar": head_dim}
    return {"encoder": side, "decoder": dict(side)}


GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
SIZES: dict[str, tuple[type[Any], dict[str, Any], float]] = {
    "mBART": (transformers.MBartConfig, _fairseq(1024, (12, 12), 16, 4096, 1024, vocab_size=250027), 0.611e9),
    "mBART-50": (transformers.MBartConfig, _fairseq(1024, (12, 12), 16, 4096, 1024, vocab_size=250054), 0.611e9),
    "PEGASUS large": (
        transformers.PegasusConfig,
        _fairseq(1024, (16, 16), 16, 4096, 1024, vocab_size=96103),
        0.568e9,
    ),
    "Blenderbot 400M": (transformers.BlenderbotConfig, _fairseq(1280, (2, 12), 32, 5120, 128), 0.365e9),
    "Blenderbot 3B": (transformers.BlenderbotConfig, _fairseq(2560, (2, 24), 32, 10240, 128), 2.70e9),
    "Blenderbot Small": (
        transformers.BlenderbotSmallConfig,
        _fairseq(512, (8, 8), 16, 2048, 512, vocab_size=54944),
        0.0875e9,
    ),
    "PLBART base": (transformers.PLBartConfig, {}, 0.139e9),
    "MVP": (transformers.MvpConfig, {}, 0.406e9),
    "ByT5 small": (transformers.T5Config, _t5(1472, 64, 3584, (12, 4), 6, vocab_size=384, **GATED), 0.300e9),
    "ByT5 XXL": (transformers.T5Config, _t5(4672, 64, 12352, (36, 12), 64, vocab_size=384, **GATED), 12.9e9),
    "CodeT5 base": (transformers.T5Config, _t5(768, 64, 3072, (12, 12), 12, vocab_size=32100), 0.223e9),
    "MADLAD-400 3B": (transformers.T5Config, _t5(1024, 128, 8192, (32, 32), 16, vocab_size=256000, **GATED), 2.68e9),
    "Chronos-T5 small": (transformers.T5Config, _t5(512, 64, 2048, (6, 6), 8, vocab_size=4096), 0.0462e9),
    "Chronos-T5 large": (transformers.T5Config, _t5(1024, 64, 4096, (24, 24), 16, vocab_size=4096), 0.709e9),
    "UL2 20B": (
        transformers.T5Config,
        _t5(4096, 256, 16384, (32, 32), 16, feed_forward_proj="gated-silu", tie_word_embeddings=False),
        19.5e9,
    ),
    "T5Gemma S-S": (transformers.T5GemmaConfig, _t5gemma(512, 8, 8, 64, 1024, 8), 312_517_632),
    "T5Gemma B-B": (transformers.T5GemmaConfig, _t5gemma(768, 12, 12, 64, 2048, 12), 591_490_560),
    "T5Gemma ML-ML": (transformers.T5GemmaConfig, _t5gemma(1152, 26, 4, 256, 6912, 4), 2_200_345_344),
    "T5Gemma XL-XL": (transformers.T5GemmaConfig, _t5gemma(2048, 24, 32, 64, 5120, 32), 3_766_980_608),
}
"""Sizes of checkpoints, and their numbers of parameters, about or exactly. (MADLAD's file has 2.94e9, with a copy of
the embedding.)"""


@pytest.mark.parametrize("name", SIZES)
def test_names_and_shapes_equal_transformers(name: str) -> None:
    kind, sizes, parameters = SIZES[name]
    config, tolerance = kind(**sizes), 0.02 if isinstance(parameters, float) else 0.0
    with torch.device("meta"):
        theirs = transformers.AutoModelForSeq2SeqLM.from_config(config)
    assert sum(tensor.numel() for tensor in theirs.parameters()) == pytest.approx(parameters, rel=tolerance)
    table = next(
        one for one in all_dialects().values() if one.config_file and one.config_file.model_type == kind.model_type
    )
    assert table.config_file is not None
    decoder = theirs.get_decoder().get_input_embeddings()
    fields = config_fields(table.config_file, config.to_dict()) | {"tie_head": head_of(theirs).weight is decoder.weight}
    ours = config_from({**table.fixed, **table.defaults, **fields})
    table.check_config(ours)
    leaves = param_shapes(ours)
    received = {
        name: rule.torch_shape(leaves)
        for rule in table.rules(ours)
        for place in rule.places(leaves)
        for name in place.names
    }
    expected = {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}
    assert {name: received.get(name) for name in expected} == expected
