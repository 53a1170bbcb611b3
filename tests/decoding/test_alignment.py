"""Word alignments: of a model whose attention is known, and of hand-made weights; neither batches nor padding change
them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.data.tokenizers import Words
from jax_transformer.decoding import alignment
from jax_transformer.decoding.alignment import align, attention, cross_attention, entropies, pharaoh, word_pairs
from jax_transformer.decoding.checks import DecodingError
from jax_transformer.model import functional
from jax_transformer.model.functional import abstract_params
from jax_transformer.model.masks import make_masks
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

START = 4
SIZE = 9
COPYING = TransformerConfig(
    source_vocab_size=SIZE,
    target_vocab_size=SIZE,
    d_model=SIZE,
    num_heads=1,
    num_encoder_layers=1,
    num_decoder_layers=2,
    max_length=40,
    position_kind="none",
    norm_kind="none",
    feed_forward=False,
    scale_embedding=False,
    attention_output=False,
)
GENERATION = GenerationConfig(decoder_start_id=START, eos_id=3)


def copying_model(**changes: Any) -> Model:
    """After token v its first decoder layer looks at the source's tokens v + 1, and its second everywhere; nothing
    changes an embedding."""
    config = dataclasses.replace(COPYING, **changes)
    leaves = {path: np.zeros(leaf.shape) for path, leaf in flatten(abstract_params(config)).items()}
    leaves["source_embedding/embedding"] = leaves["target_embedding/embedding"] = np.eye(SIZE)
    leaves["decoder/layers/cross_attention/query/kernel"][0] = 200.0 * np.roll(np.eye(SIZE), 1, axis=1)[:, None]
    leaves["decoder/layers/cross_attention/key/kernel"][0] = np.eye(SIZE)[:, None]
    return Model(config, unflatten(leaves), None, None, GENERATION)


def words(*numbers: int) -> Words:
    return Words([f"word {i}" for i in range(max(numbers, default=-1) + 1)], np.array(numbers, int))


# --- weights


def test_a_token_is_explained_by_the_row_that_predicts_it() -> None:
    model = copying_model()
    expected = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0], [1 / 3, 1 / 3, 1 / 3]])  # nothing in the source follows 7
    (weights,) = align(model, [[7, 5, 6]], [[5, 6, 7, 5]])
    np.testing.assert_allclose(weights, expected, atol=1e-12)
    assert weights.dtype == np.float64


def test_the_layer_is_the_last_but_one_unless_chosen() -> None:
    model = copying_model()
    source, target = [[7, 5, 6]], [[5, 6, 7]]
    np.testing.assert_array_equal(align(model, source, target, layer=0)[0], align(model, source, target)[0])
    np.testing.assert_allclose(align(model, source, target, layer=1)[0], 1 / 3)
    with pytest.raises(DecodingError, match="layer: expected from 0 to 1, one of the decoder's; received 2"):
        align(model, source, target, layer=2)


def test_a_model_with_one_layer_aligns_with_it() -> None:
    model = copying_model(num_decoder_layers=1)
    np.testing.assert_allclose(align(model, [[7, 5]], [[5]])[0], [[0, 1]], atol=1e-12)


def sentences(config: TransformerConfig, *lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    real = [i for i in range(config.target_vocab_size) if i not in (config.source_pad_id, config.target_pad_id)]
    return [rng.choice(real, length).tolist() for length in lengths]


def traced(model: Model, source: list[int], target: list[int]) -> dict[str, Any]:
    """The trace of one sentence by itself, without any padding."""
    inputs = np.array([[START, *target[:-1]]])
    _, trace = functional.apply(
        model.config.while_decoding(), model.params, np.array([source]), inputs, return_trace=True
    )
    return dict(trace)


def test_neither_the_batch_nor_its_order_nor_padding_changes_a_result(model: Model) -> None:
    sources, targets = sentences(model.config, 3, 6, 1, 6, 2), sentences(model.config, 8, 2, 5, 2, 9)
    together = align(model, sources, targets)
    backwards = align(model, sources[::-1], targets[::-1])[::-1]
    for source, target, one, other in zip(sources, targets, together, backwards, strict=True):
        expected = traced(model, source, target)["decoder.layers.0.cross_attention.weights"][0].mean(axis=0)
        for received in (one, other):
            assert received.shape == (len(target), len(source))
            np.testing.assert_allclose(received, expected, rtol=1e-12)
    np.testing.assert_allclose(
        np.concatenate([row for weights in together for row in weights.sum(axis=1, keepdims=True)]), 1.0
    )


def test_cross_attention_alone_is_that_of_all_weights(model: Model) -> None:
    source, target = sentences(model.config, 3, 8)
    np.testing.assert_allclose(
        cross_attention(model, source, target), attention(model, source, target).cross, rtol=1e-12
    )


def test_the_entropy_of_a_layer_is_the_mean_of_its_rows() -> None:
    sharp, even = [[1.0, 0.0, 0.0, 0.0]], [[0.25] * 4]
    weights = np.array([[sharp, even], [even, even]], np.float32)  # [L, N, Q, K]
    np.testing.assert_allclose(entropies(weights), [np.log(4) / 2, np.log(4)])


def test_sentences_of_many_lengths_are_one_program() -> None:
    model = copying_model()
    before = alignment._traced._cache_size()
    for rows, length in ((2, 13), (7, 16), (8, 14)):
        align(model, [[5] * length] * rows, [[6] * (length + 1 - rows // 4)] * rows)
    assert alignment._traced._cache_size() - before == 1


def test_empty_targets_and_no_sentences(model: Model) -> None:
    assert [weights.shape for weights in align(model, [[5, 6], [7]], [[], [8]])] == [(0, 2), (1, 1)]
    assert align(model, [], []) == []


@pytest.mark.parametrize(
    "changes", [{"decoder_causal": False}, {"cross_padding": "queries", "decoder_padding": "queries"}]
)
def test_rows_come_from_prefixes_if_tokens_see_later_ones(config: TransformerConfig, params: Any, changes: Any) -> None:
    """As decoding has it, which knows nothing of later tokens; here one of them is a pad, which attends to
    everything."""
    model = Model(dataclasses.replace(config, **changes), params, None, None, GENERATION)
    source, target = [5, 6, 7], [8, config.target_pad_id, 5, 9]
    assert not model.config.cache_is_exact
    received = attention(model, source, target)
    for last in range(len(target)):
        trace = traced(model, source, target[: last + 1])
        for layer in range(2):
            cross, self_ = (
                trace[f"decoder.layers.{layer}.{name}_attention.weights"][0, :, last] for name in ("cross", "self")
            )
            np.testing.assert_allclose(received.cross[layer, :, last], cross, rtol=1e-10)
            np.testing.assert_allclose(received.decoder[layer, :, last, : last + 1], self_, rtol=1e-10)
            assert not received.decoder[layer, :, last, last + 1 :].any()
    if not model.config.decoder_causal:
        whole = traced(model, source, target)["decoder.layers.1.cross_attention.weights"][0]
        assert np.abs(whole - received.cross[1]).max() > 1e-3, "later tokens make a difference"
    np.testing.assert_allclose(align(model, [source], [target])[0], received.cross[0].mean(axis=0))


def test_where_padding_is_seen_it_is_that_of_training(config: TransformerConfig, params: Any) -> None:
    changed = dataclasses.replace(config, encoder_padding="none", cross_padding="none")
    model = Model(changed, params, None, None, dataclasses.replace(GENERATION, source_length=5))
    sources, targets = sentences(config, 3, 2, 4), sentences(config, 4, 3, 3)
    for source, target, received in zip(sources, targets, align(model, sources, targets), strict=True):
        padded = [*source, *[config.source_pad_id] * (5 - len(source))]
        expected = traced(model, padded, target)["decoder.layers.0.cross_attention.weights"][0].mean(axis=0)
        np.testing.assert_allclose(received, expected[:, : len(source)], rtol=1e-12)
        assert (received.sum(axis=1) < 0.999).all()


def test_dependent_rows_are_aligned_one_by_one(config: TransformerConfig, params: Any) -> None:
    model = Model(dataclasses.replace(config, position_index="batch_row"), params, None, None, GENERATION)
    sources, targets = sentences(config, 3, 6), sentences(config, 4, 3)
    for source, target, received in zip(sources, targets, align(model, sources, targets), strict=True):
        expected = traced(model, source, target)["decoder.layers.0.cross_attention.weights"][0].mean(axis=0)
        np.testing.assert_allclose(received, expected, rtol=1e-12)


def test_a_fused_path_is_replaced(config: TransformerConfig, params: Any, model: Model) -> None:
    fused = Model(dataclasses.replace(config, attention_path="xla"), params, None, None, GENERATION)
    np.testing.assert_array_equal(align(fused, [[5, 6]], [[7, 8]])[0], align(model, [[5, 6]], [[7, 8]])[0])


def test_alignment_uses_the_masks_of_decoding(config: TransformerConfig, params: Any) -> None:
    changed = dataclasses.replace(config, decoder_padding="none", decoding_decoder_padding="keys")
    target = [8, config.target_pad_id, 5]
    weights = attention(Model(changed, params, None, None, GENERATION), [5, 6], target).decoder
    assert not weights[:, :, 2, 2].any(), "the input there is a pad, which decoding hides"
    inputs = jnp.array([[START, *target[:-1]]])
    assert not make_masks(changed.while_decoding(), jnp.array([[5, 6]]), inputs).decoder_self[0, 0, 2, 2]


def test_a_row_with_nothing_left_knows_nothing_of_later_tokens(config: TransformerConfig, params: Any) -> None:
    """The start token, taken for padding, attends to itself, as it does when it is the only one."""
    generation = dataclasses.replace(GENERATION, decoder_start_id=config.target_pad_id)
    weights = attention(Model(config, params, None, None, generation), [5, 6], [8, 5]).decoder
    np.testing.assert_array_equal(weights[:, :, 0], np.broadcast_to([1.0, 0.0], (2, 2, 2)))


def test_all_weights_of_a_pair_are_the_traces(model: Model) -> None:
    (source,), (target,) = sentences(model.config, 4), sentences(model.config, 6)
    trace, received = traced(model, source, target), attention(model, source, target)
    assert [weights.shape for weights in received] == [(1, 3, 4, 4), (2, 2, 6, 6), (2, 2, 6, 4)]
    for kind, prefix in (("encoder", "encoder.{}.self"), ("decoder", "decoder.{}.self"), ("cross", "decoder.{}.cross")):
        for i, layer in enumerate(getattr(received, kind)):
            name = prefix.format(f"layers.{i}") + "_attention.weights"
            np.testing.assert_allclose(layer, trace[name][0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ([[5]], [[5], [6]], "target_ids: expected one for each of 1 sentences; received 2"),
        ([[13]], [[5]], "source_ids: expected integers from 0 to 12; received 13"),
        ([[5]], [[-1]], "target_ids: expected integers from 0 to 10; received -1"),
        ([[5] * 10], [[5]], "source_ids: expected at most 9 ids; received 10"),
        ([[5]], [[5] * 11], "target_ids: expected at most 10 ids; received 11"),
    ],
)
def test_mistakes_are_reported(model: Model, source: Any, target: Any, message: str) -> None:
    with pytest.raises(DecodingError, match=message):
        align(model, source, target)
    if len(source) == len(target):
        with pytest.raises(DecodingError, match=message):
            attention(model, source[0], target[0])
    with pytest.raises(DecodingError, match="at least one token; received 0 and 1"):
        attention(model, [], [5])


# --- words


def test_weights_are_summed_over_source_tokens_and_averaged_over_target_tokens() -> None:
    weights = np.array([
        [0.4, 0.3, 0.3, 0.0],  # source word 1 has 0.3 + 0.3
        [0.1, 0.1, 0.2, 0.6],  # the end has most, and is no word
        [0.8, 0.1, 0.1, 0.0],
        [0.0, 0.3, 0.4, 0.3],  # the mean of both: 0.4 and 0.45
        [0.0, 0.0, 0.0, 1.0],
    ])  # fmt: skip
    assert word_pairs(weights, words(0, 1, 1, -1), words(0, 1, 2, 2, -1)) == [(1, 0), (1, 1), (1, 2)]


def test_words_without_tokens_are_in_no_pair() -> None:
    assert word_pairs(np.array([[0.2, 0.8]]), words(0, 3), words(2)) == [(3, 2)]
    assert word_pairs(np.array([[1.0]]), words(-1), words(0)) == []
    assert word_pairs(np.zeros((0, 1)), words(0), words()) == []
    with pytest.raises(ValueError, match=r"received weights \[1, 2\] of 1 target and 3 source tokens"):
        word_pairs(np.zeros((1, 2)), words(0, 1, 2), words(0))


def test_equal_weights_choose_the_first() -> None:
    assert word_pairs(np.full((1, 3), 1 / 3), words(2, 1, 0), words(0)) == [(0, 0)]


def test_pairs_are_printed_source_first() -> None:
    assert pharaoh([(0, 0), (2, 1), (10, 2)]) == "0-0 2-1 10-2"
    assert pharaoh([]) == ""
