"""Beam search: extend the K best hypotheses by every token, and keep the K best of the results.

Diverse beam search (Vijayakumar et al. 2016, "Diverse Beam Search") divides the K beams into G groups of K / G, which
follow each other along the axis of the beams. Each group searches alone, and avoids the tokens that the groups before
it chose.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding import cache
from jax_transformer.decoding.cache import State, Weights
from jax_transformer.decoding.constraints import constrained
from jax_transformer.decoding.search_params import SearchParams, SearchProgram
from jax_transformer.decoding.selection import top_k
from jax_transformer.model.features import SourceInput, source_is_real

LEAST = -1e9
"""Score of a missing hypothesis, as in transformers: adding it to a score in float32 rounds the score away."""


class Beams(NamedTuple):
    """Holds K open hypotheses of each of B sentences, and the K best ended ones, with room for T tokens."""

    state: State
    tokens: jax.Array  # [B, K, T] int32: pads after the last token
    previous: jax.Array  # [B, K] int32: the next decoder input
    log_probs: jax.Array  # [B, K] float32: sums of the tokens' log-probabilities, the best first
    ended_tokens: jax.Array  # [B, K, T]
    ended_scores: jax.Array  # [B, K]
    has_ended: jax.Array  # [B, K] bool: whether an ended hypothesis is there
    is_done: jax.Array  # [B] bool
    groups_done: jax.Array  # [B, G] bool: whether each group of beams is done; read if there are several

    def grown(self, config: TransformerConfig, length: int) -> Beams:
        """Returns the same beams with room for `length` tokens."""
        room = ((0, 0), (0, 0), (0, length - self.tokens.shape[2]))
        return self._replace(
            state=self.state.grown(length),
            tokens=jnp.pad(self.tokens, room, constant_values=config.target_pad_id),
            ended_tokens=jnp.pad(self.ended_tokens, room, constant_values=config.target_pad_id),
        )

    def hypotheses(self, search: SearchParams) -> tuple[jax.Array, jax.Array]:
        """Returns tokens [B, K, T] and scores [B, K], best first."""
        return self.ended_tokens, self.ended_scores


@partial(jax.jit, static_argnames=("config", "program", "length"))
def start(
    config: TransformerConfig,
    program: SearchProgram,
    weights: Weights,
    source_ids: SourceInput,
    search: SearchParams,
    length: int,
) -> Beams:
    """Returns the state before the first token. A sentence of pads alone pads the batch, and is done."""
    batch, beams = source_ids.shape[0], program.num_rows
    nothing = jnp.full((batch, beams, length), config.target_pad_id, jnp.int32)
    is_first = jnp.arange(beams) % (beams // program.beam_groups) == 0  # of its group
    is_done = ~jnp.any(source_is_real(config, source_ids), axis=1)
    return Beams(
        state=cache.start(config, weights, source_ids, length, beams),
        tokens=nothing,
        previous=jnp.broadcast_to(search.start_id, (batch, beams)).astype(jnp.int32),
        log_probs=jnp.broadcast_to(jnp.where(is_first, 0.0, LEAST), (batch, beams)).astype(jnp.float32),
        ended_tokens=nothing,
        ended_scores=jnp.full((batch, beams), LEAST, jnp.float32),
        has_ended=jnp.zeros((batch, beams), bool),
        is_done=is_done,
        groups_done=jnp.repeat(is_done[:, None], program.beam_groups, axis=1),
    )


@partial(jax.jit, static_argnames=("config", "program"), donate_argnames="beams")
def run(
    config: TransformerConfig,
    program: SearchProgram,
    weights: Weights,
    search: SearchParams,
    beams: Beams,
    until: jax.Array | None = None,
    size: jax.Array | int = 0,
) -> Beams:
    """Searches until the room is full, there are `until` tokens, which is at most the room, or at most `size` sentences
    go on."""
    until = jnp.int32(beams.tokens.shape[2]) if until is None else until
    choose = _choose_floydhub if program.semantics == "floydhub" else _choose

    def goes_on(beams: Beams) -> jax.Array:
        return (beams.state.position < until) & (jnp.sum(~beams.is_done) > size)

    def advance(beams: Beams) -> Beams:
        column = beams.state.position
        logits, state = cache.step(config, weights, beams.state, beams.previous)
        log_probs = logits.astype(jnp.float32)
        log_probs = log_probs - jax.nn.logsumexp(log_probs, axis=-1, keepdims=True)
        beams = beams._replace(state=state)
        if program.beam_groups > 1:
            return _choose_in_groups(program, search, column, log_probs, beams)
        return choose(program, search, column, _processed(program, search, column, beams.tokens, log_probs), beams)

    return jax.lax.while_loop(goes_on, advance, beams)


def _processed(
    program: SearchProgram, search: SearchParams, column: jax.Array, tokens: jax.Array, log_probs: jax.Array
) -> jax.Array:
    """Returns the log-probabilities [B, K, V] of the allowed next tokens of beams [B, K, T]."""
    log_probs = constrained(program, search, tokens, column, log_probs)
    return jax.nn.log_softmax(log_probs, axis=-1) if program.renormalize else log_probs


class _Candidates(NamedTuple):
    """Holds the candidate extensions, best first: [B, C] each."""

    log_probs: jax.Array
    parents: jax.Array
    ids: jax.Array


def _candidates_of(program: SearchProgram) -> int:
    """Returns the candidates for each beam. One extension of a beam ends for each end token, so that of so many of all
    at least one a beam stays open."""
    return 2 + len(program.more_eos_ids)


def _candidates(log_probs: jax.Array, so_far: jax.Array, count: int) -> _Candidates:
    """Returns the `count` best extensions of all beams: log_probs [B, K, V], so_far [B, K].

    Ties go to the first beam, then to the lowest id.
    """
    batch, _, size = log_probs.shape
    sums = (log_probs + so_far[..., None]).reshape(batch, -1)
    values, places = top_k(sums, min(count, sums.shape[-1]))
    return _Candidates(values, places // size, places % size)


def _take_rows(array: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns array [B, K, …] at rows [B, C] of its second axis."""
    return jnp.take_along_axis(array, rows.reshape(*rows.shape, *[1] * (array.ndim - 2)), axis=1)


def _write_column(tokens: jax.Array, ids: jax.Array, column: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(tokens, ids[..., None], column, axis=2)


def _choose(
    program: SearchProgram, search: SearchParams, column: jax.Array, log_probs: jax.Array, beams: Beams
) -> Beams:
    """Chooses the next beams by the rules of `_beam_search` in transformers 5.

    There are twice as many candidates as beams, and K more for each further end token. Candidates that end compete by
    score with earlier ended hypotheses if they rank among the first K. The first K candidates that don't end stay open.
    """
    batch, size = beams.log_probs.shape
    prefix = search.prefix_at(column, batch)
    count = column + 1 - search.prefix_lengths(batch)  # [B]: tokens so far, this one among them
    candidates = _candidates(log_probs, beams.log_probs, _candidates_of(program) * size)
    is_last = count >= search.max_new
    ends = program.is_end(candidates.ids, search.eos_id) | is_last[:, None]

    kept_log_probs, kept = jax.lax.top_k(candidates.log_probs + ends * jnp.float32(LEAST), size)
    parents, ids = _take_rows(candidates.parents, kept), _take_rows(candidates.ids, kept)
    # Within a forced prefix, every beam takes the prefix's token and keeps its place and its score.
    same = jnp.broadcast_to(jnp.arange(size), (batch, size))
    in_prefix = (prefix >= 0)[:, None]
    parents = jnp.where(in_prefix, same, parents)
    ids = jnp.where(in_prefix, prefix[:, None], ids)
    kept_log_probs = jnp.where(in_prefix, beams.log_probs, kept_log_probs)

    may_end = ends & (jnp.arange(ends.shape[1]) < size) & ~in_prefix
    is_full = jnp.all(beams.has_ended, axis=1) if program.early_stopping is True else jnp.zeros(batch, bool)
    # A finished sentence keeps its hypotheses while the rest of the batch goes on.
    scores = candidates.log_probs / _penalty(search, count)[:, None]
    scores = scores + (is_full | beams.is_done)[:, None] * jnp.float32(LEAST) + ~may_end * jnp.float32(LEAST)
    candidate_tokens = _write_column(_take_rows(beams.tokens, candidates.parents), candidates.ids, column)
    ended_scores, best = jax.lax.top_k(jnp.concatenate([beams.ended_scores, scores], axis=1), size)
    ended_tokens = _take_rows(jnp.concatenate([beams.ended_tokens, candidate_tokens], axis=1), best)
    has_ended = _take_rows(jnp.concatenate([beams.has_ended, may_end], axis=1), best)

    could_improve = kept_log_probs[:, 0] / _penalty_to_come(program, search, count) > jnp.min(
        jnp.where(has_ended, jnp.min(ended_scores, axis=1, keepdims=True), LEAST), axis=1
    )
    is_done = beams.is_done | is_last | ~could_improve
    if program.early_stopping is True:
        is_done |= jnp.all(has_ended, axis=1)
    return Beams(
        state=beams.state.reordered(parents),
        tokens=_write_column(_take_rows(beams.tokens, parents), ids, column),
        previous=ids,
        log_probs=kept_log_probs,
        ended_tokens=ended_tokens,
        ended_scores=ended_scores,
        has_ended=has_ended,
        is_done=jnp.where(in_prefix[:, 0], beams.is_done, is_done),
        groups_done=beams.groups_done,
    )


def _penalty(search: SearchParams, count: jax.Array) -> jax.Array:
    return jnp.asarray(search.penalties)[jnp.clip(count, 0, len(search.penalties) - 1)]


def _penalty_to_come(program: SearchProgram, search: SearchParams, count: jax.Array) -> jax.Array:
    """Returns the length penalty for the bound on the best open hypothesis, which decides whether it can still win."""
    now = _penalty(search, count)
    return jnp.maximum(search.last_penalty, now) if program.early_stopping == "never" else now


# --- groups of beams


class _Group(NamedTuple):
    """Holds one group of K / G beams of each sentence after a step."""

    parents: jax.Array  # [B, K / G]: indices of beams of the group
    ids: jax.Array
    log_probs: jax.Array
    ended_tokens: jax.Array  # [B, K / G, T]
    ended_scores: jax.Array
    has_ended: jax.Array
    is_done: jax.Array  # [B]


def _choose_in_groups(
    program: SearchProgram, search: SearchParams, column: jax.Array, log_probs: jax.Array, beams: Beams
) -> Beams:
    """Chooses the next beams of each group by the rules of `_group_beam_search` in transformers 4.55. (4.57 no longer
    has it.)

    Before any other rule, a token loses the penalty for each beam of the groups before that has just chosen it. A group
    that is done chooses pads. The hypotheses of all groups are ordered once all are done.
    """
    batch, vocabulary = log_probs.shape[0], log_probs.shape[2]
    size = log_probs.shape[1] // program.beam_groups
    chosen = jnp.zeros((batch, vocabulary), log_probs.dtype)
    rows, groups = jnp.arange(batch)[:, None], []
    for number in range(program.beam_groups):
        part = slice(number * size, (number + 1) * size)
        scores = log_probs[:, part] - search.diversity_penalty * chosen[:, None]
        group = _choose_group(program, search, column, scores, beams, part, number)
        ids = jnp.where(beams.groups_done[:, number, None], search.pad_id, group.ids)
        chosen = chosen.at[rows, ids].add(1)
        groups.append(group._replace(parents=group.parents + part.start))
    columns = [group._replace(is_done=group.is_done[:, None]) for group in groups]
    whole = _Group(*(jnp.concatenate(parts, axis=1) for parts in zip(*columns, strict=True)))
    is_done = jnp.all(whole.is_done, axis=1)
    # Among equal scores the last one comes first, as where transformers takes them from the end of a sorted list.
    order = jnp.argsort(whole.ended_scores, axis=1, stable=True)[:, ::-1]
    order = jnp.where((is_done & ~beams.is_done)[:, None], order, jnp.arange(order.shape[1]))
    return Beams(
        state=beams.state.reordered(whole.parents),
        tokens=_write_column(_take_rows(beams.tokens, whole.parents), whole.ids, column),
        previous=whole.ids,
        log_probs=whole.log_probs,
        ended_tokens=_take_rows(whole.ended_tokens, order),
        ended_scores=_take_rows(whole.ended_scores, order),
        has_ended=_take_rows(whole.has_ended, order),
        is_done=is_done,
        groups_done=whole.is_done,
    )


def _choose_group(
    program: SearchProgram,
    search: SearchParams,
    column: jax.Array,
    log_probs: jax.Array,
    beams: Beams,
    part: slice,
    number: int,
) -> _Group:
    """Chooses the next beams of the group `number`, which are the `part` of all, from log-probabilities
    [B, K / G, V] less the penalty for diversity.

    Candidates that end become hypotheses if they rank among the first K / G. The first K / G that don't end stay open,
    and at the maximum length become hypotheses, too.
    """
    tokens, so_far, was_done = beams.tokens[:, part], beams.log_probs[:, part], beams.groups_done[:, number]
    batch, size = so_far.shape
    log_probs = _processed(program, search, column, tokens, log_probs)
    count = column + 1 - search.prefix_lengths(batch)
    candidates = _candidates(log_probs, so_far, _candidates_of(program) * size)
    ends = program.is_end(candidates.ids, search.eos_id)
    kept_log_probs, kept = jax.lax.top_k(candidates.log_probs + ends * jnp.float32(LEAST), size)
    prefix = search.prefix_at(column, batch)[:, None]
    parents = jnp.where(prefix >= 0, jnp.arange(size), _take_rows(candidates.parents, kept))
    ids = jnp.where(prefix >= 0, prefix, _take_rows(candidates.ids, kept))
    kept_log_probs = jnp.where(prefix >= 0, so_far, kept_log_probs)

    may_end = ends & (jnp.arange(ends.shape[1]) < size) & (prefix < 0) & ~was_done[:, None]
    ended = beams.ended_tokens[:, part], beams.ended_scores[:, part], beams.has_ended[:, part]
    divisor = _penalty(search, count)[:, None]
    written = _write_column(_take_rows(tokens, candidates.parents), candidates.ids, column)
    # If the best candidate has just become the worst hypothesis, the group stops: the two scores must be the same bits.
    scores = jax.lax.optimization_barrier(candidates.log_probs / divisor)
    ended = _with_ended(ended, written, scores, may_end)
    is_full = jnp.all(ended[2], axis=1)
    to_come = _penalty_to_come(program, search, count)
    best = jnp.where(to_come > divisor[:, 0], candidates.log_probs[:, 0] / to_come, scores[:, 0])
    stops = is_full & (jnp.min(ended[1], axis=1) >= best) if program.early_stopping is not True else is_full
    is_done = was_done | (stops & (prefix < 0)[:, 0])

    is_last = (count >= search.max_new) & ~is_done
    open_tokens = _write_column(_take_rows(tokens, parents), ids, column)
    ended = _with_ended(ended, open_tokens, kept_log_probs / divisor, jnp.broadcast_to(is_last[:, None], ids.shape))
    return _Group(parents, ids, kept_log_probs, *ended, is_done=is_done | is_last)


def _with_ended(
    ended: tuple[jax.Array, jax.Array, jax.Array], tokens: jax.Array, scores: jax.Array, may_end: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the best of the ended hypotheses (tokens, scores, and whether they are there) and of others that may
    end."""
    size = ended[1].shape[1]
    scores = jnp.maximum(scores, LEAST) + ~may_end * jnp.float32(LEAST)
    scores, best = jax.lax.top_k(jnp.concatenate([ended[1], scores], axis=1), size)
    tokens = _take_rows(jnp.concatenate([ended[0], tokens], axis=1), best)
    return tokens, scores, _take_rows(jnp.concatenate([ended[2], may_end], axis=1), best)


def _choose_floydhub(
    program: SearchProgram, search: SearchParams, column: jax.Array, log_probs: jax.Array, beams: Beams
) -> Beams:
    """Chooses the next beams by the rules of the program floydhub.

    Keeps the K best of the K best extensions of every beam, ended or not. Tokens after an end count in the sum. Once
    all beams have ended, they are ordered by the sum over length^penalty, with the length up to the first end. If the
    room is full first, the beams keep their order.
    """
    batch, size = beams.log_probs.shape
    prefix = search.prefix_at(column, batch)
    count = column + 1 - search.prefix_lengths(batch)
    candidates = _candidates(log_probs, beams.log_probs, size)
    in_prefix = (prefix >= 0)[:, None]
    same = jnp.broadcast_to(jnp.arange(size), (batch, size))
    parents = jnp.where(in_prefix, same, candidates.parents)
    ids = jnp.where(in_prefix, prefix[:, None], candidates.ids)
    sums = jnp.where(in_prefix, beams.log_probs, candidates.log_probs)
    tokens = _write_column(_take_rows(beams.tokens, parents), ids, column)

    columns = jnp.arange(tokens.shape[2])
    after_prefix = columns >= search.prefix_lengths(batch)[:, None, None]
    is_end = program.is_end(tokens, search.eos_id) & (columns <= column) & after_prefix
    has_ended = jnp.any(is_end, axis=2)
    lengths = jnp.where(has_ended, jnp.argmax(is_end, axis=2) + 1, column + 1) - search.prefix_lengths(batch)[:, None]
    scores = sums / _penalty(search, lengths)
    all_ended = jnp.all(has_ended, axis=1) & (count >= 2)
    order = jnp.where(all_ended[:, None], jnp.argsort(-scores, axis=1, stable=True), same)
    is_done = beams.is_done | all_ended | (count >= search.max_new)
    shown = jnp.where(columns < (lengths + search.prefix_lengths(batch)[:, None])[..., None], tokens, search.pad_id)
    was_done = beams.is_done[:, None]
    return Beams(
        state=beams.state.reordered(parents),
        tokens=tokens,
        previous=ids,
        log_probs=sums,
        ended_tokens=jnp.where(was_done[..., None], beams.ended_tokens, _take_rows(shown, order)),
        ended_scores=jnp.where(was_done, beams.ended_scores, _take_rows(scores, order)),
        has_ended=has_ended,
        is_done=is_done,
        groups_done=beams.groups_done,
    )
