"""Configs: the parts of a model, and the options of data, training, decoding and devices. All are frozen, and validated
when they are created.

`TransformerConfig` puts a model's parts together. Most people name options by short names and need no part:
`TransformerConfig(num_heads=4)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.config.positions import Alibi, Learned, RelativeBias, RelativeVectors, Rotary, Sinusoidal
    from jax_transformer.config.series import SeriesTokens
    from jax_transformer.config.specs import (
        Attention,
        Compute,
        Dropout,
        FeedForward,
        Head,
        LayerNorm,
        Residual,
        RmsNorm,
        Stack,
        Stem,
        Tokens,
    )

_HOMES = {
    "jax_transformer.config.positions": (
        "Alibi",
        "Learned",
        "RelativeBias",
        "RelativeVectors",
        "Rotary",
        "Sinusoidal",
    ),
    "jax_transformer.config.series": ("SeriesTokens",),
    "jax_transformer.config.specs": (
        "Attention",
        "Compute",
        "Dropout",
        "FeedForward",
        "Head",
        "LayerNorm",
        "Residual",
        "RmsNorm",
        "Stack",
        "Stem",
        "Tokens",
    ),
}
__all__ = [
    "Alibi",
    "Attention",
    "Compute",
    "Dropout",
    "FeedForward",
    "Head",
    "LayerNorm",
    "Learned",
    "RelativeBias",
    "RelativeVectors",
    "Residual",
    "RmsNorm",
    "Rotary",
    "SeriesTokens",
    "Sinusoidal",
    "Stack",
    "Stem",
    "Tokens",
]
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
