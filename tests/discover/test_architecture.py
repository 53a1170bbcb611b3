"""The drawing of a config says what the config does, and a report of a discovery holds it."""

from __future__ import annotations

from typing import Any

import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.discover.architecture import architecture

SIZES = {"source_vocab_size": 29, "target_vocab_size": 31, "d_model": 24, "num_heads": 4, "d_ff": 40}


def drawn(**fields: Any) -> list[dict[str, Any]]:
    return architecture(TransformerConfig(**(SIZES | fields)))


def titles(sublayer: dict[str, Any]) -> tuple[list[str], list[str]]:
    return [part["title"] for part in sublayer["inside"]], [part["title"] for part in sublayer["after"]]


def all_facts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [fact for inner in value.values() for fact in all_facts(inner)]
    return [fact for inner in value for fact in all_facts(inner)] if isinstance(value, list) else [str(value)]


def test_the_default_is_the_papers() -> None:
    encoder, decoder = drawn()
    assert [part["title"] for part in encoder["start"]] == ["embedding", "+ positions"]
    assert encoder["start"][0]["facts"] == ["29 × 24", "× √d_model"]
    assert [titles(one) for one in decoder["layer"]] == [
        ([name], ["norm"]) for name in ("self-attention", "cross-attention", "feed-forward")
    ]
    assert decoder["layer"][0]["inside"][0]["facts"] == [
        "4 heads of 6", "× 1/√6", "causal", "padding hidden as keys", "biases",
    ]  # fmt: skip
    assert "causal" not in all_facts(encoder) + all_facts(decoder["layer"][1])
    assert [part["title"] for part in decoder["after"]] == ["output projection"]
    assert decoder["after"][0]["facts"] == ["24 → 31", "bias"]


def test_norms_are_drawn_where_the_config_places_them() -> None:
    encoder, decoder = drawn(
        norm_placement="pre", final_norm=True, output_norm="attention", encoder_embedding_norm="before_positions"
    )
    assert [titles(one) for one in encoder["layer"]] == [
        (["norm", "self-attention", "norm"], []),
        (["norm", "feed-forward"], []),
    ]
    assert [part["title"] for part in encoder["start"]] == ["embedding", "norm", "+ positions"]
    assert [part["title"] for part in decoder["after"]] == ["norm", "output projection"]


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"position_kind": "rotary", "rotary_base": 500.0}, "rotated by position, base 500"),
        ({"position_kind": "alibi"}, "ALiBi"),
        ({"num_kv_heads": 2}, "2 of keys and values"),
        ({"attention_scale": 1.0}, "× 1"),
        ({"attention_bias": False}, "biases of output alone"),
        ({"attention_bias": False, "attention_output_bias": False, "feed_forward_bias": False}, "no biases"),
        ({"feed_forward_gated": True, "activation": "silu"}, "gated, silu"),
        ({"activation": "leaky_relu", "activation_slope": 0.2}, "leaky relu 0.2"),
        ({"norm_kind": "rms_norm", "norm_bias": False}, "RMSNorm"),
        ({"norm_eps_outside": True}, "ε 1e-05 outside the square root"),
        ({"residual_factor": 2.5}, "× 2.5"),
        ({"learned_sublayer_scale": "scalar"}, "scaled by a trained number"),
        ({"learned_residual_scale": "feed_forward"}, "× a trained scale of each feature"),
        ({"encoder_padding": "none"}, "padding visible"),
        ({"share_layers": True}, "all layers share one set of weights"),
        ({"head_bias": "none"}, "no bias"),
        ({"query_key_norm": True}, "queries and keys normed"),
        ({"value_dim": 5}, "values of 5"),
        ({"context_norm": "self_attention"}, "contexts normed"),
        ({"decoder_position_kind": "learned"}, "learned"),
        ({"decoder_activation": "gelu"}, "gelu"),
        ({"feed_forward_output_bias": False}, "biases of hidden alone"),
        ({"position_kind": "relative_bias", "relative_bias_factor": 0.5}, "bias by distance, 32 buckets × 0.5"),
        ({"norm_scale_offset": 1.0}, "scale +1 as stored"),
        ({"logits_factor": 0.5}, "all × 0.5"),
    ],
)
def test_options_appear_in_the_drawing(fields: dict[str, Any], fact: str) -> None:
    assert fact not in all_facts(drawn())
    assert fact in all_facts(drawn(**fields))


def test_sublayers_side_by_side_read_one_norm() -> None:
    (layer,) = drawn(parallel_residual=True, share_norms=True, norm_placement="pre")[1]["layer"]
    norm, branches = layer["inside"]
    assert norm["title"] == "norm"
    assert [[part["title"] for part in branch] for branch in branches["beside"]] == [
        ["self-attention"],
        ["cross-attention"],
        ["feed-forward"],
    ]
