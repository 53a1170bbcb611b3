"""Masks of a reference that shows none: what its attention logits say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jax_transformer.config.model import PaddingCover, TransformerConfig
    from jax_transformer.parity.gates.arrays import Arrays

MASKED_BELOW = -5000.0
"""Every value that is known to stand for a masked logit is -1e4 or less, -inf included; computed ones are nowhere
near."""


def infer_masks(named: Arrays, config: TransformerConfig) -> dict[str, np.ndarray]:
    """Those masks that a model of this config has and `named` hasn't, from the logits of the first layer's attentions;
    True = may attend.

    In the shape that our trace has: [B, 1, Q, K], with 1 for an axis that the config's padding doesn't go by and that
    makes no difference; of heads that have masks of their own [B, N, Q, K].

    Args:
      named: activations by our names. Where logits are missing, so is their mask.
    """
    covers: dict[str, tuple[str, PaddingCover]] = {
        "encoder_self": ("encoder.layers.0.self_attention.logits", config.encoder_padding),
        "decoder_self": (
            "decoder.layers.0.self_attention.logits",
            "both" if config.decoder_causal else config.decoder_padding,
        ),
        "cross": ("decoder.layers.0.cross_attention.logits", config.cross_padding),
    }
    found = {
        f"mask.{kind}": _mask(named[logits], cover)
        for kind, (logits, cover) in covers.items()
        if cover != "none" and logits in named and f"mask.{kind}" not in named
    }
    if config.decoder_padding == "none" and "mask.decoder_self" in found:  # the future alone: one mask for all rows
        found["mask.decoder_self"] = _without(found["mask.decoder_self"], 0)
    return found


def _mask(logits: np.ndarray, cover: PaddingCover) -> np.ndarray:
    """logits [B, N, Q, K] → where they aren't masked, axes along which nothing changes taken as one."""
    mask = logits > MASKED_BELOW
    mask = _without(mask, 1)
    if cover == "keys":
        mask = _without(mask, 2)
    return _without(mask, 3) if cover == "queries" else mask


def _without(mask: np.ndarray, axis: int) -> np.ndarray:
    """The mask with this axis of length 1, if it makes no difference."""
    first = mask.take([0], axis)
    return first if (mask == first).all() else mask
