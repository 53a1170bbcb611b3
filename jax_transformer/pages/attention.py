"""Draws a model's attention in sentence pairs: every head of every layer, and the word alignment."""

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


class Example(NamedTuple):
    """Holds a sentence pair with its attention."""

    source: Sentence
    target: Sentence
    maps: dict[str, Maps]
    """By kind of attention, in the order of the page's menu. All examples have the same kinds, layers and heads."""
    alignment: Alignment


def render(model: str, examples: Sequence[Example], shown: dict[str, Any]) -> str:
    """Returns the page as HTML text.

    Args:
      model: the model's name.
      examples: what the reader can choose from. The page shows the first one first.
      shown: the initial selection: a "kind", a "layer" from 0, and a "head" from 0 or None for the mean over heads;
        and, if the layer was chosen as the sharpest, the "entropies" of all layers.
    """
    data = {"model": model, "examples": [_facts(example) for example in examples], "shown": shown}
    return assemble(
        examples[0].source.text, data, style=TEMPLATE / STYLE, scripts=[TEMPLATE / name for name in SCRIPTS]
    )


def _facts(example: Example) -> dict[str, Any]:
    return {
        "source": example.source._asdict(),
        "target": example.target._asdict(),
        "kinds": [
            {"name": name, **maps._asdict(), "weights": packed(maps.weights), "shape": maps.weights.shape}
            for name, maps in example.maps.items()
        ],
        "alignment": example.alignment._asdict(),
    }


def packed(weights: np.ndarray) -> str:
    """Encodes weights from 0 to 1 as base64 of little-endian 16-bit integers, exact to 1 / 131070."""
    return base64.b64encode(np.round(weights * STEPS).astype("<u2").tobytes()).decode("ascii")
