"""Tokens that may not, or must, come next."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding.search_params import Terms


def constrained(
    decoding: DecodingConfig, terms: Terms, tokens: jax.Array, column: jax.Array, scores: jax.Array
) -> jax.Array:
    """The scores [B, K, V] of the tokens for a column, -inf where they may not stand.

    As the processors of transformers' `generate` have it, and in their order.

    Args:
      tokens: [B, K, T], the targets so far, without the start token, which counts as the first of any sequence.
    """
    batch = len(scores)
    count = column - terms.forced_lengths(batch)  # [B]: tokens decoded before this one
    history = jnp.concatenate(
        [jnp.broadcast_to(terms.start_id, (*tokens.shape[:2], 1)).astype(tokens.dtype), tokens], axis=2
    )
    if decoding.no_repeat_ngram:
        scores = _without_repeats(decoding.no_repeat_ngram, history, column + 1, scores)
    for words in decoding.bad_words:
        scores = _without_words(words, history, column + 1, scores)
    if decoding.min_new_tokens:
        is_end = jnp.arange(scores.shape[-1]) == terms.eos_id
        scores = jnp.where((count < terms.min_new)[:, None, None] & is_end, -jnp.inf, scores)
    for forced_id, now in _forced(decoding, terms, column, batch):
        only = jnp.where(jnp.arange(scores.shape[-1]) == forced_id, 0.0, -jnp.inf)
        scores = jnp.where(now[:, None, None], only, scores)
    return scores


def must_be(decoding: DecodingConfig, terms: Terms, column: jax.Array, batch: int) -> jax.Array:
    """[B] bool: whether there is but one token for the column, by forced_bos_id or forced_eos_id: it counts as
    certain."""
    now = jnp.zeros(batch, bool)
    for _, this in _forced(decoding, terms, column, batch):
        now |= this
    return now


def _forced(decoding: DecodingConfig, terms: Terms, column: jax.Array, batch: int) -> list[tuple[int, jax.Array]]:
    """Ids that are forced somewhere, and of which sentences now, [B]."""
    count = column - terms.forced_lengths(batch)
    places = ((decoding.forced_bos_id, column == 0), (decoding.forced_eos_id, count == terms.max_new - 1))
    return [(forced_id, jnp.broadcast_to(now, (batch,))) for forced_id, now in places if forced_id is not None]


def _without_repeats(size: int, history: jax.Array, length: jax.Array, scores: jax.Array) -> jax.Array:
    """Without the tokens that would end a sequence of `size` tokens which is in history[:, :, :length] already."""
    rows, room = history.shape[:2], history.shape[2]
    if room < size:
        return scores
    tail = jax.lax.dynamic_slice_in_dim(
        history, jnp.maximum(length - size + 1, 0), size - 1, axis=2
    )  # [B, K, size - 1]
    starts = room - size + 1
    begins_alike = jnp.ones((*rows, starts), bool)
    for i in range(size - 1):
        begins_alike &= history[:, :, i : i + starts] == tail[:, :, i : i + 1]
    is_whole = jnp.arange(starts) + size <= length
    ends = jnp.where(
        begins_alike & is_whole, history[:, :, size - 1 :], scores.shape[-1]
    )  # beyond the vocabulary: dropped
    batch, beams = jnp.arange(rows[0])[:, None, None], jnp.arange(rows[1])[None, :, None]
    return scores.at[batch, beams, ends].set(-jnp.inf, mode="drop")


def _without_words(words: tuple[int, ...], history: jax.Array, length: jax.Array, scores: jax.Array) -> jax.Array:
    """Without the last of the words where the others stand before it."""
    *before, last = words
    ends_alike = jnp.ones(history.shape[:2], bool)
    for distance, word in enumerate(reversed(before), start=1):
        place = length - distance
        there = jax.lax.dynamic_index_in_dim(history, jnp.maximum(place, 0), axis=2, keepdims=False)
        ends_alike &= (there == word) & (place >= 1)  # the start token is none of them
    return jnp.where(ends_alike[..., None] & (jnp.arange(scores.shape[-1]) == last), -jnp.inf, scores)
