"""A small config to draw, and the parts of a figure by their titles."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jax_transformer.config.model import TransformerConfig

SIGNATURES = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF-", ".html": b"<!doctype html>"}
SMALL = TransformerConfig(
    source_vocab_size=7,
    target_vocab_size=7,
    d_model=16,
    num_heads=2,
    d_ff=8,
    num_encoder_layers=1,
    num_decoder_layers=1,
    max_length=24,
    decoder_max_length=20,
    position_offset=2,
)


def panel(figure: Figure, title: str) -> Axes:
    found = [axes for axes in figure.axes if axes.get_title().startswith(title)]
    assert len(found) == 1, [axes.get_title() for axes in figure.axes]
    return found[0]


def image(figure: Figure, title: str) -> np.ndarray:
    (only,) = panel(figure, title).images
    return np.asarray(only.get_array())
