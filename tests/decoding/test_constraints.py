"""The rules about next tokens, against the rules written out over lists."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
from jax_transformer.decoding.constraints import constrained
from jax_transformer.decoding.search_params import SearchParams, SearchProgram

START, EOS, PAD, VOCAB, ROOM = 1, 3, 0, 6, 9


def allowed_tokens(decoding: DecodingConfig, tokens: np.ndarray, column: int) -> list[list[int]]:
    """Returns the tokens that may stand in the column of each target of tokens [B, T]."""
    program = SearchProgram.from_config(decoding.resolved(GenerationConfig(decoder_start_id=START, eos_id=EOS)))
    search = SearchParams.from_numbers(START, EOS, PAD, ROOM, jnp.ones(ROOM + 1))
    scores = jnp.zeros((len(tokens), 1, VOCAB))
    scores = constrained(program, search, jnp.asarray(tokens)[:, None], jnp.asarray(column), scores)
    return [np.flatnonzero(row == 0).tolist() for row in np.asarray(scores[:, 0])]


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
