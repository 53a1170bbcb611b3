"""Infer the masks of a reference that shows none from its attention logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.comparison.gates import tolerances

if TYPE_CHECKING:
    from jax_transformer.comparison.gates.arrays import Arrays
    from jax_transformer.config.model import TransformerConfig
    from jax_transformer.config.specs import PaddingCover


def infer_masks(named: Arrays, config: TransformerConfig) -> dict[str, np.ndarray]:
    """Returns the masks that the config has and `named` lacks, read from the first layer's attention logits.

    Masks are boolean, True = may attend, and shaped as in our trace: [B, 1, Q, K], with 1 for an axis that the config's
    padding ignores and along which the mask is constant; [B, N, Q, K] if heads have different masks.

    Args:
      named: activations by our names. A mask whose logits are missing is left out.
    """
    of_encoder, of_decoder, of_cross = config.attentions
    covers: dict[str, tuple[str, PaddingCover]] = {
        "encoder_self": ("encoder.layers.0.self_attention.logits", of_encoder.padding),
        "decoder_self": (
            "decoder.layers.0.self_attention.logits",
            "both" if of_decoder.causal else of_decoder.padding,
        ),
        "cross": ("decoder.layers.0.cross_attention.logits", of_cross.padding),
    }
    found = {
        f"mask.{kind}": _mask(named[logits], cover)
        for kind, (logits, cover) in covers.items()
        if cover != "none" and logits in named and f"mask.{kind}" not in named
    }
    if of_decoder.padding == "none" and "mask.decoder_self" in found:  # causal alone: one mask for all rows
        found["mask.decoder_self"] = _without(found["mask.decoder_self"], 0)
    return found


def _mask(logits: np.ndarray, cover: PaddingCover) -> np.ndarray:
    """Returns the places of logits [B, N, Q, K] that aren't masked, with constant axes reduced to 1."""
    mask = ~(logits <= tolerances.MASKED_BELOW)  # NaN is what other numbers make of it, no fill value
    mask = _without(mask, 1)
    if cover == "keys":
        mask = _without(mask, 2)
    return _without(mask, 3) if cover == "queries" else mask


def _without(mask: np.ndarray, axis: int) -> np.ndarray:
    """Returns the mask with this axis reduced to 1 if the mask is constant along it."""
    first = mask.take([0], axis)
    return first if (mask == first).all() else mask
