"""Beam search: of all ways to go on from the K best hypotheses, the K best again."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding import cache
from jax_transformer.decoding.cache import State, Weights
from jax_transformer.decoding.constraints import constrained
from jax_transformer.decoding.search_params import Terms
from jax_transformer.decoding.selection import top_k

LEAST = -1e9
"""The score of what is no hypothesis, as in transformers: added, so that it leaves nothing of the score in float32."""


class Beams(NamedTuple):
    """K hypotheses under way of each of B sentences, and the K best that have ended; with room for T tokens."""

    state: State
    tokens: jax.Array  # [B, K, T] int32: pads where nothing stands yet
    previous: jax.Array  # [B, K] int32: what is fed next
    log_probs: jax.Array  # [B, K] float32: sums of the tokens' log-probabilities, the best first
    ended_tokens: jax.Array  # [B, K, T]
    ended_scores: jax.Array  # [B, K]
    has_ended: jax.Array  # [B, K] bool: which of the above two are hypotheses
    is_done: jax.Array  # [B] bool

    def grown(self, config: TransformerConfig, length: int) -> Beams:
        """With room for `length` tokens."""
        room = ((0, 0), (0, 0), (0, length - self.tokens.shape[2]))
        return self._replace(
            state=self.state.grown(length),
            tokens=jnp.pad(self.tokens, room, constant_values=config.target_pad_id),
            ended_tokens=jnp.pad(self.ended_tokens, room, constant_values=config.target_pad_id),
        )

    def hypotheses(self, terms: Terms) -> tuple[jax.Array, jax.Array]:
        """Tokens [B, K, T] and scores [B, K], the best first."""
        return self.ended_tokens, self.ended_scores


def start(
    config: TransformerConfig,
    decoding: DecodingConfig,
    weights: Weights,
    source_ids: jax.Array,
    terms: Terms,
    length: int,
) -> Beams:
    """Before the first token. A sentence of nothing but pads is padding of the batch, and done."""
    batch, beams = len(source_ids), decoding.beam_size
    nothing = jnp.full((batch, beams, length), config.target_pad_id, jnp.int32)
    return Beams(
        state=cache.start(config, weights, source_ids, length, beams),
        tokens=nothing,
        previous=jnp.broadcast_to(terms.start_id, (batch, beams)).astype(jnp.int32),
        log_probs=jnp.broadcast_to(jnp.where(jnp.arange(beams) == 0, 0.0, LEAST), (batch, beams)).astype(jnp.float32),
        ended_tokens=nothing,
        ended_scores=jnp.full((batch, beams), LEAST, jnp.float32),
        has_ended=jnp.zeros((batch, beams), bool),
        is_done=jnp.all(source_ids == config.source_pad_id, axis=1),
    )


@partial(jax.jit, static_argnames=("config", "decoding"))
def run(config: TransformerConfig, decoding: DecodingConfig, weights: Weights, terms: Terms, beams: Beams) -> Beams:
    """Until every sentence is done, or there is no more room."""
    room = beams.tokens.shape[2]
    choose = _choose_floydhub if decoding.semantics == "floydhub" else _choose

    def goes_on(beams: Beams) -> jax.Array:
        return (beams.state.position < room) & ~jnp.all(beams.is_done)

    def advance(beams: Beams) -> Beams:
        column = beams.state.position
        logits, state = cache.step(config, weights, beams.state, beams.previous)
        log_probs = logits.astype(jnp.float32)
        log_probs = log_probs - jax.nn.logsumexp(log_probs, axis=-1, keepdims=True)
        log_probs = constrained(decoding, terms, beams.tokens, column, log_probs)
        if decoding.renormalize:
            log_probs = jax.nn.log_softmax(log_probs, axis=-1)
        return choose(decoding, terms, column, log_probs, beams._replace(state=state))

    return jax.lax.while_loop(goes_on, advance, beams)


class _Candidates(NamedTuple):
    """Ways to go on, the best first: [B, C] each."""

    log_probs: jax.Array
    parents: jax.Array
    ids: jax.Array


def _candidates(log_probs: jax.Array, so_far: jax.Array, each: int, count: int) -> _Candidates:
    """The `count` best of the `each` best ways of every beam: log_probs [B, K, V], so_far [B, K].

    Of equals the first beam's comes first, and of these the lowest id.
    """
    batch, beams, size = log_probs.shape
    each = min(each, size)
    values, ids = top_k(log_probs, each)
    values, places = jax.lax.top_k((values + so_far[..., None]).reshape(batch, -1), min(count, beams * each))
    return _Candidates(
        values, places // each, jnp.take_along_axis(ids.reshape(batch, -1), places, axis=1).astype(jnp.int32)
    )


def _taken(array: jax.Array, rows: jax.Array) -> jax.Array:
    """array [B, K, …] at rows [B, C] of its second axis."""
    return jnp.take_along_axis(array, rows.reshape(*rows.shape, *[1] * (array.ndim - 2)), axis=1)


def _written(tokens: jax.Array, ids: jax.Array, column: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(tokens, ids[..., None], column, axis=2)


def _choose(decoding: DecodingConfig, terms: Terms, column: jax.Array, log_probs: jax.Array, beams: Beams) -> Beams:
    """As `_beam_search` of transformers 5 does it: twice as many candidates as beams, of which those that end are
    compared, by score, with those that have ended before, if they are among the first K; and of the others, the first K
    go on."""
    batch, size = beams.log_probs.shape
    forced = terms.forced_at(column, batch)
    count = column + 1 - terms.forced_lengths(batch)  # [B]: tokens so far, this one among them
    found = _candidates(log_probs, beams.log_probs, 2 * size, 2 * size)
    is_last = count >= terms.max_new
    ends = (found.ids == terms.eos_id) | is_last[:, None]

    kept_log_probs, kept = jax.lax.top_k(found.log_probs + ends * jnp.float32(LEAST), size)
    parents, ids = _taken(found.parents, kept), _taken(found.ids, kept)
    same = jnp.broadcast_to(jnp.arange(size), (batch, size))
    is_forced = (forced >= 0)[:, None]
    parents = jnp.where(is_forced, same, parents)
    ids = jnp.where(is_forced, forced[:, None], ids)
    kept_log_probs = jnp.where(is_forced, beams.log_probs, kept_log_probs)

    may_end = ends & (jnp.arange(ends.shape[1]) < size) & ~is_forced
    is_full = jnp.all(beams.has_ended, axis=1) if decoding.early_stopping is True else jnp.zeros(batch, bool)
    scores = found.log_probs / _penalty(terms, count)[:, None]
    scores = scores + (is_full | beams.is_done)[:, None] * jnp.float32(LEAST) + ~may_end * jnp.float32(LEAST)
    found_tokens = _written(_taken(beams.tokens, found.parents), found.ids, column)
    ended_scores, best = jax.lax.top_k(jnp.concatenate([beams.ended_scores, scores], axis=1), size)
    ended_tokens = _taken(jnp.concatenate([beams.ended_tokens, found_tokens], axis=1), best)
    has_ended = _taken(jnp.concatenate([beams.has_ended, may_end], axis=1), best)

    could_improve = kept_log_probs[:, 0] / _penalty_to_come(decoding, terms, count) > jnp.min(
        jnp.where(has_ended, jnp.min(ended_scores, axis=1, keepdims=True), LEAST), axis=1
    )
    is_done = beams.is_done | is_last | ~could_improve
    if decoding.early_stopping is True:
        is_done |= jnp.all(has_ended, axis=1)
    return Beams(
        state=beams.state.reordered(parents),
        tokens=_written(_taken(beams.tokens, parents), ids, column),
        previous=ids,
        log_probs=kept_log_probs,
        ended_tokens=ended_tokens,
        ended_scores=ended_scores,
        has_ended=has_ended,
        is_done=jnp.where(is_forced[:, 0], beams.is_done, is_done),
    )


def _penalty(terms: Terms, count: jax.Array) -> jax.Array:
    return terms.penalties[jnp.clip(count, 0, len(terms.penalties) - 1)]


def _penalty_to_come(decoding: DecodingConfig, terms: Terms, count: jax.Array) -> jax.Array:
    """What the best hypothesis under way is divided by, to see whether it could still be among the best."""
    now = _penalty(terms, count)
    return jnp.maximum(terms.last_penalty, now) if decoding.early_stopping == "never" else now


def _choose_floydhub(
    decoding: DecodingConfig, terms: Terms, column: jax.Array, log_probs: jax.Array, beams: Beams
) -> Beams:
    """As the program floydhub does it: of the K best ways of every beam the K best, whether they have ended or not;
    what follows an end counts in the sum. When all have ended they are compared by the sum over length^penalty, the
    length up to the first end; when there is no more room, the first beam comes first."""
    batch, size = beams.log_probs.shape
    forced = terms.forced_at(column, batch)
    count = column + 1 - terms.forced_lengths(batch)
    found = _candidates(log_probs, beams.log_probs, size, size)
    is_forced = (forced >= 0)[:, None]
    same = jnp.broadcast_to(jnp.arange(size), (batch, size))
    parents = jnp.where(is_forced, same, found.parents)
    ids = jnp.where(is_forced, forced[:, None], found.ids)
    sums = jnp.where(is_forced, beams.log_probs, found.log_probs)
    tokens = _written(_taken(beams.tokens, parents), ids, column)

    columns = jnp.arange(tokens.shape[2])
    after_forced = columns >= terms.forced_lengths(batch)[:, None, None]
    is_end = (tokens == terms.eos_id) & (columns <= column) & after_forced
    has_ended = jnp.any(is_end, axis=2)
    lengths = jnp.where(has_ended, jnp.argmax(is_end, axis=2) + 1, column + 1) - terms.forced_lengths(batch)[:, None]
    scores = sums / _penalty(terms, lengths)
    all_ended = jnp.all(has_ended, axis=1) & (count >= 2)
    order = jnp.where(all_ended[:, None], jnp.argsort(-scores, axis=1, stable=True), same)
    is_done = beams.is_done | all_ended | (count >= terms.max_new)
    shown = jnp.where(columns < (lengths + terms.forced_lengths(batch)[:, None])[..., None], tokens, terms.pad_id)
    was_done = beams.is_done[:, None]
    return Beams(
        state=beams.state.reordered(parents),
        tokens=tokens,
        previous=ids,
        log_probs=sums,
        ended_tokens=jnp.where(was_done[..., None], beams.ended_tokens, _taken(shown, order)),
        ended_scores=jnp.where(was_done, beams.ended_scores, _taken(scores, order)),
        has_ended=has_ended,
        is_done=is_done,
    )
