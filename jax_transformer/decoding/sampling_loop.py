"""Greedy decoding and sampling: hypotheses that continue independently, by the most probable token or a drawn one."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding import cache
from jax_transformer.decoding.cache import State, Weights
from jax_transformer.decoding.constraints import constrained, is_forced
from jax_transformer.decoding.search_params import SamplingParams, SearchParams, SearchProgram
from jax_transformer.decoding.selection import argmax
from jax_transformer.model.features import SourceInput, source_is_real


class Samples(NamedTuple):
    """Holds K hypotheses of each of B sentences, with room for T tokens."""

    state: State
    tokens: jax.Array  # [B, K, T] int32: pads after the last token
    previous: jax.Array  # [B, K] int32: the next decoder input
    log_probs: jax.Array  # [B, K]: the sums of the tokens' log-probabilities, without the prefix
    lengths: jax.Array  # [B, K] int32: tokens, with the end token and without the prefix
    ended: jax.Array  # [B, K] bool

    @property
    def is_done(self) -> jax.Array:
        """Returns whether all hypotheses of a sentence have ended, [B]."""
        return jnp.all(self.ended, axis=1)

    def grown(self, config: TransformerConfig, length: int) -> Samples:
        """Returns the same samples with room for `length` tokens."""
        room = ((0, 0), (0, 0), (0, length - self.tokens.shape[2]))
        return self._replace(
            state=self.state.grown(length), tokens=jnp.pad(self.tokens, room, constant_values=config.target_pad_id)
        )

    def hypotheses(self, search: SearchParams) -> tuple[jax.Array, jax.Array]:
        """Returns tokens [B, K, T] and scores [B, K], best first."""
        scores = self.log_probs / jnp.asarray(search.penalties)[jnp.minimum(self.lengths, len(search.penalties) - 1)]
        order = jnp.argsort(-scores, axis=1, stable=True)
        return jnp.take_along_axis(self.tokens, order[..., None], axis=1), jnp.take_along_axis(scores, order, axis=1)


@partial(jax.jit, static_argnames=("config", "program", "length"))
def start(
    config: TransformerConfig,
    program: SearchProgram,
    weights: Weights,
    source_ids: SourceInput,
    search: SearchParams,
    length: int,
) -> Samples:
    """Returns the state before the first token. A sentence of pads alone pads the batch, and has ended."""
    batch, rows = source_ids.shape[0], program.num_rows
    is_empty = ~jnp.any(source_is_real(config, source_ids), axis=1)
    return Samples(
        state=cache.start(config, weights, source_ids, length, rows),
        tokens=jnp.full((batch, rows, length), config.target_pad_id, jnp.int32),
        previous=jnp.broadcast_to(search.start_id, (batch, rows)).astype(jnp.int32),
        log_probs=jnp.zeros((batch, rows), jnp.float32),
        lengths=jnp.zeros((batch, rows), jnp.int32),
        ended=jnp.broadcast_to(is_empty[:, None], (batch, rows)),
    )


def advance(
    config: TransformerConfig, program: SearchProgram, weights: Weights, search: SearchParams, samples: Samples
) -> Samples:
    """Decodes one more token."""
    column, batch = samples.state.position, samples.tokens.shape[0]
    logits, state = cache.step(config, weights, samples.state, samples.previous)
    allowed = constrained(program, search, samples.tokens, column, logits)
    choice = argmax(allowed) if search.sampling is None else draw(program, search.sampling, column, allowed)
    prefix = search.prefix_at(column, batch)[:, None]
    token = jnp.where(samples.ended, config.target_pad_id, jnp.where(prefix >= 0, prefix, choice)).astype(jnp.int32)
    counts = ~samples.ended & (prefix < 0)
    scores = counts & ~is_forced(program, search, column, batch)[:, None]
    counted = logits if program.timestamps is None else allowed
    chosen = jnp.take_along_axis(counted, token[..., None], axis=-1)[..., 0] - jax.nn.logsumexp(counted, axis=-1)
    lengths, ends = samples.lengths + counts, program.is_end(token, search.eos_id)
    return Samples(
        state=state,
        tokens=jax.lax.dynamic_update_slice_in_dim(samples.tokens, token[..., None], column, axis=2),
        previous=token,
        log_probs=samples.log_probs + jnp.where(scores, chosen, 0.0).astype(jnp.float32),
        lengths=lengths,
        ended=samples.ended | (counts & (ends | (lengths >= jnp.reshape(search.max_new, (-1, 1))))),
    )


@partial(jax.jit, static_argnames=("config", "program"), donate_argnames="samples")
def run(
    config: TransformerConfig,
    program: SearchProgram,
    weights: Weights,
    search: SearchParams,
    samples: Samples,
    until: jax.Array | None = None,
    size: jax.Array | int = 0,
) -> Samples:
    """Decodes until the room is full, there are `until` tokens, which is at most the room, or at most `size` sentences
    go on."""
    until = jnp.int32(samples.tokens.shape[2]) if until is None else until

    def goes_on(samples: Samples) -> jax.Array:
        return (samples.state.position < until) & (jnp.sum(~samples.is_done) > size)

    return jax.lax.while_loop(goes_on, lambda samples: advance(config, program, weights, search, samples), samples)


def draw(program: SearchProgram, sampling: SamplingParams, column: jax.Array, logits: jax.Array) -> jax.Array:
    """Draws a token for each hypothesis, [B, K], from logits [B, K, V].

    The result depends on the logits, the sentence's key, the column and the row among K alone.
    """
    logits = filtered(program, sampling, logits)

    def draw_row(key: jax.Array, logits: jax.Array) -> jax.Array:
        keys = jax.vmap(lambda k: jax.random.fold_in(jax.random.fold_in(key, column), k))(jnp.arange(len(logits)))
        return jax.vmap(jax.random.categorical)(keys, logits)

    return jax.vmap(draw_row)(sampling.keys, logits)


def filtered(program: SearchProgram, sampling: SamplingParams, logits: jax.Array) -> jax.Array:
    """Divides the logits by the temperature, and sets tokens that top_k, top_p or min_p excludes to -inf.

    The three apply in this order, each to the tokens that remain.
    """
    logits = logits / sampling.temperature
    if program.top_k:
        least = jax.lax.top_k(logits, min(program.top_k, logits.shape[-1]))[0][..., -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if program.has_top_p:
        ordered = jnp.sort(logits, axis=-1, descending=True)
        before = jnp.cumsum(jax.nn.softmax(ordered, axis=-1), axis=-1) - jax.nn.softmax(ordered, axis=-1)
        # A token stays if the more likely ones sum to less than top_p, so the most likely token always stays.
        least = jnp.min(jnp.where(before < sampling.top_p, ordered, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if program.has_min_p:
        logits = jnp.where(logits < jnp.max(logits, axis=-1, keepdims=True) + jnp.log(sampling.min_p), -jnp.inf, logits)
    return logits
