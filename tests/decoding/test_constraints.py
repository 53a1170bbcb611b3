"""The rules about next tokens, against the rules written out over lists."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
from jax_transformer.decoding.constraints import constrained
from jax_transformer.decoding.search_params import SearchParams, SearchProgram

START, EOS, PAD, VOCAB, ROOM = 1, 3, 0, 6, 9


def allowed_tokens(
    decoding: DecodingConfig, tokens: np.ndarray, column: int, source: np.ndarray | None = None
) -> list[list[int]]:
    """Returns the tokens that may stand in the column of each target of tokens [B, T]."""
    scores = np.zeros((len(tokens), VOCAB), np.float32)
    return [np.flatnonzero(row == 0).tolist() for row in changed(decoding, tokens, column, scores, source)]


def changed(
    decoding: DecodingConfig, tokens: np.ndarray, column: int, scores: np.ndarray, source: np.ndarray | None = None
) -> np.ndarray:
    """Returns the scores [B, V] by the rules."""
    program = SearchProgram.from_config(decoding.resolved(GenerationConfig(decoder_start_id=START, eos_id=EOS)))
    search = SearchParams.from_numbers(
        START, EOS, PAD, ROOM, jnp.ones(ROOM + 1), repetition_penalty=decoding.repetition_penalty or 1.0
    )._replace(source=source)
    targets = jnp.asarray(tokens)[:, None]
    return np.asarray(constrained(program, search, targets, jnp.asarray(column), jnp.asarray(scores)[:, None])[:, 0])


def histories(column: int) -> np.ndarray:
    """Returns 64 targets [64, T] of random tokens before the column, and pads in the room behind them."""
    tokens = np.random.default_rng(column).integers(2, VOCAB, (64, ROOM))
    tokens[:, column:] = PAD
    return tokens


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("column", [0, 1, 4, 8])
def test_no_sequence_of_tokens_comes_twice(size: int, column: int) -> None:
    """The pads in the empty room are no tokens: a pad may come unless it stands in the target itself."""
    tokens = histories(column)
    allowed = allowed_tokens(DecodingConfig(no_repeat_ngram=size, max_new_tokens=ROOM), tokens, column)
    for row, received in zip(tokens.tolist(), allowed, strict=True):
        target = [START, *row[:column]]
        seen = {tuple(target[k : k + size]) for k in range(len(target) - size + 1)}
        tail = target[len(target) - size + 1 :]
        assert received == [token for token in range(VOCAB) if (*tail, token) not in seen]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("column", [0, 1, 4])
def test_no_sequence_of_the_source_comes(size: int, column: int) -> None:
    """Padding of the source is none of its tokens."""
    tokens = histories(column)
    source = np.random.default_rng(column).integers(1, VOCAB, (64, 7))
    for row, length in enumerate(np.random.default_rng(1).integers(0, 8, 64)):
        source[row, length:] = -1
    decoding = DecodingConfig(encoder_no_repeat_ngram=size, max_new_tokens=ROOM)
    allowed = allowed_tokens(decoding, tokens, column, source)
    for row, words, received in zip(tokens.tolist(), source.tolist(), allowed, strict=True):
        target, known = [START, *row[:column]], [word for word in words if word >= 0]
        inside = {tuple(known[k : k + size]) for k in range(len(known) - size + 1)}
        tail = target[len(target) - size + 1 :] if len(target) >= size - 1 else [-2]
        assert received == [token for token in range(VOCAB) if (*tail, token) not in inside]
    assert len({tuple(row) for row in allowed}) > (1 if column + 1 >= size - 1 else 0)


@pytest.mark.parametrize("penalty", [1.5, 0.5])
def test_a_token_that_is_there_is_penalised_once(penalty: float) -> None:
    """The start token is, the pads in the empty room aren't."""
    tokens, column = histories(4), 4
    scores = np.random.default_rng(0).normal(size=(64, VOCAB)).astype(np.float32)
    received = changed(DecodingConfig(repetition_penalty=penalty, max_new_tokens=ROOM), tokens, column, scores)
    for row, before, after in zip(tokens.tolist(), scores, received, strict=True):
        for token in range(VOCAB):
            factor = 1.0 if token not in (START, *row[:column]) else penalty if before[token] < 0 else 1 / penalty
            assert after[token] == pytest.approx(before[token] * factor, rel=1e-6)
