"""Greedy decoding inside one jitted loop: with cached keys and values, or, where a cache would change the result, without."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jax_transformer.config import TransformerConfig
from jax_transformer.decoding.selection import argmax
from jax_transformer.model import functional
from jax_transformer.model.functional import Params
from jax_transformer.model.masks import make_masks


@partial(jax.jit, static_argnames=("config", "max_decode_length"))
def greedy(
    config: TransformerConfig,
    params: Params,
    source_ids: jax.Array,
    *,
    decoder_start_id: int | jax.Array,
    eos_id: int | jax.Array,
    max_decode_length: int,
) -> jax.Array:
    """The most probable next token, again and again, until every row has ended.

    Args:
      source_ids: [B, S]; a row of pads alone is padding of the batch and ends at once.
      max_decode_length: most tokens decoded, the end token included.

    Returns:
      Token ids [B, max_decode_length]: each row's tokens up to and with eos_id, pads after it. A row without eos_id was cut off.

    Raises:
      ValueError: more tokens than the position table allows.
    """
    if not config.cache_is_exact:
        return _greedy_anew(config, params, source_ids, decoder_start_id, eos_id, max_decode_length)
    batch = source_ids.shape[0]
    encoder_output = functional.encode(config, params, source_ids)
    state = functional.start_decoding(config, params, encoder_output, source_ids, max_decode_length)
    layers = functional.decoder_layers(config, params)
    tokens = jnp.full((batch, max_decode_length), config.target_pad_id, jnp.int32)
    previous = jnp.full(batch, decoder_start_id, jnp.int32)
    ended = jnp.all(source_ids == config.source_pad_id, axis=1)

    def going_on(carry: tuple) -> jax.Array:
        state, _, _, ended = carry
        return (state.position < max_decode_length) & ~jnp.all(ended)

    def decode_one(carry: tuple) -> tuple:
        state, tokens, previous, ended = carry
        column = state.position
        logits, state = functional.decode_step(config, params, state, previous, layers=layers)
        token = jnp.where(ended, config.target_pad_id, argmax(logits)).astype(jnp.int32)
        return state, tokens.at[:, column].set(token), token, ended | (token == eos_id)

    return jax.lax.while_loop(going_on, decode_one, (state, tokens, previous, ended))[1]


def _greedy_anew(
    config: TransformerConfig,
    params: Params,
    source_ids: jax.Array,
    decoder_start_id: int | jax.Array,
    eos_id: int | jax.Array,
    max_decode_length: int,
) -> jax.Array:
    """The same, the whole prefix decoded anew for every token: a token that is masked as a query attends to later ones as well."""
    batch, decoding = source_ids.shape[0], config.while_decoding()
    encoder_output = functional.encode(config, params, source_ids)
    prefix = jnp.full((batch, max_decode_length + 1), config.target_pad_id, jnp.int32).at[:, 0].set(decoder_start_id)
    ended = jnp.all(source_ids == config.source_pad_id, axis=1)

    def going_on(carry: tuple) -> jax.Array:
        length, _, ended = carry
        return (length <= max_decode_length) & ~jnp.all(ended)

    def decode_one(carry: tuple) -> tuple:
        length, prefix, ended = carry
        inputs = prefix[:, :-1]
        masks = make_masks(decoding, source_ids, inputs)._replace(decoder_exists=jnp.arange(max_decode_length) < length)
        logits = functional.decode(config, params, encoder_output, source_ids, inputs, masks=masks)[:, length - 1]
        token = jnp.where(ended, config.target_pad_id, argmax(logits)).astype(jnp.int32)
        return length + 1, prefix.at[:, length].set(token), ended | (token == eos_id)

    return jax.lax.while_loop(going_on, decode_one, (jnp.asarray(1), prefix, ended))[1][:, 1:]
