"""Unknown faults of numbers, whatever they mean: rounded, scaled, in another's place."""

from __future__ import annotations

import numpy as np

from jax_transformer.parity.oracle.graph import Kind
from selftest.unknown import Site, Unknown, to_int8, unknown


def rounded_to_int8(site: Site, right: np.ndarray) -> np.ndarray:
    return to_int8(right)


def a_hundredth_more(site: Site, right: np.ndarray) -> np.ndarray:
    return 1.01 * right


def two_features_exchanged(site: Site, right: np.ndarray) -> np.ndarray:
    wrong, pair = right.copy(), site.pick_two(right.shape[-1])
    wrong[..., pair] = right[..., pair[::-1]]
    return wrong


def one_feature_negated(site: Site, right: np.ndarray) -> np.ndarray:
    wrong = right.copy()
    wrong[..., site.pick(right.shape[-1])] *= -1.0
    return wrong


def sentences_exchanged(site: Site, right: np.ndarray) -> np.ndarray:
    return np.roll(right, 1, axis=0)


_COPIES: tuple[Kind, ...] = ("same", "merge_heads")
_BY_SENTENCE: tuple[Kind, ...] = (
    "embedding",
    "projection",
    "context",
    "norm",
    "residual_norm",
    "residual",
    "feed_forward_hidden",
    "logits",
    *_COPIES,
)

OF_NUMBERS: tuple[Unknown, ...] = (
    unknown("it is rounded to 8 bits", ("projection", "context", "feed_forward_hidden", "residual"), rounded_to_int8),
    unknown("it is 1 % too large", ("token_embedding", "position_bias", "context", *_COPIES), a_hundredth_more),
    unknown("two features are exchanged", ("token_embedding", "embedding", *_COPIES), two_features_exchanged),
    unknown("one feature is negated", ("token_embedding", "residual", "head_transform", *_COPIES), one_feature_negated),
    unknown("every sentence has its neighbour's value", _BY_SENTENCE, sentences_exchanged),
)
