"""The truth in NumPy is the JAX model's function, over all that a config can say."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from truths import SIZES, assert_is_the_models, assert_same

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Stem
from jax_transformer.model import distances, positions
from jax_transformer.model.features import Features
from jax_transformer.model.masks import make_masks
from jax_transformer.parity.diagnosis.nodes import with_ids
from jax_transformer.parity.oracle import activations, formulas, forward, nodes, recompute
from jax_transformer.runtime.trees import flatten

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

COVERS = ("keys", "queries", "both", "none")

# --- configs

ASPECTS: dict[str, list[dict[str, Any]]] = {
    "sizes": [
        {},
        {"decoder_num_heads": 2, "decoder_d_ff": 14, "decoder_max_length": 10, "num_encoder_layers": 2},
        {"share_layers": True, "num_encoder_layers": 2},
    ],
    "embeddings": [
        {},
        {"scale_embedding": False, "tie_head": True},
        {"target_vocab_size": 13, "share_embeddings": True},
        {"target_vocab_size": 13, "share_embeddings": True, "tie_head": True},
    ],
    "embedding_norm": [
        {},
        {"encoder_embedding_norm": "before_positions", "decoder_embedding_norm": "after_positions"},
        {"encoder_embedding_norm": "after_positions", "decoder_embedding_norm": "before_positions"},
    ],
    "head": [{}, {"head_bias": "buffer", "scale_head": True}, {"head_bias": "none"}],
    "positions": [
        {},
        {"position_layout": "halves", "position_frequency": "inclusive"},
        {"position_kind": "learned"},
        {"position_kind": "relative_bias", "relative_buckets": 6, "relative_max_distance": 5},
        {
            "position_kind": "relative_bias",
            "relative_buckets": 7,
            "relative_max_distance": 6,
            "relative_bias_per_layer": True,
        },
        {"position_kind": "none"},
    ],
    "index": [
        {},
        {"position_offset": 2},
        {"position_index": "batch_row"},
        {"position_index": "non_pad_count", "position_offset": 1},
    ],
    "norm": [
        {},
        {"norm_eps": 0.01, "norm_eps_outside": True, "norm_unbiased": True},
        {"norm_unbiased": True, "norm_bias": False},
        {"norm_kind": "rms_norm", "norm_bias": False},
        {"norm_kind": "rms_norm", "norm_bias": False, "norm_eps": 0.1, "norm_eps_outside": True},
    ],
    "placement": [
        {},
        {"final_norm": True},
        {"norm_placement": "pre"},
        {"norm_placement": "pre", "final_norm": True},
        {"norm_placement": "pre", "final_norm": True, "decoder_norm_placement": "post", "decoder_final_norm": False},
        {"decoder_norm_placement": "none", "norm_scale": False},
    ],
    "inner_norms": [
        {},
        {"output_norm": "self_attention", "feed_forward_hidden_norm": True},
        {"output_norm": "attention"},
        {"output_norm": "all", "feed_forward_hidden_norm": True},
    ],
    "residuals": [
        {},
        {"residual_factor": 1.7, "decoder_sublayer_factor": 0.6, "learned_sublayer_scale": "scalar"},
        {"decoder_residual_factor": 1.4, "sublayer_factor": 0.8, "learned_residual_scale": "all"},
        {"learned_sublayer_scale": "channel", "learned_residual_scale": "all"},
    ],
    "attention": [
        {},
        {"attention_scale": 0.3, "attention_bias": False, "masked_value": -3.0},
        {"attention_output_bias": False, "masked_value": -1e9, "head_dim": 5},
        {"attention_output": False},
        {"attention_logits_cap": 0.8, "attention_scale": 2.0},
    ],
    "feed_forward": [
        {},
        {"activation": "gelu", "feed_forward_gated": True},
        {"activation": "gelu_tanh", "feed_forward_bias": False},
        {"activation": "silu", "feed_forward_gated": True, "feed_forward_bias": False},
        {"activation": "prelu", "feed_forward_gated": True},
        {"activation": "leaky_relu", "activation_slope": 0.3},
        {"activation": "none"},
        {"feed_forward": False},
    ],
    "encoder_mask": [{"encoder_padding": cover} for cover in COVERS],
    "decoder_mask": [
        {},
        {"decoder_padding": "queries", "decoder_padding_id": 5},
        {"decoder_padding": "both", "decoder_causal": False},
        {"decoder_padding": "none", "decoder_causal": False},
    ],
    "cross_mask": [{"cross_padding": cover} for cover in COVERS],
}
BY_THEMSELVES: list[dict[str, Any]] = [
    {"norm_kind": "none"},
    {
        "norm_kind": "none",
        "norm_placement": "pre",
        "position_kind": "none",
        "feed_forward": False,
        "cross_padding": "none",
    },
    {"position_factor": 0.5, "learned_position_scale": True},
    {"embedding_factor": 0.5, "decoder_embedding_factor": 3.0, "tie_head": True},
    {"position_kind": "relative_bias", "relative_bias_factor": 1.5, "decoder_embedding_factor": 0.0},
    {"position_kind": "learned", "learned_position_scale": True, "encoder_embedding_norm": "after_positions"},
    {"head_transform": "gelu", "token_types": 2, "tie_head": True, "norm_placement": "pre", "final_norm": True},
    {"norm_kind": "none", "parallel_residual": True, "learned_sublayer_scale": "scalar", "sublayer_factor": 0.7},
]
"""Apart from the aspects, of which it contradicts some."""
SHARED_OR_PARALLEL: list[dict[str, Any]] = [
    {"share_norms": True, "residual_factor": 1.2, "output_norm": "attention"},
    {"share_norms": True, "norm_placement": "pre", "feed_forward_hidden_norm": True, "norm_scale": False},
    {"parallel_residual": True, "share_norms": True, "norm_placement": "pre", "learned_sublayer_scale": "channel"},
    {"parallel_residual": True, "norm_placement": "pre", "output_norm": "all", "decoder_residual_factor": 0.5},
    {"parallel_residual": True, "norm_placement": "none", "output_norm": "self_attention", "feed_forward": False},
]


def pairwise(aspects: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Combinations of one option of each aspect, in which any two options come up together."""
    rng, counts = random.Random(0), [len(options) for options in aspects.values()]
    options = [(aspect, i) for aspect, count in enumerate(counts) for i in range(count)]
    left = {(a, b) for a, b in itertools.combinations(options, 2) if a[0] != b[0]}
    chosen = []
    while left:
        needed = dict(min(left))
        drawn = [
            [(aspect, needed.get(aspect, rng.randrange(count))) for aspect, count in enumerate(counts)]
            for _ in range(30)
        ]
        chosen.append(max(drawn, key=lambda choice: len(left.intersection(itertools.combinations(choice, 2)))))
        left -= set(itertools.combinations(chosen[-1], 2))
    tables = list(aspects.values())
    return [{name: value for aspect, i in choice for name, value in tables[aspect][i].items()} for choice in chosen]


ROTARY: list[dict[str, Any]] = [
    {"position_kind": "rotary"},
    {"position_kind": "rotary", "position_layout": "halves", "rotary_base": 500.0, "decoder_num_heads": 2},
    {
        "position_kind": "rotary",
        "rotary_dim": 2,
        "rotary_cross_attention": True,
        "position_index": "non_pad_count",
        "position_offset": 1,
    },
]
"""Apart, too."""
HEADS: list[dict[str, Any]] = [
    {"position_kind": "alibi", "num_kv_heads": 1, "decoder_num_heads": 4, "decoder_num_kv_heads": 2},
    {
        "position_kind": "relative_vectors",
        "relative_max_distance": 2,
        "value_dim": 3,
        "decoder_value_dim": 8,
        "head_scale": True,
        "attention_scale": 0.3,
    },
    {
        "position_kind": "relative_vectors",
        "relative_max_distance": 3,
        "relative_bias_per_layer": True,
        "relative_value_vectors": False,
        "query_key_norm": True,
        "norm_unbiased": True,
        "decoder_num_heads": 6,
        "num_kv_heads": 3,
    },
    {
        "query_key_norm": True,
        "norm_kind": "rms_norm",
        "norm_bias": False,
        "head_scale": True,
        "context_norm": "attention",
        "attention_output": False,
    },
]
BY_STACK: list[dict[str, Any]] = [
    {"decoder_position_kind": "learned", "learned_position_scale": True, "decoder_activation": "gelu"},
    {"feed_forward_bias": False, "feed_forward_output_bias": True, "feed_forward_gated": True},
    {
        "norm_scale_offset": 1.0,
        "logits_factor": 0.3,
        "decoder_embedding_norm": "before_positions",
        "output_norm": "all",
    },
    {"norm_scale_offset": -1.0, "logits_factor": 2.0, "head_bias": "none", "norm_placement": "pre"},
    {"position_kind": "learned", "decoder_position_kind": "rotary", "rotary_cross_attention": True},
    {
        "position_kind": "relative_bias",
        "relative_buckets": 6,
        "relative_max_distance": 5,
        "relative_bias_factor": 0.6,
        "decoder_position_kind": "alibi",
        "activation": "prelu",
        "decoder_activation": "leaky_relu",
        "activation_slope": 0.2,
    },
    {"position_kind": "none", "decoder_position_kind": "relative_vectors", "relative_max_distance": 2},
]
COMBINATIONS = [*pairwise(ASPECTS), *BY_THEMSELVES, *SHARED_OR_PARALLEL, *ROTARY, *HEADS, *BY_STACK]


@pytest.fixture
def batch(ids: Any) -> Any:
    """Pads on the right, on the left and inside, one token, and one sentence of nothing but pads."""
    source = ids.source.copy()
    source[2] = SIZES["source_pad_id"]
    return ids._replace(source=source)


@pytest.mark.parametrize("options", COMBINATIONS, ids=range(len(COMBINATIONS)))
def test_the_oracle_equals_the_jax_model(
    options: dict[str, Any], batch: Any, random_params: Callable[..., Any]
) -> None:
    """The whole trace, and every node by itself from what the JAX model fed it; every parameter is some node's."""
    config = TransformerConfig.from_flat(SIZES | options)  # some combinations have options that no part has
    params = random_params(config)
    assert_is_the_models(config, params, batch)
    paths = {path for node in nodes(config) for path in node.parameters.values()}
    leaves = {
        (path, None if "/layers/" not in path else i)
        for path, leaf in flatten(params).items()
        for i in range(len(leaf))
    }
    assert paths == {path if i is None else f"{path}[{i}]" for path, i in leaves}


STEMS: list[tuple[Stem, dict[str, Any]]] = [
    (Stem(features=5), {}),
    (Stem(features=5), {"encoder_padding": "none", "cross_padding": "none", "embedding_factor": 0.5}),
    (Stem(features=4, kernel=5, stride=3, activation="relu"), {"position_kind": "learned", "encoder_padding": "both"}),
    (Stem(features=3, kernel=1, stride=1), {"position_kind": "rotary", "encoder_padding": "queries"}),
]


@pytest.mark.parametrize(("stem", "options"), STEMS, ids=range(len(STEMS)))
@pytest.mark.parametrize("has_lengths", [True, False])
def test_the_oracle_equals_the_jax_model_with_a_stem(
    stem: Stem, options: dict[str, Any], has_lengths: bool, batch: Any, random_params: Callable[..., Any]
) -> None:
    """Whole rows, parts of them, one vector and none."""
    config = TransformerConfig(**SIZES | {"source_vocab_size": 0, "stem": stem} | options)
    vectors = np.random.default_rng(0).standard_normal((5, 8, stem.features))
    features = Features(vectors, np.array([8, 5, 0, 4, 1]) if has_lengths else None)
    params = random_params(config)
    assert_is_the_models(config, params, batch._replace(source=features))
    assert {"stem/first/kernel", "stem/second/bias"} <= {
        path for node in nodes(config) for path in node.parameters.values()
    }


@pytest.mark.parametrize("cover", COVERS)
@pytest.mark.parametrize("causal", [True, False])
def test_masks_of_training_and_of_decoding(cover: Any, causal: bool, batch: Any, config: TransformerConfig) -> None:
    """Of every cover, and of what each says while the JAX model decodes."""
    config = dataclasses.replace(
        config,
        decoder_causal=causal,
        encoder_padding=cover,
        decoder_padding=cover,
        cross_padding=cover,
        decoding_cross_padding="both",
        decoding_decoder_padding="queries",
    )
    for masking in (config, config.while_decoding()):
        expected = {
            f"mask.{name}": mask for name, mask in make_masks(masking, *batch)._asdict().items() if mask is not None
        }
        masks = [node for node in nodes(masking) if node.kind == "mask"]
        assert [node.name for node in masks] == list(expected)
        for node in masks:
            assert_same(recompute(node, masking, with_ids({}, *batch), {}), np.asarray(expected[node.name]), node.name)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("frequency", ["standard", "inclusive", "doubled"])
@pytest.mark.parametrize("index", ["column", "non_pad_count"])
def test_sinusoids(layout: Any, frequency: Any, index: Any) -> None:
    for width in (2, 14):
        config = TransformerConfig(
            d_model=width,
            num_heads=1,
            max_length=600,
            position_layout=layout,
            position_frequency=frequency,
            position_index=index,
            position_offset=3,
        )
        expected = positions.sinusoid_table(config.encoder)
        np.testing.assert_allclose(
            formulas.sinusoid_table(config.encoder.positions, width, len(expected)), expected, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize(
    ("buckets", "most"), [(32, 128), (4, 3), (64, 1000), (10, 160), (17, 27), (12, 384), (19, 196)]
)
def test_relative_buckets(buckets: int, most: int) -> None:
    """In the last four, some distances would have other buckets in float64; in the last two, also if only one step of
    it were float64."""
    config = TransformerConfig(position_kind="relative_bias", relative_buckets=buckets, relative_max_distance=most)
    for is_causal in (False, True):
        received = [formulas.bucket(offset, buckets, most, is_causal=is_causal) for offset in range(-1999, 2000)]
        np.testing.assert_array_equal(received, distances.relative_buckets(config.encoder.positions, is_causal, 2000))


def test_gelu_is_exact() -> None:
    """x Φ(x), computed with 40 digits."""
    exact = {
        -30.0: -1.4720141781444561179e-196,
        -8.0: -4.9767684594174272988e-15,
        -3.0: -0.00404969409489028358,
        -1.0: -0.15865525393145705141,
        -0.1: -0.046017216272297104188,
        1e-8: 5.0000000398942281448e-9,
        0.5: 0.34573123063700655182,
        2.0: 1.9544997361036415856,
    }
    received = activations.gelu(np.array([list(exact)]))
    assert received.shape == (1, len(exact))
    for (x, expected), value in zip(exact.items(), received[0], strict=True):
        assert value == pytest.approx(expected, rel=1e-15 * max(1.0, x**2), abs=0.0), (
            x
        )  # x/√2, rounded, moves it by that much


def test_silu_without_overflow() -> None:
    np.testing.assert_allclose(
        activations.silu(np.array([-1e4, -1.0, 0.0, 1e4])), [0.0, -0.2689414213699951, 0.0, 1e4], rtol=1e-15
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_oracle_is_float64_for_every_dtype(
    dtype: str, config: TransformerConfig, ids: Any, random_params: Any
) -> None:
    """JAX arrays, too, and what was captured in lower precision."""
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), random_params(config))
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    expected, received = (forward(config, given, jnp.asarray(ids.source), ids.target) for given in (wide, params))
    for name, array in received.items():
        assert array.dtype == (bool if name.startswith("mask.") else np.float64)
        np.testing.assert_array_equal(array, expected[name])
    (logits,) = (node for node in nodes(config) if node.name == "logits")
    output = jnp.asarray(expected["decoder.output"], dtype)
    again = recompute(logits, config, {"decoder.output": output}, params)
    np.testing.assert_array_equal(
        again, recompute(logits, config, {"decoder.output": np.asarray(output, np.float64)}, wide)
    )


def test_values_that_are_not_finite_are_results(ids: Any, random_params: Any, config: TransformerConfig) -> None:
    config = dataclasses.replace(config, norm_eps=0.0)
    constant = np.zeros((5, 6, 12))
    trace = forward(
        config,
        random_params(config),
        *ids,
        replace={"encoder.layers.0.self_attention.output": constant, "encoder.embedding": constant},
    )
    assert np.isnan(trace["encoder.layers.0.self_attention_norm"]).all()
    assert np.isnan(trace["logits"]).all()
