"""Boolean attention masks, True = may attend, derived from the ids by the config's rules (Vaswani et al. 2017,
§3.2.3)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_transformer.config.model import PaddingCover, TransformerConfig

Mask = jax.Array | None
"""Boolean [B, 1, Q, K] or broadcastable to it; None where everything may be attended."""


class Masks(NamedTuple):
    """The three masks of one forward pass."""

    encoder_self: Mask
    decoder_self: Mask
    cross: Mask
    decoder_exists: Mask = None
    """Which of the decoder's tokens there are, True everywhere but for room that is left for tokens to come. What
    doesn't exist isn't attended to by anything, not even where a row is fully masked."""


def causal_mask(length: int) -> jax.Array:
    """[1, 1, T, T]: a position attends to itself and what stands before it."""
    return jnp.tril(jnp.ones((1, 1, length, length), bool))


def padding_mask(query_is_real: jax.Array, key_is_real: jax.Array, cover: PaddingCover) -> Mask:
    """The mask [B, 1, Q, K] (or broadcastable) that hides pads on the covered axes, from two boolean arrays [B, Q] and
    [B, K]."""
    on_keys = key_is_real[:, None, None, :]
    on_queries = query_is_real[:, None, :, None]
    covers = {"keys": on_keys, "queries": on_queries, "both": on_keys & on_queries, "none": None}
    return covers[cover]


def both(first: Mask, second: Mask) -> Mask:
    """What both masks allow."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def make_masks(config: TransformerConfig, source_ids: jax.Array, decoder_input_ids: jax.Array) -> Masks:
    """The masks of source_ids [B, S] and decoder_input_ids [B, T] in training."""
    source_is_real = source_ids != config.source_pad_id
    target_is_real = decoder_input_ids != config.target_pad_id
    decoder_is_real = decoder_input_ids != decoder_padding_id(config)
    causal = causal_mask(decoder_input_ids.shape[1]) if config.decoder_causal else None
    return Masks(
        encoder_self=padding_mask(source_is_real, source_is_real, config.encoder_padding),
        decoder_self=both(causal, padding_mask(decoder_is_real, decoder_is_real, config.decoder_padding)),
        cross=padding_mask(target_is_real, source_is_real, config.cross_padding),
    )


def decoder_padding_id(config: TransformerConfig) -> int:
    """The id that the decoder's self-attention takes for padding."""
    return config.target_pad_id if config.decoder_padding_id is None else config.decoder_padding_id
