"""Extend every hypothesis by one token: from cached keys and values or, if a cache would change the result, from the
whole prefix."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.model.decoder_state import DecoderState
from jax_transformer.model.features import SourceInput
from jax_transformer.model.functional import Params
from jax_transformer.model.masks import make_masks


class Weights(NamedTuple):
    """Holds a model's parameters in the form that decoding reads."""

    params: Params
    layers: list[Any] | None
    """The decoder's layers, unstacked for single steps; None if decoding uses no cache."""

    @classmethod
    def of(cls, config: TransformerConfig, params: Params) -> Weights:
        return cls(params, functional.decoder_layers(config, params) if config.cache_is_exact else None)


class Prefixes(NamedTuple):
    """Holds the state of decoding without a cache."""

    encoder_output: jax.Array  # [B, S, D]
    source_ids: SourceInput  # [B, S], or features
    ids: jax.Array  # [B, K, T]
    position: jax.Array  # [] int32: the column of the next token

    def reordered(self, parents: jax.Array) -> Prefixes:
        return self._replace(ids=jnp.take_along_axis(self.ids, parents[..., None], axis=1))

    def grown(self, length: int) -> Prefixes:
        return self._replace(ids=jnp.pad(self.ids, ((0, 0), (0, 0), (0, length - self.ids.shape[2]))))


State = DecoderState | Prefixes
"""Both have a position, and the methods `reordered` and `grown`."""


def start(config: TransformerConfig, weights: Weights, source_ids: SourceInput, length: int, num_rows: int) -> State:
    """Returns the state before the first of at most `length` tokens of num_rows hypotheses of each of source_ids [B,
    S].

    Raises:
      ValueError: more tokens than the position table allows.
    """
    encoder_output = functional.encode(config, weights.params, source_ids)
    return start_from(config, weights, encoder_output, source_ids, length, num_rows)


def start_from(
    config: TransformerConfig,
    weights: Weights,
    encoder_output: jax.Array,
    source_ids: SourceInput,
    length: int,
    num_rows: int,
) -> State:
    """Returns the state of `start`, from the encoder's output [B, S, D] for source_ids [B, S]."""
    if weights.layers is not None:
        return functional.start_decoding(
            config, weights.params, encoder_output, source_ids, length, num_rows, layers=weights.layers
        )
    ids = jnp.full((source_ids.shape[0], num_rows, length), config.target_pad_id, jnp.int32)
    return Prefixes(encoder_output, source_ids, ids, jnp.zeros((), jnp.int32))


def step(config: TransformerConfig, weights: Weights, state: State, ids: jax.Array) -> tuple[jax.Array, State]:
    """Returns the logits [B, K, V] after the tokens ids [B, K] at state.position, in at least float32, and the new
    state."""
    if isinstance(state, DecoderState):
        logits, state = functional.decode_step(config, weights.params, state, ids, layers=weights.layers)
    else:
        prefixes = state._replace(ids=state.ids.at[:, :, state.position].set(ids))
        logits = jax.vmap(
            lambda one: _full_prefix_logits(config, weights.params, prefixes, one), in_axes=1, out_axes=1
        )(prefixes.ids)
        state = prefixes._replace(position=state.position + 1)
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32)), state


def _full_prefix_logits(config: TransformerConfig, params: Params, prefixes: Prefixes, ids: jax.Array) -> jax.Array:
    """Runs the decoder on whole prefixes ids [B, T]; returns the logits [B, V] at the current position."""
    masks = make_masks(config.while_decoding(), prefixes.source_ids, ids)
    masks = masks._replace(decoder_exists=jnp.arange(ids.shape[1]) <= prefixes.position)
    return functional.decode(config, params, prefixes.encoder_output, prefixes.source_ids, ids, masks=masks)[
        :, prefixes.position
    ]
