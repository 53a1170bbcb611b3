"""A page on what a model attends to in one sentence pair: every head of every layer, and the word alignment."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.pages.page import assemble

TEMPLATE = Path(__file__).parent / "attention_template"
STYLE = "attention.css"
SCRIPTS = ("weights.js", "map.js", "overview.js", "page.js")
"""In the order in which they run."""
STEPS = 65535
"""Weights stand in the page as whole multiples of 1 / STEPS."""


class Maps(NamedTuple):
    """The heat maps of one kind of attention."""

    title: str
    weights: np.ndarray
    """[L, N, Q, K], from 0 to 1."""
    queries: Sequence[str]
    """Q texts: the tokens of the rows."""
    keys: Sequence[str]
    """K texts: the tokens of the columns."""
    query_title: str
    """What a row is."""
    key_title: str


class Sentence(NamedTuple):
    """One side of the pair."""

    text: str
    words: Sequence[str]


class Alignment(NamedTuple):
    """Which words belong together."""

    pairs: Sequence[tuple[int, int]]
    """Numbers of a source word and of a target word."""
    layer: int
    """The decoder layer that tells."""


def render(
    model: str, source: Sentence, target: Sentence, maps: dict[str, Maps], alignment: Alignment, shown: dict[str, Any]
) -> str:
    """The page as text.

    Args:
      model: its name.
      maps: by kind, in the order in which they are offered.
      shown: what is selected at first: a "kind", a "layer" from 0, and a "head" from 0, or None for the mean.
    """
    data = {
        "model": model,
        "source": source._asdict(),
        "target": target._asdict(),
        "kinds": [
            {"name": name, **of_kind._asdict(), "weights": packed(of_kind.weights), "shape": of_kind.weights.shape}
            for name, of_kind in maps.items()
        ],
        "alignment": alignment._asdict(),
        "shown": shown,
    }
    return assemble(
        f"Attention · {source.text}", data, style=TEMPLATE / STYLE, scripts=[TEMPLATE / name for name in SCRIPTS]
    )


def packed(weights: np.ndarray) -> str:
    """Weights from 0 to 1 as base64 of little-endian 16-bit integers, exact to 1 / 131070."""
    return base64.b64encode(np.round(weights * STEPS).astype("<u2").tobytes()).decode("ascii")
