"""What a config promises of its function, both sides: where it says that a property holds it does, and where it says
no, it doesn't.

Masks are given to one compiled model as arrays, so that every combination of covers is tried.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Alibi, Rotary
from jax_transformer.config.specs import Attention, RmsNorm
from jax_transformer.model import functional
from jax_transformer.model.masks import Masks, make_masks

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

COVERS = ("keys", "queries", "both", "none")
DIFFERENT = 1e-6
"""Relative RMS from which outputs are others: far above rounding, far below what the smallest of these changes does."""

Logits = Callable[[TransformerConfig, np.ndarray, np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def logits_of(x64: None, config: TransformerConfig, random_params: Callable[..., Any]) -> Logits:
    """The logits under a config that differs from the shared one in its masks alone."""
    params = random_params(config)

    def logits(masking: TransformerConfig, source_ids: np.ndarray, decoder_input_ids: np.ndarray) -> np.ndarray:
        (batch, s), t = source_ids.shape, decoder_input_ids.shape[1]
        shapes = ((batch, 1, s, s), (batch, 1, t, t), (batch, 1, t, s))
        masks = make_masks(masking, source_ids, decoder_input_ids)
        full = Masks(
            *(np.broadcast_to(True if m is None else m, shape) for m, shape in zip(masks[:3], shapes, strict=True))
        )
        return np.asarray(functional.apply(config, params, source_ids, decoder_input_ids, masks=full))

    return logits


def same(received: np.ndarray, expected: np.ndarray) -> bool:
    """Whether they are, where they are either the same or clearly different."""
    distance = compare(received, expected).relative_rms
    assert distance <= FLOAT64_RELATIVE_RMS or distance > DIFFERENT
    return distance <= FLOAT64_RELATIVE_RMS


# --- padding


def padded(tokens: np.ndarray, count: int, pad_id: int) -> np.ndarray:
    return np.concatenate([tokens, np.full((len(tokens), count), pad_id, tokens.dtype)], axis=1)


def padding_changes_nothing(config: TransformerConfig, ids: Any, logits_of: Logits) -> bool:
    """Whether three more pads in the source and two in the target leave the logits at real positions as they are."""
    expected = logits_of(config, ids.source, ids.target)
    longer = logits_of(config, padded(ids.source, 3, config.source_pad_id), padded(ids.target, 2, config.target_pad_id))
    is_real = ids.target != config.target_pad_id
    return same(longer[:, :8][is_real], expected[is_real])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("decoder", COVERS)
def test_padding_changes_nothing_if_the_config_guarantees_it(
    config: TransformerConfig, ids: Any, logits_of: Logits, decoder: str, causal: bool
) -> None:
    wrong = []
    for encoder, cross in itertools.product(COVERS, COVERS):
        covers = {"encoder_padding": encoder, "decoder_padding": decoder, "cross_padding": cross}
        masking = dataclasses.replace(config, decoder_causal=causal, **covers)  # type: ignore[arg-type]
        holds = padding_changes_nothing(masking, ids, logits_of)
        if holds != masking.padding_is_invisible:
            wrong.append({"encoder": encoder, "cross": cross, "said": masking.padding_is_invisible, "holds": holds})
    assert wrong == []


@pytest.mark.parametrize(
    "options",
    [{"position_index": "non_pad_count", "position_offset": 1}, {"norm_placement": "pre", "final_norm": True}],
)
def test_padding_changes_nothing_with_any_other_options(
    config: TransformerConfig, ids: Any, random_params: Any, options: Any
) -> None:
    config = dataclasses.replace(config, **options)
    assert config.padding_is_invisible
    params = random_params(config)
    expected = np.asarray(functional.encode(config, params, ids.source))
    longer = np.asarray(functional.encode(config, params, padded(ids.source, 3, config.source_pad_id)))
    is_real = ids.source != config.source_pad_id
    assert same(longer[:, :6][is_real], expected[is_real])


def test_counting_real_tokens_makes_left_padding_invisible_too(
    config: TransformerConfig, ids: Any, random_params: Any
) -> None:
    """And numbering columns does not."""
    source = ids.source[:1]  # no pads
    left = np.concatenate([np.full((1, 3), config.source_pad_id, source.dtype), source], axis=1)
    for index in ("non_pad_count", "column"):
        counting = dataclasses.replace(config, position_index=index)
        params = random_params(counting)
        expected, received = (np.asarray(functional.encode(counting, params, tokens)) for tokens in (source, left))
        assert same(received[:, 3:], expected) == (index == "non_pad_count")


# --- the batch


def other_batch(config: TransformerConfig, ids: Any) -> Any:
    """The first two rows of ids, in the last two places, under other rows."""
    order = np.array([4, 2, 2, 0, 1])
    return type(ids)(ids.source[order], ids.target[order])


@pytest.mark.parametrize("index", ["column", "non_pad_count", "batch_row"])
def test_rows_are_independent_if_the_config_guarantees_it(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any], index: str
) -> None:
    """Permuting a batch permutes its logits, and a sentence in other company has the logits it had."""
    config = dataclasses.replace(config, position_index=index)  # type: ignore[arg-type]
    params = random_params(config)
    run = lambda ids: np.asarray(functional.apply(config, params, *ids))  # noqa: E731
    expected, order = run(ids), np.array([3, 0, 4, 2, 1])
    permuted = run(type(ids)(ids.source[order], ids.target[order]))
    assert same(permuted, expected[order]) == config.batch_rows_are_independent
    in_other_company = run(other_batch(config, ids))
    assert same(in_other_company[3:], expected[:2]) == config.batch_rows_are_independent


def test_a_row_number_is_all_that_couples_rows(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    """Positions indexed by batch row: in its own place a sentence has its logits whatever the others are."""
    config = dataclasses.replace(config, position_index="batch_row")
    params = random_params(config)
    expected = np.asarray(functional.apply(config, params, *ids))
    order = np.array([0, 3, 2, 3, 1])
    received = np.asarray(functional.apply(config, params, ids.source[order], ids.target[order]))
    assert same(received[[0, 2]], expected[[0, 2]])
    assert not same(received[[1]], expected[[3]])


# --- causality


def later_inputs_change_nothing(config: TransformerConfig, ids: Any, logits_of: Logits, column: int = 4) -> bool:
    """Whether logits at real positions up to `column` stay as they are when everything after it changes."""
    expected, changed = logits_of(config, ids.source, ids.target), ids.target.copy()
    changed[:, column + 1 :] = np.random.default_rng(1).choice([0, 3, 4, 6, 7, config.target_pad_id], (5, 7 - column))
    is_real = ids.target[:, : column + 1] != config.target_pad_id
    return same(logits_of(config, ids.source, changed)[:, : column + 1][is_real], expected[:, : column + 1][is_real])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("decoder", COVERS)
def test_outputs_are_causal_if_the_config_guarantees_it(
    config: TransformerConfig, ids: Any, logits_of: Logits, decoder: str, causal: bool
) -> None:
    for cross in COVERS:
        masking = dataclasses.replace(config, decoder_padding=decoder, cross_padding=cross, decoder_causal=causal)  # type: ignore[arg-type]
        assert later_inputs_change_nothing(masking, ids, logits_of) == masking.is_causal, cross


@pytest.mark.parametrize("decoder", ["keys", "both"])
def test_a_real_token_may_be_the_decoders_padding_id(
    config: TransformerConfig, ids: Any, logits_of: Logits, decoder: str
) -> None:
    """Where the decoder takes another id for padding, a sentence that begins with it has a real position with nothing
    to attend to."""
    masking = dataclasses.replace(config, decoder_padding=decoder, decoder_padding_id=5)  # type: ignore[arg-type]
    ids = ids._replace(target=ids.target.copy())
    ids.target[0, 0] = 5
    assert later_inputs_change_nothing(masking, ids, logits_of) == masking.is_causal
    assert padding_changes_nothing(masking, ids, logits_of) == masking.padding_is_invisible


def test_the_first_position_sees_only_itself(config: TransformerConfig, ids: Any, logits_of: Logits) -> None:
    assert later_inputs_change_nothing(config, ids, logits_of, column=0)


# --- decoding with a cache

CACHED: dict[str, dict[str, Any]] = {
    "post": {},
    "pre_counted_tied_open": {
        "norm_placement": "pre",
        "final_norm": True,
        "position_index": "non_pad_count",
        "position_offset": 1,
        "tie_head": True,
        "decoding_decoder_padding": "none",
        "decoding_cross_padding": "none",
        "decoder_padding_id": 5,
        "head_bias": "buffer",
        "decoder_embedding_norm": "before_positions",
    },
    "scaled_residuals": {
        "residual_factor": 1.7,
        "decoder_sublayer_factor": 0.6,
        "learned_sublayer_scale": "channel",
        "learned_residual_scale": "feed_forward",
        "activation": "prelu",
    },
    "normed_contexts": {
        "context_norm": "attention",
        "head_scale": True,
        "attention_output": False,
        "head_dim": 4,
        "decoder_head_dim": 6,
    },
    "normformer": {"norm_placement": "pre", "output_norm": "attention", "feed_forward_hidden_norm": True},
    "parallel": {"norm_placement": "pre", "parallel_residual": True, "output_norm": "all"},
    "parallel_with_one_norm": {
        "norm_placement": "pre",
        "parallel_residual": True,
        "share_norms": True,
        "learned_sublayer_scale": "channel",
        "position_kind": "relative_bias",
        "relative_buckets": 6,
        "relative_max_distance": 5,
        "relative_bias_per_layer": True,
    },
    "shared_layers": {
        "share_layers": True,
        "position_factor": 0.5,
        "learned_position_scale": True,
        "num_decoder_layers": 3,
    },
    "transformed": {
        "head_transform": "gelu",
        "token_types": 2,
        "position_kind": "learned",
        "position_index": "non_pad_count",
        "trains_pad_position": False,
        "tie_head": True,
    },
    "one_norm": {"share_norms": True, "norm_scale_offset": 1.0, "logits_factor": 0.5},
    "kinds_by_stack": {
        "position_kind": "alibi",
        "decoder_position_kind": "rotary",
        "rotary_dim": 2,
        "rotary_cross_attention": True,
        "decoder_activation": "silu",
        "feed_forward_output_bias": False,
    },
    "sinusoids_and_biases": {
        "decoder_position_kind": "relative_bias",
        "relative_buckets": 6,
        "relative_max_distance": 5,
        "decoder_relative_bias_factor": 3.0,
        "learned_position_scale": True,
    },
    "scaled_embeddings_and_biases": {
        "embedding_factor": 0.5,
        "decoder_embedding_factor": 3.0,
        "tie_head": True,
        "position_kind": "relative_bias",
        "relative_buckets": 6,
        "relative_max_distance": 5,
        "relative_bias_factor": 2.0,
    },
    "rezero": {"norm_kind": "none", "learned_sublayer_scale": "scalar", "layer_loop": "unrolled"},
    "norms_by_stack": {"decoder_norm_placement": "none", "decoder_final_norm": True, "norm_scale": False},
    "learned_rows_gated": {
        "position_kind": "learned",
        "position_index": "batch_row",
        "feed_forward_gated": True,
        "norm_kind": "rms_norm",
        "norm_bias": False,
        "scale_head": True,
        "layer_loop": "unrolled",
    },
    "rotary_shared_keys": {
        "position_kind": "rotary",
        "position_index": "non_pad_count",
        "rotary_dim": 4,
        "rotary_cross_attention": True,
        "num_kv_heads": 1,
        "head_scale": True,
        "query_key_norm": True,
    },
    "alibi": {"position_kind": "alibi", "decoder_num_heads": 6, "decoder_num_kv_heads": 2, "value_dim": 7},
    "vectors": {"position_kind": "relative_vectors", "relative_max_distance": 3},
    "vectors_per_layer": {
        "position_kind": "relative_vectors",
        "relative_max_distance": 3,
        "relative_bias_per_layer": True,
        "num_kv_heads": 1,
        "decoder_value_dim": 3,
    },
}


def step_by_step(config: TransformerConfig, params: Any, ids: Any, length: int) -> np.ndarray:
    """Logits [B, T, V] of the target ids, fed one by one."""
    encoder_output = functional.encode(config, params, ids.source)
    state = functional.start_decoding(config, params, encoder_output, ids.source, length=length)
    columns = []
    for column in range(ids.target.shape[1]):
        logits, state = functional.decode_step(config, params, state, ids.target[:, column])
        columns.append(np.asarray(logits))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("name", CACHED)
def test_decoding_with_a_cache_equals_teacher_forcing(
    config: TransformerConfig, ids: Any, random_params: Any, name: str
) -> None:
    """Under the masks of decoding, with pads emitted in between, and a cache longer than what is decoded."""
    check_cache(dataclasses.replace(config, **CACHED[name]), ids, random_params)


@pytest.mark.parametrize("positions", [Rotary(cross_attention=True), Alibi()])
def test_a_cache_is_exact_where_the_decoders_attentions_differ(
    config: TransformerConfig, ids: Any, random_params: Any, positions: Rotary | Alibi
) -> None:
    own = Attention(num_heads=2, num_kv_heads=1, head_dim=6, value_dim=3, causal=True, output_norm=True)
    cross = Attention(
        num_heads=4, head_dim=6 if isinstance(positions, Rotary) else 4, value_dim=5, bias=False, query_key_norm=True
    )
    decoder = dataclasses.replace(
        config.decoder, self_attention=own, cross_attention=cross, positions=positions, norm=RmsNorm(eps=0.1)
    )
    check_cache(dataclasses.replace(config, decoder=decoder), ids, random_params)


def check_cache(config: TransformerConfig, ids: Any, random_params: Any) -> None:
    """Compares decoding token by token with decoding all at once."""
    assert config.cache_is_exact
    params, target = random_params(config), ids.target.copy()
    target[1, :2] = 4  # what a sentence that begins with padding does has a test of its own
    target[4, 6] = 7
    ids = ids._replace(target=target)
    encoder_output = functional.encode(config, params, ids.source)
    expected = np.asarray(functional.decode(config.while_decoding(), params, encoder_output, ids.source, ids.target))
    assert same(step_by_step(config, params, ids, length=9), expected)


def test_decoding_may_begin_with_the_padding_id(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    """As decoders that start with <pad> do: the first position has nothing but itself to attend to, masked or not, in
    the prefix of one."""
    params = random_params(config)
    ids = ids._replace(target=np.full((5, 8), config.target_pad_id, np.int32))
    encoder_output = functional.encode(config, params, ids.source)
    expected = np.asarray(functional.decode(config, params, encoder_output, ids.source, ids.target[:, :1]))
    assert same(step_by_step(config, params, ids, length=9)[:, :1], expected)


@pytest.mark.parametrize(
    "options",
    [
        {"decoder_causal": False},
        {"decoder_padding": "queries"},
        {"decoder_padding": "both"},
        {"cross_padding": "queries"},
        {"cross_padding": "both"},
        {"decoding_decoder_padding": "queries"},
        {"decoding_cross_padding": "both"},
    ],
    ids=str,
)
def test_a_cache_is_refused_where_it_would_not_be_exact(
    config: TransformerConfig, ids: Any, random_params: Any, options: Any
) -> None:
    config = dataclasses.replace(config, **options)
    assert not config.cache_is_exact
    masks = config.while_decoding()
    with pytest.raises(
        ValueError, match="decoding with a cache needs decoder_causal and masks that cover no queries; received"
    ) as error:
        functional.start_decoding(config, random_params(config), np.zeros((5, 6, 12)), ids.source, length=8)
    assert f"decoder_causal={masks.decoder_causal}, decoder_padding={masks.decoder_padding!r}" in str(error.value)
    assert f"cross_padding={masks.cross_padding!r}" in str(error.value)


@pytest.mark.parametrize(
    "options", [{}, {"decoder_padding": "none"}, {"decoder_padding": "queries"}, {"decoder_causal": False}], ids=str
)
def test_cached_values_would_change_with_the_prefix_if_a_cache_is_refused(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any], options: Any
) -> None:
    """The reason for the refusal: keys of the second layer, at positions that later ones attend to, in a prefix and in
    a longer one."""
    masking = dataclasses.replace(config, **options)
    params = random_params(config)

    @jax.jit
    def second_keys(params: Any, masks: Masks, target: np.ndarray) -> Any:
        trace = functional.apply(config, params, ids.source, target, masks=masks, return_trace=True)[1]
        return trace["decoder.layers.1.self_attention.key"]

    def keys(target: np.ndarray) -> np.ndarray:
        masks = make_masks(masking, ids.source, target)
        full = np.broadcast_to(True if masks.decoder_self is None else masks.decoder_self, (5, 1, 8, 8))
        return np.asarray(second_keys(params, masks._replace(decoder_self=full), target))

    longer = ids.target.copy()
    longer[:, 5:] = 7
    attended = (
        np.ones((5, 5), bool)
        if masking.decoder_padding in ("none", "queries")
        else ids.target[:, :5] != config.target_pad_id
    )
    assert same(keys(longer)[:, :5][attended], keys(ids.target)[:, :5][attended]) == masking.cache_is_exact
