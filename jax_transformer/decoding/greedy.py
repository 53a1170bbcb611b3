"""Greedy decoding as one pure function of arrays."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding import sampling_loop as chains
from jax_transformer.decoding.cache import Weights
from jax_transformer.decoding.search_params import Terms
from jax_transformer.model.functional import Params


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
      Token ids [B, max_decode_length]: each row's tokens up to and with eos_id, pads after it. A row without eos_id was
        cut off.

    Raises:
      ValueError: more tokens than the position table allows.
    """
    decoding = DecodingConfig()
    terms = Terms.of_numbers(
        decoder_start_id, eos_id, config.target_pad_id, max_decode_length, jnp.ones(max_decode_length + 1)
    )
    weights = Weights.of(config, params)
    start = chains.start(config, decoding, weights, jnp.asarray(source_ids), terms, max_decode_length)
    return chains.run(config, decoding, weights, terms, start).tokens[:, 0]
