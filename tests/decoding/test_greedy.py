"""Greedy decoding: the most probable next token of the whole prefix, again and again, for every sentence by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding.generation import generate
from jax_transformer.model import functional
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

START, EOS, LENGTH = 4, 3, 10


def greedy(
    config: TransformerConfig,
    params: Any,
    source_ids: np.ndarray,
    *,
    decoder_start_id: int,
    eos_id: int,
    max_decode_length: int,
) -> np.ndarray:
    """Returns tokens [B, max_decode_length], up to and with the end token, then pads.

    Args:
      eos_id: -1 for no end token.
    """
    never = config.target_vocab_size  # no token has this id
    generation = GenerationConfig(decoder_start_id=decoder_start_id, eos_id=never if eos_id < 0 else eos_id)
    model = Model(config, params, None, None, generation)
    tokens = generate(model, source_ids, max_new_tokens=max_decode_length).sequences[:, 0, :max_decode_length]
    room = ((0, 0), (0, max_decode_length - tokens.shape[1]))
    return np.pad(tokens, room, constant_values=config.target_pad_id)


@pytest.fixture(scope="module")
def decode(config: TransformerConfig, params: Any) -> Callable[..., np.ndarray]:
    def decode(source_ids: np.ndarray, eos_id: int = EOS) -> np.ndarray:
        return np.asarray(
            greedy(config, params, source_ids, decoder_start_id=START, eos_id=eos_id, max_decode_length=LENGTH)
        )

    return decode


@pytest.fixture(scope="module")
def sources(config: TransformerConfig) -> np.ndarray:
    """Sixteen sentences of 1 to 6 tokens, [16, 6]."""
    rng = np.random.default_rng(0)
    real = [i for i in range(config.source_vocab_size) if i != config.source_pad_id]
    source = rng.choice(real, (16, 6)).astype(np.int32)
    for row in source:
        row[rng.integers(1, 7) :] = config.source_pad_id
    return source


@pytest.fixture(scope="module")
def expected(config: TransformerConfig, params: Any, sources: np.ndarray) -> list[list[int]]:
    """Each sentence's tokens, end token included, by the argmax after the whole prefix at every step, decoded anew."""
    encoder_output = functional.encode(config, params, sources)
    prefix = np.full((len(sources), LENGTH + 1), config.target_pad_id, np.int32)
    prefix[:, 0] = START
    for step in range(LENGTH):  # columns to come are pads, which nothing attends to
        logits = functional.decode(config, params, encoder_output, sources, prefix[:, :LENGTH])
        prefix[:, step + 1] = np.asarray(logits)[:, step].argmax(axis=-1)
    rows = [row[1:].tolist() for row in prefix]
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]


def test_the_end_token_fires(expected: list[list[int]]) -> None:
    """At several places, and not everywhere: else the tests below would show little."""
    ended = {len(row) for row in expected if row[-1] == EOS}
    assert len(ended) >= 3
    assert any(EOS not in row for row in expected)
    assert len({token for row in expected for token in row}) >= 4


def test_tokens_are_the_argmax_of_the_whole_prefix(
    config: TransformerConfig, sources: np.ndarray, expected: list[list[int]], decode: Callable[..., np.ndarray]
) -> None:
    """Up to and with the end token, and pads after it."""
    tokens = decode(sources)
    assert tokens.shape == (16, LENGTH)
    assert tokens.dtype == np.int32
    for row, wanted in zip(tokens.tolist(), expected, strict=True):
        assert row == wanted + [config.target_pad_id] * (LENGTH - len(wanted))


def test_another_end_token_ends_elsewhere(sources: np.ndarray, decode: Callable[..., np.ndarray]) -> None:
    endless = decode(sources, eos_id=-1)
    assert (endless[:, -1] != 2).any()
    other = int(endless[0, 2])
    first = endless[0].tolist().index(other)
    received = decode(sources, eos_id=other)[0].tolist()
    assert received[: first + 1] == endless[0, : first + 1].tolist()
    assert received[first + 1 :] == [2] * (LENGTH - first - 1)


def test_a_row_of_pads_ends_at_once(
    config: TransformerConfig, sources: np.ndarray, decode: Callable[..., np.ndarray]
) -> None:
    alone = decode(sources)
    with_empty = sources.copy()
    with_empty[[2, 5]] = config.source_pad_id
    tokens = decode(with_empty)
    assert (tokens[[2, 5]] == config.target_pad_id).all()
    others = [row for row in range(16) if row not in (2, 5)]
    np.testing.assert_array_equal(tokens[others], alone[others])


def test_a_batch_of_nothing_but_pads_decodes_nothing(
    config: TransformerConfig, sources: np.ndarray, decode: Any
) -> None:
    assert (decode(np.full_like(sources, config.source_pad_id)) == config.target_pad_id).all()


def test_a_sentences_translation_does_not_depend_on_its_batch(
    config: TransformerConfig, sources: np.ndarray, decode: Callable[..., np.ndarray]
) -> None:
    """In any order, among others, and alone in a batch otherwise empty."""
    together = decode(sources)
    order = np.random.default_rng(1).permutation(16)
    np.testing.assert_array_equal(decode(sources[order]), together[order])
    for row in (0, 7):
        alone = np.full_like(sources, config.source_pad_id)
        alone[3] = sources[row]
        np.testing.assert_array_equal(decode(alone)[3], together[row])


def test_room_does_not_change_the_result(
    config: TransformerConfig, params: Any, sources: np.ndarray, decode: Any
) -> None:
    shorter = greedy(config, params, sources, decoder_start_id=START, eos_id=EOS, max_decode_length=4)
    np.testing.assert_array_equal(shorter, decode(sources)[:, :4])


def test_the_loop_stops_when_every_row_has_ended(
    config: TransformerConfig, params: Any, sources: np.ndarray, decode: Any
) -> None:
    """Where all end in the first step, decoding goes no further: on NaNs from the second step on it would show."""
    certain = {**params, "head": {"kernel": params["head"]["kernel"], "bias": params["head"]["bias"].copy()}}
    certain["head"]["bias"][EOS] = 1e6
    tokens = np.asarray(greedy(config, certain, sources, decoder_start_id=START, eos_id=EOS, max_decode_length=LENGTH))
    assert (tokens[:, 0] == EOS).all()
    assert (tokens[:, 1:] == config.target_pad_id).all()


def test_decoding_stops_where_the_position_table_ends(
    config: TransformerConfig, sources: np.ndarray, random_params: Any
) -> None:
    config = dataclasses.replace(config, decoder_max_length=9)
    params = random_params(config)
    tokens = greedy(config, params, sources, decoder_start_id=START, eos_id=-1, max_decode_length=LENGTH)
    assert (tokens[:, 9:] == config.target_pad_id).all()
    assert (tokens[:, 8] != config.target_pad_id).any()


def test_without_a_cache_each_token_depends_only_on_its_prefix(
    config: TransformerConfig, sources: np.ndarray, random_params: Any
) -> None:
    """Where pads are masked as queries a cache would be wrong: their rows attend to what comes later. (Not to room for
    tokens to come.)"""
    config = dataclasses.replace(config, decoder_padding="queries", encoder_padding="queries", cross_padding="none")
    assert not config.cache_is_exact
    params, length = random_params(config), 4
    received = np.asarray(greedy(config, params, sources, decoder_start_id=START, eos_id=-1, max_decode_length=length))
    prefix = np.full((len(sources), 1), START)
    for _ in range(length):
        logits = np.asarray(functional.apply(config, params, sources, prefix))
        prefix = np.concatenate([prefix, logits[:, -1].argmax(axis=-1)[:, None]], axis=1)
    has_tokens = (sources != config.source_pad_id).any(axis=1)
    np.testing.assert_array_equal(received[has_tokens], prefix[has_tokens, 1:])
