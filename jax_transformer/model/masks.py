"""Boolean attention masks, derived from token ids and lengths; True = may attend (Vaswani et al. 2017, §3.2.3)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import PaddingCover
from jax_transformer.model.features import SourceInput, source_is_real
from jax_transformer.model.ids import Ids

Mask = jax.Array | None
"""Boolean, [B, 1, Q, K] or broadcastable to it; None = everything may be attended."""


class Masks(NamedTuple):
    """Holds the masks of one forward pass."""

    encoder_self: Mask  # [B, 1, S, S]
    decoder_self: Mask  # [B, 1, T, T]
    cross: Mask  # [B, 1, T, S]
    decoder_exists: Mask = None
    """False at columns of the decoder's input that are still empty, broadcastable to [B, 1, T, T]. Nothing attends to
    an empty column, not even a fully masked row."""


class Segments(NamedTuple):
    """Holds the number of the pair that each token of a packed row belongs to, from 1; 0 at pads."""

    source: jax.Array | None  # [B, S] integers
    target: jax.Array | None  # [B, T]


UNPACKED = Segments(None, None)
"""A pair in each row."""


def causal_mask(length: int) -> jax.Array:
    """Returns the mask [1, 1, T, T] with which a position attends to itself and earlier positions."""
    return jnp.tril(jnp.ones((1, 1, length, length), bool))


def padding_mask(query_is_real: jax.Array, key_is_real: jax.Array, cover: PaddingCover) -> Mask:
    """Returns the mask, [B, 1, Q, K] or broadcastable, that hides pads on the covered axes.

    Args:
      query_is_real: boolean [B, Q], False at pads.
      key_is_real: boolean [B, K], False at pads.
      cover: the axes on which pads are hidden.
    """
    on_keys = key_is_real[:, None, None, :]  # [B, 1, 1, K]
    on_queries = query_is_real[:, None, :, None]  # [B, 1, Q, 1]
    covers = {"keys": on_keys, "queries": on_queries, "both": on_keys & on_queries, "none": None}
    return covers[cover]


def segment_mask(query_segments: jax.Array | None, key_segments: jax.Array | None) -> Mask:
    """Returns the mask [B, 1, Q, K] with which a token attends to tokens of its own pair. None: rows aren't packed.

    Args:
      query_segments: integers [B, Q].
      key_segments: integers [B, K].
    """
    if query_segments is None or key_segments is None:
        return None
    return query_segments[:, None, :, None] == key_segments[:, None, None, :]


def both(first: Mask, second: Mask) -> Mask:
    """Returns the mask that allows what both masks allow."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def encoder_mask(config: TransformerConfig, source: SourceInput) -> Mask:
    """Derives the mask of the encoder's self-attention from a source of S positions."""
    is_real = source_is_real(config, source)
    return padding_mask(is_real, is_real, config.attentions[0].padding)


def make_masks(
    config: TransformerConfig, source: SourceInput, decoder_input_ids: Ids, segments: Segments = UNPACKED
) -> Masks:
    """Derives the training masks of a source of S positions in the encoder, and decoder_input_ids [B, T]."""
    of_encoder, of_decoder, of_cross = config.attentions
    is_real = source_is_real(config, source)
    target_is_real = decoder_input_ids != config.target.pad_id
    decoder_is_real = decoder_input_ids != decoder_padding_id(config)
    causal = causal_mask(decoder_input_ids.shape[1]) if of_decoder.causal else None
    of_source, of_target = segments
    encoder_self = padding_mask(is_real, is_real, of_encoder.padding)
    decoder_self = both(causal, padding_mask(decoder_is_real, decoder_is_real, of_decoder.padding))
    cross = padding_mask(target_is_real, is_real, of_cross.padding)
    return Masks(
        encoder_self=both(encoder_self, segment_mask(of_source, of_source)),
        decoder_self=both(decoder_self, segment_mask(of_target, of_target)),
        cross=both(cross, segment_mask(of_target, of_source)),
    )


def decoder_padding_id(config: TransformerConfig) -> int:
    """Returns the id that the decoder's self-attention treats as padding."""
    own = config.decoder.self_attention.padding_id
    return config.target.pad_id if own is None else own
