"""Differences that a caller may allow, and the problems that leave them out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.parity.oracle.graph import MODEL_INPUTS, nodes
from jax_transformer.parity.oracle.replay import recompute

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig
    from jax_transformer.parity.problems import Problem

FULLY_MASKED = "fully-masked"
"""What an attention gives a query that sees no key: programs give uniform weights, zeros or NaN."""
INNER_PADDING = "inner-padding"
"""What depends on padding before a token: programs of sentences that are only ever padded at their ends may treat it in
any way."""
FIRST_TOKEN = "first-token"
"""What a target's first token does: programs that put their own start token in its place ignore it."""
ALLOWANCES = (FULLY_MASKED, INNER_PADDING, FIRST_TOKEN)


def with_first_token(problem: Problem, token: int) -> Problem:
    """Returns the problem with one token at the beginning of every target."""
    target = problem.decoder_input_ids.copy()
    target[:, 0] = token
    return replace(problem, decoder_input_ids=target)


def with_padding_at_the_end(config: TransformerConfig, problem: Problem) -> Problem:
    """Returns the problem with tokens in place of the pads that stand before a token of their sentence."""
    source, target = problem.ids
    rng = np.random.default_rng(len(source))
    sources, targets = _pads(config)
    return replace(
        problem,
        source_ids=_filled(source, _before_a_token(source, sources), sources, config.source.vocab_size, rng),
        decoder_input_ids=_filled(target, _before_a_token(target, targets), targets, config.target.vocab_size, rng),
    )


def with_keys_for_all(config: TransformerConfig, problem: Problem) -> Problem:
    """Returns the problem with tokens in place of the pads of every sentence in which a query sees no key.

    The sentences of source and target are filled apart, so that all other padding stays.
    """
    source, target = problem.ids
    filled_source, filled_target = (np.zeros(len(source), bool) for _ in range(2))
    ids = dict(zip(MODEL_INPUTS, (source, target), strict=True))
    for node in (one for one in nodes(config) if one.kind == "mask"):
        blind = _blind(recompute(node, config, ids, {}), len(source))
        if len(node.inputs) > 1:  # of cross-attention
            filled_source |= blind & (source == config.source.pad_id).all(axis=1)
            filled_target |= blind & (config.attentions[-1].padding in ("queries", "both"))
        elif "source_ids" in node.inputs.values():
            filled_source |= blind
        else:
            filled_target |= blind
    rng = np.random.default_rng(len(source))
    sources, targets = _pads(config)
    return replace(
        problem,
        source_ids=_filled(source, filled_source[:, None], sources, config.source.vocab_size, rng),
        decoder_input_ids=_filled(target, filled_target[:, None], targets, config.target.vocab_size, rng),
    )


def _pads(config: TransformerConfig) -> tuple[list[int], list[int]]:
    """Returns the ids that may count as padding in sources and in targets."""
    of_targets = (config.target.pad_id, config.decoder.self_attention.padding_id, config.source.pad_id)
    return [config.source.pad_id], [pad for pad in of_targets if pad is not None]


def _before_a_token(ids: np.ndarray, pads: list[int]) -> np.ndarray:
    """Returns for each place [B, T] whether a token follows."""
    is_token = ~np.isin(ids, pads)
    return np.asarray(np.flip(np.logical_or.accumulate(np.flip(is_token, axis=1), axis=1), axis=1))


def _blind(mask: np.ndarray, sentences: int) -> np.ndarray:
    """Returns for each sentence whether a query of it sees no key."""
    sees = np.asarray(mask.any(axis=-1))  # [B, 1, Q], 1 along an axis without difference
    return np.broadcast_to(~np.asarray(sees.all(axis=(1, 2))), sentences).copy()


def _filled(
    ids: np.ndarray, places: np.ndarray, pads: list[int], vocab_size: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns the ids with real tokens in place of the pads at some places ([B, T], or [B, 1] for sentences)."""
    tokens = rng.choice([token for token in range(vocab_size) if token not in pads], ids.shape)
    return np.where(places & np.isin(ids, pads), tokens, ids).astype(ids.dtype)
