"""Constraints on the next token: tokens that may not, or must, come next."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_transformer.decoding.search_params import SearchParams, SearchProgram


def constrained(
    program: SearchProgram, search: SearchParams, tokens: jax.Array, column: jax.Array, scores: jax.Array
) -> jax.Array:
    """Returns the scores [B, K, V] of the tokens for a column, with -inf for forbidden tokens.

    Applies the rules of transformers' logits processors, in their order.

    Args:
      tokens: [B, K, T], the targets so far, without the start token. Rules about sequences count the start token as
        the first of any sequence.
    """
    batch = scores.shape[0]
    count = column - search.prefix_lengths(batch)  # [B]: tokens decoded before this one
    history = jnp.concatenate(
        [jnp.broadcast_to(search.start_id, (*tokens.shape[:2], 1)).astype(tokens.dtype), tokens], axis=2
    )
    if program.has_repetition_penalty:
        scores = _penalised(search.repetition_penalty, history, column + 1, scores)
    if program.no_repeat_ngram:
        scores = _without_repeats(program.no_repeat_ngram, history, column + 1, history, column + 1, scores)
    if program.encoder_no_repeat_ngram:
        assert search.source is not None
        source = search.source[:, None]
        lengths = jnp.sum(source >= 0, axis=2, keepdims=True)
        scores = _without_repeats(program.encoder_no_repeat_ngram, history, column + 1, source, lengths, scores)
    for words in program.bad_words:
        scores = _without_words(words, history, column + 1, scores)
    if program.has_min_new:
        is_end = program.is_end(jnp.arange(scores.shape[-1]), search.eos_id)
        scores = jnp.where((count < search.min_new)[:, None, None] & is_end, -jnp.inf, scores)
    if program.begin_suppress_tokens:
        is_first = (count == 0)[:, None, None]
        scores = jnp.where(is_first & _is_among(program.begin_suppress_tokens, scores), -jnp.inf, scores)
    if program.suppress_tokens:
        scores = jnp.where(_is_among(program.suppress_tokens, scores), -jnp.inf, scores)
    if program.timestamps is not None:
        scores = program.timestamps.constrain(tokens, column, count, scores)
    if program.allowed is not None and search.numbers is not None:
        may_come = program.allowed.mask(scores.shape[-1], search.numbers, tokens, column)
        scores = jnp.where(may_come, scores, -jnp.inf)
    for forced_id, now in _forced_ids(program, search, column, batch):
        only = jnp.where(jnp.arange(scores.shape[-1]) == forced_id, 0.0, -jnp.inf)
        scores = jnp.where(now[:, None, None], only, scores)
    return scores


def is_forced(program: SearchProgram, search: SearchParams, column: jax.Array, batch: int) -> jax.Array:
    """Returns whether forced_bos_id or forced_eos_id leaves one token, which counts as certain, [B] bool."""
    forced = jnp.zeros(batch, bool)
    for _, now in _forced_ids(program, search, column, batch):
        forced |= now
    return forced


def _forced_ids(
    program: SearchProgram, search: SearchParams, column: jax.Array, batch: int
) -> list[tuple[jax.Array, jax.Array]]:
    """Returns each forced id, with the sentences [B] bool that must have it in the column."""
    count = column - search.prefix_lengths(batch)
    places = (
        (program.has_forced_bos, search.forced_bos_id, column == 0),
        (program.has_forced_eos, search.forced_eos_id, count == search.max_new - 1),
    )
    return [(forced_id, jnp.broadcast_to(now, (batch,))) for is_forced, forced_id, now in places if is_forced]


def _is_among(ids: tuple[int, ...], scores: jax.Array) -> jax.Array:
    """Returns which tokens of the scores [B, K, V] are these ids, [V] bool."""
    return jnp.zeros(scores.shape[-1], bool).at[jnp.array(ids)].set(True)


def _penalised(penalty: jax.Array, history: jax.Array, length: jax.Array, scores: jax.Array) -> jax.Array:
    """Divides the scores of tokens in history[:, :, :length] by the penalty, and multiplies those below 0."""
    rows, size = history.shape[:2], scores.shape[-1]
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    ids = jnp.where(jnp.arange(history.shape[2]) < length, history, size)  # beyond the vocabulary: dropped
    batch, beams = jnp.arange(rows[0])[:, None, None], jnp.arange(rows[1])[None, :, None]
    is_there = jnp.zeros(scores.shape, bool).at[batch, beams, ids].set(True, mode="drop")
    return jnp.where(is_there, jnp.where(scores < 0, scores * penalty, scores / penalty), scores)


def _without_repeats(
    size: int, history: jax.Array, length: jax.Array, other: jax.Array, until: jax.Array, scores: jax.Array
) -> jax.Array:
    """Masks tokens that would complete a sequence of `size` tokens, the last of them in history[:, :, :length], that is
    in other[:, :, :until] already."""
    rows, starts = history.shape[:2], other.shape[2] - size + 1
    if starts < 1 or history.shape[2] < size - 1:
        return scores
    tail = jax.lax.dynamic_slice_in_dim(
        history, jnp.maximum(length - size + 1, 0), size - 1, axis=2
    )  # [B, K, size - 1]
    begins_alike = jnp.ones((*rows, starts), bool)
    for i in range(size - 1):
        begins_alike &= other[:, :, i : i + starts] == tail[:, :, i : i + 1]
    is_whole = (jnp.arange(starts) + size <= until) & (length >= size - 1)
    ends = jnp.where(
        begins_alike & is_whole, other[:, :, size - 1 :], scores.shape[-1]
    )  # beyond the vocabulary: dropped
    batch, beams = jnp.arange(rows[0])[:, None, None], jnp.arange(rows[1])[None, :, None]
    return scores.at[batch, beams, ends].set(-jnp.inf, mode="drop")


def _without_words(words: tuple[int, ...], history: jax.Array, length: jax.Array, scores: jax.Array) -> jax.Array:
    """Masks the last token of a forbidden word whose other tokens have been generated."""
    *before, last = words
    ends_alike = jnp.ones(history.shape[:2], bool)
    for distance, word in enumerate(reversed(before), start=1):
        place = length - distance
        there = jax.lax.dynamic_index_in_dim(history, jnp.maximum(place, 0), axis=2, keepdims=False)
        ends_alike &= (there == word) & (place >= 1)  # the start token never matches
    return jnp.where(ends_alike[..., None] & (jnp.arange(scores.shape[-1]) == last), -jnp.inf, scores)
