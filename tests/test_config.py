"""TransformerConfig and GenerationConfig: their errors and derived values."""

from __future__ import annotations

import dataclasses
import math
import pydoc
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_transformer.config.decoding import DecodingConfig, DecodingOptions, GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Rotary
from jax_transformer.config.short_names import ModelOptions, short_names
from jax_transformer.config.specs import (
    DECODER,
    Attention,
    FeedForward,
    LayerNorm,
    ModelParts,
    Residual,
    RmsNorm,
    Stack,
)
from jax_transformer.config.validation import ConfigError

ACTIVATIONS = "relu, gelu, gelu_tanh, silu, none, leaky_relu, prelu, elu, selu, mish, quick_gelu, relu_squared, tanh"
ACTIVATIONS += ", sigmoid, softplus"
RATES = (
    "dropout_rate",
    "embedding_dropout_rate",
    "attention_dropout_rate",
    "feed_forward_dropout_rate",
    "output_dropout_rate",
)


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigError) as error:
        TransformerConfig(**options)
    assert isinstance(error.value, ValueError)
    return str(error.value)


def test_the_defaults_are_the_base_model_of_the_paper() -> None:
    config = TransformerConfig()
    assert (config.d_model, config.num_heads, config.d_ff, config.num_encoder_layers, config.num_decoder_layers) == (
        512,
        8,
        2048,
        6,
        6,
    )
    assert (config.encoder.heads.head_dim, config.decoder.heads.head_dim, config.norm_placement, config.activation) == (
        64,
        64,
        "post",
        "relu",
    )
    assert (config.dropout_rate, config.scale_embedding, config.position_kind) == (0.1, True, "sinusoidal")


def test_type_checkers_know_each_option_with_its_type() -> None:
    parts = {one.name: typing.get_type_hints(ModelParts)[one.name] for one in dataclasses.fields(TransformerConfig)}
    assert typing.get_type_hints(ModelOptions) == parts | short_names()
    assert typing.get_type_hints(DecodingOptions) == typing.get_type_hints(DecodingConfig)


def test_help_lists_each_option_with_its_default_and_text() -> None:
    text = pydoc.plain(pydoc.render_doc(TransformerConfig))
    assert "Configures an encoder-decoder Transformer." in text
    assert "num_heads: int = 8\n |      Heads of queries (N)." in text
    assert "norm_placement: Literal['pre', 'post', 'none'] = 'post'" in text
    assert all(f" |    {name}: " in text for name in (*short_names(), "encoder", "share_embeddings"))


def test_a_config_shows_what_is_no_default() -> None:
    config = TransformerConfig(num_heads=4, decoder_norm_placement="pre", position_kind="rotary")
    assert repr(config) == "TransformerConfig(num_heads=4, position_kind='rotary', decoder_norm_placement='pre')"
    assert eval(repr(config)) == config
    own = dataclasses.replace(config.decoder, norm=LayerNorm(eps=0.1))
    assert "decoder.norm.eps=0.1" in repr(dataclasses.replace(config, decoder=own))


def test_a_config_is_never_changed() -> None:
    config = TransformerConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 8  # type: ignore[misc]
    assert dataclasses.replace(config, d_model=8).d_model == 8
    assert config.d_model == 512
    assert hash(config) == hash(TransformerConfig())


# --- refusals


@pytest.mark.parametrize(
    ("field", "value", "choices"),
    [
        ("norm_placement", "before", "pre, post, none"),
        ("norm_kind", "LayerNorm", "layer_norm, rms_norm, none"),
        ("position_kind", "absolute", "sinusoidal, learned, rotary, alibi, relative_bias, relative_vectors, none"),
        ("position_layout", "", "interleaved, halves"),
        ("position_frequency", "double", "standard, inclusive, doubled"),
        ("position_index", "row", "column, batch_row, non_pad_count"),
        ("activation", "RELU", ACTIVATIONS),
        ("encoder_padding", "key", "keys, queries, both, none"),
        ("head_bias", True, "parameter, buffer, none"),
        ("initializer", "xavier", "xavier_uniform, torch, kaiming_uniform, fairseq"),
        ("attention_path", "fused", "auto, reference, flash, xla, cudnn"),
        ("layer_loop", "loop", "scan, unrolled"),
        ("encoder_embedding_norm", None, "none, before_positions, after_positions"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_choices(field: str, value: object, choices: str) -> None:
    assert refusal(**{field: value}) == f"TransformerConfig: {field} must be one of {choices}; received {value!r}"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("d_model", "512", "an integer"),
        ("d_model", 512.0, "an integer"),
        ("num_heads", True, "an integer"),
        ("head_dim", 2.5, "an integer or null"),
        ("dropout_rate", "0.1", "a number"),
        ("dropout_rate", False, "a number"),
        ("norm_eps", None, "a number"),
        ("attention_scale", "auto", "a number or null"),
        ("tie_head", 1, "true or false"),
        ("final_norm", "yes", "true or false"),
        ("compute_dtype", "float16", "one of float32, bfloat16, float64 or null"),
        ("decoding_cross_padding", "all", "one of keys, queries, both, none or null"),
    ],
)
def test_a_wrong_type_is_refused_with_the_right_one(field: str, value: object, expected: str) -> None:
    assert refusal(**{field: value}) == f"TransformerConfig: {field} must be {expected}; received {value!r}"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        *(
            (field, 0, "at least 1")
            for field in ("d_model", "num_heads", "d_ff", "num_encoder_layers", "num_decoder_layers", "max_length")
        ),
        *(
            (field, 0, "at least 1, or null")
            for field in (
                "num_kv_heads",
                "head_dim",
                "value_dim",
                "decoder_num_heads",
                "decoder_num_kv_heads",
                "decoder_head_dim",
                "decoder_value_dim",
                "decoder_d_ff",
            )
        ),
        ("decoder_max_length", -1, "at least 1, or null"),
        *(
            (field, -1, "at least 0")
            for field in ("source_vocab_size", "target_vocab_size", "source_pad_id", "target_pad_id")
        ),
        ("position_offset", -1, "at least 0"),
        ("norm_eps", -1e-9, "at least 0, and finite"),
        ("norm_eps", math.nan, "at least 0, and finite"),
        *((field, 1.0, "in [0, 1)") for field in RATES),
        ("dropout_rate", -0.1, "in [0, 1)"),
        ("dropout_rate", math.nan, "in [0, 1)"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(field: str, value: float, expected: str) -> None:
    assert refusal(**{field: value}) == f"TransformerConfig: {field} must be {expected}; received {value!r}"


@pytest.mark.parametrize(
    ("kind", "field", "value", "expected"),
    [
        ("relative_bias", "relative_max_distance", 0, "at least 1"),
        ("rotary", "rotary_dim", 0, "at least 1, or null"),
        ("rotary", "rotary_base", 0.0, "above 0, and finite"),
        ("none", "attention_logits_cap", 0.0, "above 0, and finite, or null"),
    ],
)
def test_a_value_of_positions_out_of_range_is_refused_with_the_range(
    kind: str, field: str, value: float, expected: str
) -> None:
    received = refusal(position_kind=kind, **{field: value})
    assert received == f"TransformerConfig: {field} must be {expected}; received {value!r}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("norm_eps", math.inf),
        ("attention_scale", math.nan),
        ("attention_scale", math.inf),
        ("activation_slope", math.inf),
        ("residual_factor", math.nan),
        ("embedding_factor", math.nan),
        ("decoder_embedding_factor", math.inf),
        ("relative_bias_factor", -math.inf),
        ("logits_factor", math.nan),
        ("norm_scale_offset", math.inf),
        ("decoder_sublayer_factor", -math.inf),
        ("masked_value", math.nan),
        ("masked_value", -math.inf),
        ("decoder_padding_id", -1),
    ],
)
def test_a_value_no_computation_can_use_is_refused(field: str, value: float) -> None:
    assert f"{field} must be" in refusal(**{field: value})


@settings(deadline=None, max_examples=50)
@given(rate=st.floats(allow_nan=True), field=st.sampled_from(RATES))
def test_a_rate_is_taken_exactly_when_it_is_in_its_range(rate: float, field: str) -> None:
    if 0.0 <= rate < 1.0:
        assert getattr(TransformerConfig(**{field: rate}), field) == rate
    else:
        assert field in refusal(**{field: rate})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"d_model": 10, "num_heads": 3},
            "num_heads must be a divisor of d_model=10 unless head_dim is set; received 3",
        ),
        (
            {"d_model": 8, "num_heads": 2, "decoder_num_heads": 3},
            "decoder_num_heads must be a divisor of d_model=8 unless head_dim is set",
        ),
        ({"d_model": 9, "num_heads": 3}, "d_model must be even with position_kind='sinusoidal'; received 9"),
        (
            {"attention_logits_cap": 50.0, "attention_path": "flash"},
            "attention_path must be 'auto' or 'reference' with logits_cap; received 'flash'",
        ),
        (
            {"position_kind": "relative_vectors", "attention_path": "flash"},
            "attention_path must be 'auto' or 'reference' with position_kind='relative_vectors'; received 'flash'",
        ),
        (
            {"norm_kind": "none", "query_key_norm": True},
            "query_key_norm must be false with norm_kind='none'; received True",
        ),
        ({"num_kv_heads": 3}, "num_kv_heads must be a divisor of the encoder's num_heads=8; received 3"),
        (
            {"num_kv_heads": 4, "decoder_num_heads": 2},
            "num_kv_heads must be a divisor of the decoder's num_heads=2; received 4",
        ),
        (
            {"decoder_num_kv_heads": 5},
            "decoder_num_kv_heads must be a divisor of the decoder's num_heads=8; received 5",
        ),
        (
            {"source_vocab_size": 5, "target_vocab_size": 6, "source_pad_id": 5},
            "source_pad_id must be below source_vocab_size=5; received 5",
        ),
        (
            {"source_vocab_size": 5, "target_vocab_size": 6, "target_pad_id": 7},
            "target_pad_id must be below target_vocab_size=6; received 7",
        ),
        (
            {"source_vocab_size": 5, "target_vocab_size": 6, "share_embeddings": True},
            "share_embeddings needs source_vocab_size equal to target_vocab_size; received 5 and 6",
        ),
        (
            {"d_model": 8, "num_heads": 2, "head_dim": 5, "attention_output": False},
            "attention_output=False needs num_heads * value_dim equal to d_model=8; received 10",
        ),
        (
            {"d_model": 8, "num_heads": 2, "decoder_head_dim": 5, "attention_output": False},
            "attention_output=False needs num_heads * value_dim equal to d_model=8; received 10",
        ),
        (
            {"position_kind": "rotary", "position_index": "batch_row"},
            "position_index must be column or non_pad_count with rotary positions; received 'batch_row'",
        ),
        (
            {"position_kind": "rotary", "position_frequency": "doubled"},
            "position_frequency must be 'standard' without position_kind='sinusoidal'; received 'doubled'",
        ),
        ({"position_kind": "rotary", "rotary_dim": 3}, "rotary_dim must be even; received 3"),
        (
            {"position_kind": "rotary", "rotary_dim": 34, "decoder_head_dim": 32},
            "rotary_dim must be at most the width of a head, 32; received 34",
        ),
        (
            {"position_kind": "rotary", "decoder_head_dim": 5},
            "rotary_dim must be set where heads have an odd width; received null with 64 and 5",
        ),
        ({"rotary_dim": 2}, "rotary_dim must be null without position_kind='rotary'; received 2"),
        (
            {"rotary_cross_attention": True},
            "rotary_cross_attention must be false without decoder_position_kind='rotary'; received True",
        ),
        (
            {"activation": "elu", "activation_slope": 0.2},
            "activation_slope must be 0.01 unless activation='leaky_relu'; received 0.2",
        ),
        (
            {"parallel_residual": True},
            "norm_placement must be 'pre' or 'none' with parallel_residual=True; received 'post'",
        ),
        (
            {"parallel_residual": True, "norm_kind": "none", "learned_residual_scale": "all"},
            "learned_residual_scale must be 'none' with parallel_residual=True; received 'all'",
        ),
        (
            {"share_norms": True, "norm_kind": "none"},
            "norm_kind must be 'layer_norm' or 'rms_norm' with share_norms=True; received 'none'",
        ),
        (
            {"share_norms": True, "decoder_norm_placement": "none"},
            "decoder_norm_placement must be 'pre' or 'post' with share_norms=True; received 'none'",
        ),
        (
            {"output_norm": "all", "norm_kind": "none"},
            "output_norm must be 'none' with norm_kind='none'; received 'all'",
        ),
        (
            {"feed_forward_hidden_norm": True, "norm_kind": "none"},
            "feed_forward_hidden_norm must be false with norm_kind='none'; received True",
        ),
        (
            {"head_transform": "gelu", "norm_kind": "none"},
            "head_transform must be null without norms in the decoder; received 'gelu'",
        ),
        (
            {"head_transform": "prelu"},
            "head_transform must be an activation without a slope; received 'prelu'",
        ),
        (
            {"position_kind": "learned", "trains_pad_position": False},
            "trains_pad_position must be true unless position_index='non_pad_count', whose pads have a row; "
            "received False",
        ),
        ({"token_types": -1}, "token_types must be at least 0; received -1"),
        (
            {"position_kind": "none", "position_factor": 0.5},
            "position_factor must be 1.0 without position_kind='sinusoidal' or 'learned'; received 0.5",
        ),
        (
            {"position_kind": "relative_vectors", "relative_bias_factor": 2.0},
            "relative_bias_factor must be 1.0 without position_kind='relative_bias'; received 2.0",
        ),
        (
            {"position_kind": "relative_bias", "learned_position_scale": True},
            "learned_position_scale must be false without position_kind='sinusoidal' or 'learned'; received True",
        ),
        (
            {"decoder_position_kind": "learned", "rotary_cross_attention": True},
            "rotary_cross_attention must be false without decoder_position_kind='rotary'; received True",
        ),
        (
            {"decoder_position_kind": "rotary", "decoder_head_dim": 5},
            "rotary_dim must be set where heads have an odd width; received null with 5",
        ),
        (
            {"position_kind": "relative_bias", "decoder_position_kind": "alibi", "decoder_relative_bias_factor": 2.0},
            "decoder_relative_bias_factor must be null without decoder_position_kind='relative_bias'; received 2.0",
        ),
        (
            {"context_norm": "attention", "norm_kind": "none"},
            "context_norm must be 'none' with norm_kind='none'; received 'attention'",
        ),
        (
            {"norm_scale": False, "norm_scale_offset": 1.0},
            "norm_scale_offset must be 0.0 without norms that have scales; received 1.0",
        ),
        (
            {"decoder_activation": "gelu", "activation_slope": 0.2},
            "activation_slope must be 0.01 unless activation='leaky_relu'; received 0.2",
        ),
        (
            {"sublayer_scale_init": 0.1},
            "sublayer_scale_init must be null with learned_sublayer_scale='none'; received 0.1",
        ),
        (
            {"feed_forward": False, "learned_residual_scale": "feed_forward"},
            "feed_forward must be true with learned_residual_scale='feed_forward'; received False",
        ),
        (
            {"norm_kind": "rms_norm", "norm_bias": True},
            "norm_bias must be false without norm_kind='layer_norm'; received True",
        ),
        (
            {"norm_unbiased": True, "query_key_norm": True, "decoder_head_dim": 1},
            "norm_unbiased must be false with the decoder's head_dim=1; received True",
        ),
        (
            {"norm_unbiased": True, "feed_forward_hidden_norm": True, "d_ff": 1, "decoder_d_ff": 2},
            "norm_unbiased must be false with the encoder's d_ff=1; received True",
        ),
        (
            {"norm_kind": "none", "decoder_final_norm": True},
            "decoder_final_norm must be false with norm_kind='none'; received True",
        ),
        ({"norm_kind": "none", "final_norm": True}, "final_norm must be false with norm_kind='none'; received True"),
        (
            {"attention_path": "xla"},
            "attention_path='xla' has no dropout on attention weights: set attention_dropout_rate=0 or "
            "attention_path='auto'; "
            "received a rate of 0.1",
        ),
        ({"attention_path": "cudnn", "dropout_rate": 0.0, "attention_dropout_rate": 0.2}, "received a rate of 0.2"),
        ({"norm_kind": "none", "encoder_embedding_norm": "before_positions"}, "encoder_embedding_norm"),
        ({"norm_kind": "none", "decoder_embedding_norm": "after_positions"}, "decoder_embedding_norm"),
        ({"d_model": 1, "num_heads": 1, "position_kind": "none", "norm_unbiased": True}, "norm_unbiased"),
    ],
)
def test_a_contradiction_is_refused(options: dict[str, Any], message: str) -> None:
    assert message in refusal(**options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": LayerNorm(eps=-1.0)}, "decoder.norm.eps must be at least 0, and finite; received -1.0"),
        ({"norm": None, "final_norm": True}, "decoder_final_norm must be false with decoder.norm=null; received True"),
        ({"self_attention": Attention(num_heads=6)}, "decoder.self_attention.num_heads must be a divisor of d_model"),
        (
            {"norm": None, "share_norms": True},
            "decoder.norm must be 'layer_norm' or 'rms_norm' with share_norms=True; received 'none'",
        ),
        ({"residual": Residual(parallel=True)}, "norm_placement must be 'pre' or 'none' with parallel_residual=True"),
        (
            {"cross_attention": Attention(num_heads=4), "positions": Rotary(cross_attention=True)},
            "decoder.positions.cross_attention needs heads of one width in both attentions; received 64 and 128",
        ),
        ({"d_model": 256}, "decoder.d_model must be the encoder's d_model; received 256"),
    ],
)
def test_an_option_of_one_place_alone_is_named_by_its_path(changes: dict[str, Any], message: str) -> None:
    assert message in refusal(decoder=dataclasses.replace(DECODER, **changes))


def test_stacks_may_differ_in_every_option_but_their_width() -> None:
    decoder = dataclasses.replace(
        DECODER,
        self_attention=Attention(num_heads=4, bias=False, causal=True, output_norm=True),
        cross_attention=Attention(num_heads=2, query_key_norm=True),
        feed_forward=FeedForward(gated=True, bias=False),
        norm=RmsNorm(eps=1e-6),
        residual=Residual(parallel=True),
        norm_placement="pre",
        share_norms=True,
        share_layers=True,
    )
    config = TransformerConfig(decoder=decoder)
    assert config.decoder == decoder
    with pytest.raises(ConfigError, match=r"norm_eps must be one value in all places; received encoder\.norm=1e-05"):
        _ = config.norm_eps


@pytest.mark.parametrize(
    "options",
    [
        {"norm_eps": 1, "dropout_rate": 0},  # whole numbers are numbers
        {"d_model": 9, "num_heads": 3, "position_kind": "learned"},
        {"d_model": 10, "num_heads": 3, "head_dim": 4},
        {"d_model": 8, "num_heads": 2, "decoder_num_heads": 3, "decoder_head_dim": 2},
        {"position_kind": "rotary", "rotary_dim": 4, "head_dim": 5, "rotary_cross_attention": True},
        {"norm_kind": "rms_norm", "norm_bias": False, "final_norm": True},
        {"attention_path": "xla", "attention_dropout_rate": 0.0},
        {"attention_path": "flash", "attention_dropout_rate": 0.1},
        {"source_vocab_size": 6, "target_vocab_size": 6, "share_embeddings": True, "tie_head": True},
        {"source_vocab_size": 5, "source_pad_id": 7},  # the target's size, and with it the tokenizers, aren't known yet
    ],
)
def test_consistent_values_are_accepted(options: dict[str, Any]) -> None:
    TransformerConfig(**options)


def test_several_problems_are_reported_together() -> None:
    types = refusal(d_model="512", norm_placement="before", tie_head=0)
    assert all(field in types for field in ("d_model must", "norm_placement must", "tie_head must"))
    ranges = refusal(d_model=0, dropout_rate=1.5, source_pad_id=-2)
    assert all(
        text in ranges
        for text in ("d_model must", "received 0;", "dropout_rate must", "received 1.5", "source_pad_id must")
    )
    contradictions = refusal(d_model=9, num_heads=2, norm_kind="none", final_norm=True, attention_path="xla")
    assert all(
        text in contradictions
        for text in ("num_heads must", "d_model must be even", "final_norm must", "attention_path='xla'")
    )


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="n_heads"):
        TransformerConfig(n_heads=8)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"decoder_start_id": -1, "eos_id": -2},
            "decoder_start_id must be at least 0; received -1; eos_id must be at least 0; received -2",
        ),
        (
            {"decoder_start_id": 1, "eos_id": 2, "max_decode_length": 0},
            "max_decode_length must be at least 1; received 0",
        ),
        ({"decoder_start_id": 1, "eos_id": "</s>"}, "eos_id must be an integer or null; received '</s>'"),
        (
            {"forced_bos_id": -1, "beam_size": 0},
            "forced_bos_id must be at least 0; received -1; beam_size must be at least 1; received 0",
        ),
        ({"sampling": True, "beam_size": 2}, "beam_size must be 1 with sampling; received 2"),
        ({"length_penalty": math.inf}, "length_penalty must be finite; received inf"),
        ({"max_new_tokens": 4, "min_new_tokens": 4}, "min_new_tokens must be below max_new_tokens=4; received 4"),
        ({"bad_words": [[1], []]}, "bad_words must be a list of sequences of at least one id; received ((1,), ())"),
    ],
)
def test_generation_config_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        GenerationConfig(**options)
    assert str(error.value) == f"GenerationConfig: {message}"


# --- derived values


def _as_encoder(decoder: Stack) -> Stack:
    """Returns the encoder with the options of a decoder."""
    attention = dataclasses.replace(decoder.self_attention, causal=False)
    return dataclasses.replace(decoder, self_attention=attention, cross_attention=None)


def _sizes(stack: Stack) -> tuple[Any, ...]:
    heads = dataclasses.astuple(stack.self_attention.shape(stack.d_model))
    assert stack.feed_forward is not None
    return (stack.num_layers, *heads, stack.feed_forward.width, stack.max_length, stack.embedding_norm)


def test_the_decoder_takes_unset_sizes_from_the_encoder() -> None:
    both = TransformerConfig(d_model=8, num_heads=2, d_ff=5, max_length=6)
    assert both.encoder == _as_encoder(both.decoder)
    config = dataclasses.replace(both, decoder_num_heads=4, decoder_d_ff=7, decoder_max_length=9, num_decoder_layers=3)
    config = dataclasses.replace(config, decoder_embedding_norm="after_positions")
    assert _sizes(config.encoder) == (6, 2, 2, 4, 4, 5, 6, "none")
    assert _sizes(config.decoder) == (3, 4, 4, 2, 2, 7, 9, "after_positions")
    assert (config.encoder.self_attention.causal, config.decoder.self_attention.causal) == (False, True)
    shared = dataclasses.replace(config, num_kv_heads=1)
    assert (shared.encoder.heads.num_kv_heads, shared.decoder.heads.num_kv_heads) == (1, 1)
    assert dataclasses.replace(shared, decoder_num_kv_heads=2).decoder.heads.num_kv_heads == 2
    assert dataclasses.replace(config, head_dim=3).decoder.heads.head_dim == 3
    assert dataclasses.replace(config, head_dim=3, decoder_head_dim=6).decoder.heads.head_dim == 6
    wide = dataclasses.replace(config, value_dim=9)
    assert (wide.encoder.heads.value_dim, wide.decoder.heads.value_dim, wide.decoder.heads.head_dim) == (9, 9, 2)
    assert dataclasses.replace(wide, decoder_value_dim=3).decoder.heads.value_dim == 3
    assert dataclasses.replace(config, decoder_head_dim=6).decoder.heads.value_dim == 6


def test_the_decoder_takes_unset_norms_and_factors_from_the_encoder() -> None:
    both = TransformerConfig(norm_placement="pre", final_norm=True, residual_factor=2.0, sublayer_factor=0.5)
    assert both.encoder == _as_encoder(both.decoder)
    own = dataclasses.replace(
        both,
        decoder_norm_placement="none",
        decoder_final_norm=False,
        decoder_residual_factor=0.0,
        decoder_sublayer_factor=3.0,
    )
    assert own.encoder == both.encoder
    kinds = dataclasses.replace(both, decoder_position_kind="none", decoder_activation="gelu")
    assert (kinds.encoder.position_kind, kinds.decoder.position_kind) == ("sinusoidal", "none")
    assert (kinds.encoder.feed_forward.activation, kinds.decoder.feed_forward.activation) == ("relu", "gelu")
    decoder = own.decoder
    assert (decoder.norm_placement, decoder.final_norm) == ("none", False)
    assert (decoder.residual.stream_factor, decoder.residual.output_factor) == (0.0, 3.0)


@pytest.mark.parametrize(
    ("options", "encoder", "decoder"),
    [
        ({}, 8.0, 8.0),
        ({"scale_embedding": False}, 1.0, 1.0),
        ({"embedding_factor": 3.0}, 3.0, 3.0),
        ({"embedding_factor": 0.0, "scale_embedding": False}, 0.0, 0.0),
        ({"decoder_embedding_factor": 0.0}, 8.0, 0.0),
        ({"embedding_factor": 3.0, "decoder_embedding_factor": 5.0}, 3.0, 5.0),
    ],
)
def test_the_factor_of_embeddings_replaces_the_root(options: Any, encoder: float, decoder: float) -> None:
    config = TransformerConfig(d_model=64, **options)
    assert (config.encoder.embedding_factor, config.decoder.embedding_factor) == (encoder, decoder)


def test_masks_while_decoding_may_be_others() -> None:
    config = TransformerConfig(
        decoder_padding="both", cross_padding="queries", decoding_decoder_padding="none", decoding_cross_padding="keys"
    )
    decoding = config.while_decoding()
    assert (decoding.decoder_padding, decoding.cross_padding, decoding.encoder_padding) == ("none", "keys", "keys")
    same = TransformerConfig(decoder_padding="both", cross_padding="queries").while_decoding()
    assert (same.decoder_padding, same.cross_padding) == ("both", "queries")


@pytest.mark.parametrize(
    ("options", "rows", "padding", "causal", "cache"),
    [
        ({}, True, True, True, True),
        ({"position_index": "batch_row"}, False, True, True, True),
        ({"position_index": "non_pad_count"}, True, True, True, True),
        ({"encoder_padding": "queries"}, True, False, True, True),
        ({"encoder_padding": "both"}, True, True, True, True),
        ({"cross_padding": "none"}, True, False, True, True),
        ({"cross_padding": "queries"}, True, False, True, False),
        ({"decoder_padding": "queries"}, True, False, False, False),
        ({"decoder_padding": "queries", "decoding_decoder_padding": "keys"}, True, False, False, True),
        ({"decoder_padding": "keys", "decoding_decoder_padding": "queries"}, True, True, True, False),
        ({"decoder_padding": "none"}, True, True, True, True),
        ({"decoder_causal": False, "decoder_padding": "none"}, True, False, False, False),
    ],
)
def test_the_properties_that_follow(
    options: dict[str, Any], rows: bool, padding: bool, causal: bool, cache: bool
) -> None:
    """model/test_properties.py tests the promises of these properties."""
    config = TransformerConfig(**options)
    received = (config.batch_rows_are_independent, config.padding_is_invisible, config.is_causal, config.cache_is_exact)
    assert received == (rows, padding, causal, cache)


@pytest.mark.parametrize(
    ("stack", "name", "field", "value"),
    [
        ("encoder", "self_attention", "padding_id", 3),
        ("encoder", "self_attention", "decoding_padding", "none"),
        ("decoder", "cross_attention", "padding_id", 3),
    ],
)
def test_an_option_that_no_mask_reads_is_refused(stack: str, name: str, field: str, value: Any) -> None:
    part = getattr(TransformerConfig(), stack)
    attention = dataclasses.replace(getattr(part, name), **{field: value})
    message = refusal(**{stack: dataclasses.replace(part, **{name: attention})})
    assert f"{stack}.{name}.{field} must be null, since no mask there reads it; received {value!r}" in message
