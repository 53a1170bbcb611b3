"""Masks that are read off attention logits."""

from __future__ import annotations

import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.backends.masks import infer_masks

CONFIG = TransformerConfig(
    d_model=8,
    num_heads=2,
    d_ff=8,
    num_encoder_layers=1,
    num_decoder_layers=1,
    source_vocab_size=9,
    target_vocab_size=9,
    max_length=9,
)
LOGITS = {
    "mask.encoder_self": "encoder.layers.0.self_attention.logits",
    "mask.decoder_self": "decoder.layers.0.self_attention.logits",
    "mask.cross": "decoder.layers.0.cross_attention.logits",
}
KEYS = np.array([[True, True, False], [True, False, False]])[:, None, None, :]


def logits_of(mask: np.ndarray, fill: float = -1e9) -> np.ndarray:
    """Logits [2, 2, 3, 3], the largest of which no mask is taken for."""
    values = np.random.default_rng(0).uniform(-4000, 4000, (2, 2, 3, 3))
    return np.where(mask, values, fill)


@pytest.mark.parametrize("fill", [-1e4, -1e9, -np.inf, np.finfo(np.float64).min])
def test_masks_come_in_the_shape_that_the_config_has(fill: float) -> None:
    causal = np.tril(np.ones((3, 3), bool)) & KEYS
    named = {LOGITS["mask.encoder_self"]: logits_of(KEYS, fill), LOGITS["mask.decoder_self"]: logits_of(causal, fill)}
    masks = infer_masks(named, CONFIG)
    assert list(masks) == ["mask.encoder_self", "mask.decoder_self"], "of logits that are missing nothing follows"
    np.testing.assert_array_equal(masks["mask.encoder_self"], KEYS, strict=True)
    np.testing.assert_array_equal(masks["mask.decoder_self"], causal, strict=True)
    assert infer_masks(named | {"mask.decoder_self": causal}, CONFIG).keys() == {"mask.encoder_self"}


def test_a_mask_that_is_not_the_configs_is_shown_whole() -> None:
    """Masked queries where the config has keys masked; heads with masks of their own."""
    (queries,) = infer_masks({LOGITS["mask.cross"]: logits_of(KEYS.mT)}, CONFIG).values()
    np.testing.assert_array_equal(queries, np.broadcast_to(KEYS.mT, (2, 1, 3, 3)), strict=True)
    heads = np.array([True, False])[None, :, None, None] | KEYS
    (of_heads,) = infer_masks({LOGITS["mask.cross"]: logits_of(heads)}, CONFIG).values()
    np.testing.assert_array_equal(of_heads, np.broadcast_to(heads, (2, 2, 1, 3)), strict=True)


def test_logits_that_are_nan_are_not_masked() -> None:
    """Like the logits of queries that saw no key in the layer before; other logits keep the fill value."""
    logits = logits_of(KEYS, -np.inf)
    logits[1, :, 0] = np.where(KEYS[1, :, 0], np.nan, -np.inf)
    (mask,) = infer_masks({LOGITS["mask.encoder_self"]: logits}, CONFIG).values()
    np.testing.assert_array_equal(mask, KEYS, strict=True)
