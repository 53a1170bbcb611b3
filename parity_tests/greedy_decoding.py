"""Greedy decoding of a config and its parameters, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding.generation import generate
from jax_transformer.storage.model_directory import Model


def greedy(
    config: TransformerConfig,
    params: Any,
    source_ids: np.ndarray,
    *,
    decoder_start_id: int,
    eos_id: int,
    max_decode_length: int,
) -> np.ndarray:
    """Returns tokens [B, max_decode_length], up to and with the end token, then pads.

    Args:
      eos_id: -1 for no end token.
    """
    never = config.target_vocab_size  # no token has this id
    generation = GenerationConfig(decoder_start_id=decoder_start_id, eos_id=never if eos_id < 0 else eos_id)
    model = Model(config, params, None, None, generation)
    tokens = generate(model, source_ids, max_new_tokens=max_decode_length).sequences[:, 0, :max_decode_length]
    room = ((0, 0), (0, max_decode_length - tokens.shape[1]))
    return np.pad(tokens, room, constant_values=config.target_pad_id)
