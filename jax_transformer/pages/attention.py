"""Draws a model's attention in one sentence pair: every head of every layer, and the word alignment."""

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
"""Scripts, in the order in which they run."""
STEPS = 65535
"""The page stores weights as integer multiples of 1 / STEPS."""


class Maps(NamedTuple):
    """Holds the heat maps of one kind of attention."""

    title: str
    weights: np.ndarray
    """[L, N, Q, K], from 0 to 1."""
    queries: Sequence[str]
    """Q texts: the tokens of the rows."""
    keys: Sequence[str]
    """K texts: the tokens of the columns."""
    query_title: str
    """Title of the rows' axis."""
    key_title: str
    """Title of the columns' axis."""


class Sentence(NamedTuple):
    """Holds one side of the pair."""

    text: str
    words: Sequence[str]


class Alignment(NamedTuple):
    """Holds the pairs of words that belong together."""

    pairs: Sequence[tuple[int, int]]
    """(source word, target word) as indices."""
    layer: int
    """The decoder layer whose attention gives the pairs."""


def render(
    model: str, source: Sentence, target: Sentence, maps: dict[str, Maps], alignment: Alignment, shown: dict[str, Any]
) -> str:
    """Returns the page as HTML text.

    Args:
      model: the model's name.
      maps: heat maps by kind of attention, in the order of the page's menu.
      shown: the initial selection: a "kind", a "layer" from 0, and a "head" from 0 or None for the mean over heads.
    """
    data = {
        "model": model,
        "source": source._asdict(),
        "target": target._asdict(),
        "kinds": [
            {
                "name": name,
                **kind_maps._asdict(),
                "weights": packed(kind_maps.weights),
                "shape": kind_maps.weights.shape,
            }
            for name, kind_maps in maps.items()
        ],
        "alignment": alignment._asdict(),
        "shown": shown,
    }
    return assemble(
        f"Attention · {source.text}", data, style=TEMPLATE / STYLE, scripts=[TEMPLATE / name for name in SCRIPTS]
    )


def packed(weights: np.ndarray) -> str:
    """Encodes weights from 0 to 1 as base64 of little-endian 16-bit integers, exact to 1 / 131070."""
    return base64.b64encode(np.round(weights * STEPS).astype("<u2").tobytes()).decode("ascii")
