"""The systems of SYSTEMS.md, as combinations of values: each is a config, runs forward, and has the properties that its
masks allow."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from jax_transformer.config.model import TransformerConfig

pytestmark = pytest.mark.usefixtures("quick_compilation")

SIZES: dict[str, Any] = {
    "source_vocab_size": 13, "target_vocab_size": 11, "d_model": 12, "num_heads": 3, "d_ff": 7, "num_encoder_layers": 2,
    "num_decoder_layers": 2, "max_length": 20, "source_pad_id": 1, "target_pad_id": 1,
}  # fmt: skip

STD_PLUS_EPS = {"norm_eps_outside": True, "norm_unbiased": True, "norm_eps": 1e-6}
PRE = {"norm_placement": "pre", "final_norm": True}
OPEN_DECODING = {"decoding_decoder_padding": "none"}
NO_DROPOUT = {"dropout_rate": 0.0}

FLOYDHUB = {
    **PRE,
    **STD_PLUS_EPS,
    **OPEN_DECODING,
    "position_frequency": "doubled",
    "masked_value": -1e9,
    "attention_dropout_rate": 0.1,
    "embedding_dropout_rate": 0.1,
}
ANNOTATED_ZH = {
    **PRE,
    **OPEN_DECODING,
    "norm_unbiased": True,
    "norm_eps": 1e-6,
    "activation": "none",
    "masked_value": -1e9,
    "source_pad_id": 0,
    "target_pad_id": 0,
    "attention_dropout_rate": 0.1,
}
CODERSARTS = {
    **STD_PLUS_EPS,
    "norm_placement": "pre",
    "scale_embedding": False,
    "position_index": "batch_row",
    "masked_value": -1e9,
    "initializer": "torch",
}
SAYHELLO_BIAS = {
    "norm_eps_outside": True,
    "norm_unbiased": True,
    "norm_eps": 1e-12,
    "scale_embedding": False,
    "masked_value": -1e12,
    "encoder_padding": "both",
    "decoder_padding": "both",
    "cross_padding": "both",
    "decoder_padding_id": 1,
    "attention_dropout_rate": 0.0,
    "initializer": "kaiming_uniform",
}
HYUNWOONGKO = {
    "norm_eps": 1e-12,
    "scale_embedding": False,
    "masked_value": -10000,
    "decoder_padding": "queries",
    "attention_dropout_rate": 0.0,
    "initializer": "kaiming_uniform",
}
STEPWISE = {
    **NO_DROPOUT,
    "scale_embedding": False,
    "masked_value": -1e9,
    "encoder_padding": "queries",
    "decoder_padding": "queries",
    "cross_padding": "none",
    "initializer": "torch",
}
CORE = {
    **NO_DROPOUT,
    "num_heads": 1,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "norm_kind": "none",
    "feed_forward": False,
    "position_kind": "none",
    "attention_output": False,
    "attention_scale": 1.0,
    "scale_embedding": False,
    "encoder_padding": "none",
    "decoder_padding": "none",
    "cross_padding": "none",
    "decoder_causal": False,
}
MASKS = {**CORE, "encoder_padding": "keys", "decoder_padding": "keys", "decoder_causal": True, "masked_value": -1e9}
POSITIONS = {**MASKS, "position_kind": "sinusoidal"}
LAYERS = {**POSITIONS, "num_encoder_layers": 2, "num_decoder_layers": 2}
NORMS = {**LAYERS, "norm_kind": "layer_norm", "feed_forward": True, "attention_output": True}
OPEN_DECODER = {"decoder_padding": "none", "trains_pad_embedding": False, "tie_head": True}
MARIAN = {**OPEN_DECODER, "position_layout": "halves", "head_bias": "buffer", "activation": "silu"}
BART = {
    **OPEN_DECODER, "position_kind": "learned", "position_offset": 2, "encoder_embedding_norm": "after_positions",
    "decoder_embedding_norm": "after_positions", "head_bias": "buffer", "activation": "gelu", "scale_embedding": False,
}  # fmt: skip
M2M_100 = {
    **OPEN_DECODER,
    **PRE,
    "position_layout": "halves",
    "position_frequency": "inclusive",
    "position_index": "non_pad_count",
    "position_offset": 1,
    "head_bias": "none",
}
T5 = {
    **OPEN_DECODER,
    **PRE,
    "position_kind": "relative_bias",
    "relative_buckets": 6,
    "relative_max_distance": 4,
    "norm_kind": "rms_norm",
    "norm_bias": False,
    "attention_scale": 1.0,
    "attention_bias": False,
    "attention_output_bias": False,
    "feed_forward_bias": False,
    "head_bias": "none",
    "head_dim": 5,
    "scale_head": True,
    "scale_embedding": False,
    "output_dropout_rate": 0.1,
}


class System(NamedTuple):
    """A config's options, and which properties hold of it: independent rows, invisible padding, causality, an exact
    cache."""

    options: dict[str, Any]
    rows: bool = True
    padding: bool = True
    causal: bool = True
    cache: bool = True


SYSTEMS = {
    "floydhub": System(FLOYDHUB),
    "annotated_zh": System(ANNOTATED_ZH),
    "harvard": System({**ANNOTATED_ZH, "norm_eps_outside": True, "activation": "relu"}),
    "codersarts": System(CODERSARTS, rows=False),
    "codersarts_intended": System({**CODERSARTS, "position_index": "column"}),
    "sayhello_bias": System(SAYHELLO_BIAS, cache=False),
    "sayhello": System({**SAYHELLO_BIAS, "attention_bias": False, "attention_output_bias": False}, cache=False),
    "hyunwoongko": System(HYUNWOONGKO, padding=False, causal=False, cache=False),
    "stepwise": System(STEPWISE, padding=False, causal=False, cache=False),
    "stepwise_core": System(CORE, padding=False, causal=False, cache=False),
    "stepwise_masks": System(MASKS, padding=False),
    "stepwise_positions": System(POSITIONS, padding=False),
    "stepwise_layers": System(LAYERS, padding=False),
    "stepwise_norms": System(NORMS, padding=False),
    "pytorch_post": System({"final_norm": True}),
    "pytorch_pre_gelu": System({**PRE, "activation": "gelu"}),
    "marian": System(MARIAN),
    "bart": System(BART),
    "m2m_100": System(M2M_100),
    "t5": System(T5),
    "umt5": System({**T5, "relative_bias_per_layer": True, "feed_forward_gated": True, "activation": "gelu_tanh"}),
}


def make_config(name: str) -> TransformerConfig:
    return TransformerConfig.from_flat(SIZES | SYSTEMS[name].options)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_is_a_config_with_its_properties(name: str) -> None:
    config = make_config(name)
    properties = (
        config.batch_rows_are_independent,
        config.padding_is_invisible,
        config.is_causal,
        config.cache_is_exact,
    )
    assert properties == SYSTEMS[name][1:]


def test_no_two_systems_are_the_same() -> None:
    assert len({make_config(name) for name in SYSTEMS}) == len(SYSTEMS)
