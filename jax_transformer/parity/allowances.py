"""Differences that a caller may allow, and the problems that leave them out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.parity.oracle import formulas

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig
    from jax_transformer.parity.problems import Problem

FULLY_MASKED = "fully-masked"
"""What an attention gives a query that sees no key: programs give uniform weights, zeros or NaN."""
ALLOWANCES = (FULLY_MASKED,)


def with_keys_for_all(config: TransformerConfig, problem: Problem) -> Problem:
    """Returns the problem with tokens in place of the pads of every sentence in which a query sees no key.

    The sentences of source and target are filled apart, so that all other padding stays.
    """
    source, target = problem.ids
    filled_source = _blind(formulas.encoder_self_mask(config, source), len(source))
    crossing = _blind(formulas.cross_mask(config, source, target), len(source))
    by_query = config.cross_padding in ("queries", "both")
    filled_source |= crossing & (source == config.source_pad_id).all(axis=1)
    filled_target = _blind(formulas.decoder_self_mask(config, target), len(target)) | (crossing & by_query)
    rng = np.random.default_rng(len(source))
    pads = {config.target_pad_id, config.decoder_padding_id, config.source_pad_id} - {None}
    return replace(
        problem,
        source_ids=_filled(source, filled_source, {config.source_pad_id}, config.source_vocab_size, rng),
        decoder_input_ids=_filled(target, filled_target, pads, config.target_vocab_size, rng),
    )


def _blind(mask: np.ndarray, sentences: int) -> np.ndarray:
    """Returns for each sentence whether a query of it sees no key."""
    sees = np.asarray(mask.any(axis=-1))  # [B, 1, Q], 1 along an axis without difference
    return np.broadcast_to(~np.asarray(sees.all(axis=(1, 2))), sentences).copy()


def _filled(
    ids: np.ndarray, sentences: np.ndarray, pads: set[int | None], vocab_size: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns the ids with real tokens in place of the pads of some sentences."""
    tokens = rng.choice([token for token in range(vocab_size) if token not in pads], ids.shape)
    is_pad = np.isin(ids, [pad for pad in pads if pad is not None])
    return np.where(sentences[:, None] & is_pad, tokens, ids).astype(ids.dtype)
