"""Hypotheses that go on by themselves: the one that always takes the most probable token, or several that draw
theirs."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding import cache
from jax_transformer.decoding.cache import State, Weights
from jax_transformer.decoding.constraints import constrained, must_be
from jax_transformer.decoding.sampling import draw
from jax_transformer.decoding.search_params import Terms
from jax_transformer.decoding.selection import argmax


class Chains(NamedTuple):
    """K hypotheses of each of B sentences, with room for T tokens."""

    state: State
    tokens: jax.Array  # [B, K, T] int32: pads where nothing stands yet
    previous: jax.Array  # [B, K] int32: what is fed next
    log_probs: jax.Array  # [B, K]: the sums of the tokens' log-probabilities, forced ones not counted
    lengths: jax.Array  # [B, K] int32: tokens, the end token counted and forced ones not
    ended: jax.Array  # [B, K] bool

    @property
    def is_done(self) -> jax.Array:
        """[B]"""
        return jnp.all(self.ended, axis=1)

    def grown(self, config: TransformerConfig, length: int) -> Chains:
        """With room for `length` tokens."""
        room = ((0, 0), (0, 0), (0, length - self.tokens.shape[2]))
        return self._replace(
            state=self.state.grown(length), tokens=jnp.pad(self.tokens, room, constant_values=config.target_pad_id)
        )

    def hypotheses(self, terms: Terms) -> tuple[jax.Array, jax.Array]:
        """Tokens [B, K, T] and scores [B, K], the best first."""
        scores = self.log_probs / terms.penalties[jnp.minimum(self.lengths, len(terms.penalties) - 1)]
        order = jnp.argsort(-scores, axis=1, stable=True)
        return jnp.take_along_axis(self.tokens, order[..., None], axis=1), jnp.take_along_axis(scores, order, axis=1)


def start(
    config: TransformerConfig,
    decoding: DecodingConfig,
    weights: Weights,
    source_ids: jax.Array,
    terms: Terms,
    length: int,
) -> Chains:
    """Before the first token. A sentence of nothing but pads is padding of the batch, and has ended."""
    batch, rows = len(source_ids), decoding.num_rows
    is_empty = jnp.all(source_ids == config.source_pad_id, axis=1)
    return Chains(
        state=cache.start(config, weights, source_ids, length, rows),
        tokens=jnp.full((batch, rows, length), config.target_pad_id, jnp.int32),
        previous=jnp.broadcast_to(terms.start_id, (batch, rows)).astype(jnp.int32),
        log_probs=jnp.zeros((batch, rows), jnp.float32),
        lengths=jnp.zeros((batch, rows), jnp.int32),
        ended=jnp.broadcast_to(is_empty[:, None], (batch, rows)),
    )


def advance(
    config: TransformerConfig, decoding: DecodingConfig, weights: Weights, terms: Terms, chains: Chains
) -> Chains:
    """One more token."""
    column, batch = chains.state.position, len(chains.tokens)
    logits, state = cache.step(config, weights, chains.state, chains.previous)
    allowed = constrained(decoding, terms, chains.tokens, column, logits)
    choice = argmax(allowed) if terms.drawing is None else draw(decoding, terms.drawing, column, allowed)
    forced = terms.forced_at(column, batch)[:, None]
    token = jnp.where(chains.ended, config.target_pad_id, jnp.where(forced >= 0, forced, choice)).astype(jnp.int32)
    counts = ~chains.ended & (forced < 0)
    scores = counts & ~must_be(decoding, terms, column, batch)[:, None]
    chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0] - jax.nn.logsumexp(logits, axis=-1)
    lengths = chains.lengths + counts
    return Chains(
        state=state,
        tokens=jax.lax.dynamic_update_slice_in_dim(chains.tokens, token[..., None], column, axis=2),
        previous=token,
        log_probs=chains.log_probs + jnp.where(scores, chosen, 0.0).astype(jnp.float32),
        lengths=lengths,
        ended=chains.ended | (counts & ((token == terms.eos_id) | (lengths >= jnp.reshape(terms.max_new, (-1, 1))))),
    )


@partial(jax.jit, static_argnames=("config", "decoding"))
def run(config: TransformerConfig, decoding: DecodingConfig, weights: Weights, terms: Terms, chains: Chains) -> Chains:
    """Until all have ended, or there is no more room."""
    room = chains.tokens.shape[2]

    def goes_on(chains: Chains) -> jax.Array:
        return (chains.state.position < room) & ~jnp.all(chains.ended)

    return jax.lax.while_loop(goes_on, lambda chains: advance(config, decoding, weights, terms, chains), chains)
