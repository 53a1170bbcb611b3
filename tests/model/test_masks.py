"""Masks from ids: every cover of every padding mask, element by element."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.masks import Mask, both, causal_mask, make_masks, padding_mask

COVERS = ("keys", "queries", "both", "none")
MAY: dict[str, Callable[[bool, bool], bool]] = {
    "keys": lambda query_is_real, key_is_real: key_is_real,
    "queries": lambda query_is_real, key_is_real: query_is_real,
    "both": lambda query_is_real, key_is_real: query_is_real and key_is_real,
    "none": lambda query_is_real, key_is_real: True,
}


class Pairs(NamedTuple):
    source: np.ndarray
    target: np.ndarray


def expected_mask(cover: str, query_is_real: np.ndarray, key_is_real: np.ndarray, causal: bool = False) -> np.ndarray:
    """[B, 1, Q, K], one element after the other."""
    batch, queries, keys = len(query_is_real), query_is_real.shape[1], key_is_real.shape[1]
    mask = np.zeros((batch, 1, queries, keys), bool)
    for b, q, k in itertools.product(range(batch), range(queries), range(keys)):
        mask[b, 0, q, k] = MAY[cover](query_is_real[b, q], key_is_real[b, k]) and not (causal and k > q)
    return mask


def full(mask: Mask, shape: tuple[int, ...]) -> np.ndarray:
    """The mask as attention broadcasts it; None is everything."""
    assert mask is None or mask.dtype == bool
    return np.broadcast_to(True if mask is None else np.asarray(mask), shape)


def test_a_causal_mask_sees_itself_and_the_past() -> None:
    assert causal_mask(3).tolist() == [[[[True, False, False], [True, True, False], [True, True, True]]]]


@pytest.mark.parametrize("cover", COVERS)
def test_a_padding_mask_covers_the_axes_it_names(cover: str) -> None:
    rng = np.random.default_rng(0)
    query_is_real, key_is_real = rng.random((4, 5)) < 0.6, rng.random((4, 7)) < 0.6
    expected = expected_mask(cover, query_is_real, key_is_real)
    np.testing.assert_array_equal(full(padding_mask(query_is_real, key_is_real, cover), expected.shape), expected)


def test_both_allows_what_both_allow() -> None:
    first, second = np.array([True, True, False]), np.array([True, False, True])
    assert both(first, second).tolist() == [True, False, False]
    assert both(None, second) is second
    assert both(first, None) is first
    assert both(None, None) is None


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("cover", COVERS)
def test_the_masks_of_a_forward_pass(config: TransformerConfig, ids: Any, cover: str, causal: bool) -> None:
    """Each of the three takes its own cover, pad id and axes: here the covers are rotated, so that no two are the
    same."""
    turn = COVERS.index(cover)
    encoder, decoder, cross = (COVERS[(turn + shift) % 4] for shift in (1, 0, 2))
    config = dataclasses.replace(
        config, encoder_padding=encoder, decoder_padding=decoder, cross_padding=cross, decoder_causal=causal
    )
    masks = make_masks(config, ids.source, ids.target)
    source_is_real, target_is_real = ids.source != config.source_pad_id, ids.target != config.target_pad_id
    expected = (
        expected_mask(encoder, source_is_real, source_is_real),
        expected_mask(decoder, target_is_real, target_is_real, causal),
        expected_mask(cross, target_is_real, source_is_real),
    )
    for received, wanted in zip(masks[:3], expected, strict=True):
        np.testing.assert_array_equal(full(received, wanted.shape), wanted)
    assert (masks.decoder_self is None) == (cover == "none" and not causal)


def test_the_decoder_may_take_another_id_for_padding(config: TransformerConfig, ids: Any) -> None:
    """As where a program gives its decoder the source's pad id; cross-attention's queries still go by the target's."""
    config = dataclasses.replace(config, decoder_padding="both", cross_padding="both", decoder_padding_id=5)
    assert (ids.target == 5).any()
    masks = make_masks(config, ids.source, ids.target)
    expected = expected_mask("both", ids.target != 5, ids.target != 5, causal=True)
    np.testing.assert_array_equal(masks.decoder_self, expected)
    cross = expected_mask("both", ids.target != config.target_pad_id, ids.source != config.source_pad_id)
    np.testing.assert_array_equal(masks.cross, cross)
