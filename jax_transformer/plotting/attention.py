"""Pictures of attention weights: a heat map for each layer and head, as matplotlib Figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import rcParams
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

from jax_transformer.pages.attention import Maps

WIDTH = 12.0
LONGEST_LABEL = 16
LEAST_POINTS, MOST_POINTS = 6.0, 11.0
"""Font sizes of labels."""
NO_GLYPH = "□"
NO_FONTS = ("Last Resort High-Efficiency",)
"""Fonts that show a box for every character; this one comes with matplotlib."""


def heat_maps(maps: Maps, *, layer: int | None = None, head: int | None = None) -> Figure:
    """Draws a grid of heat maps, one row per layer and one column per head.

    All maps share one colour scale, from 0 to the largest weight drawn. Long tokens are shortened, and crowded axes
    label only some of their tokens.

    Args:
      maps: weights [L, N, Q, K] with the tokens of both axes.
      layer: the only layer to draw, from 0; None draws all.
      head: the only head to draw, from 0; None draws all.

    Returns:
      A matplotlib Figure.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.pages.attention import Maps
      >>> from jax_transformer.plotting import heat_maps
      >>> weights = np.full((1, 2, 2, 3), 1 / 3)
      >>> maps = Maps("Cross-attention", weights, ["Der", "Hund"], ["The", "dog", "."], "target", "source")
      >>> [axes.get_title() for axes in heat_maps(maps).axes[:2]]
      ['layer 0, head 0', 'layer 0, head 1']
    """
    counts = maps.weights.shape[:2]
    layers, heads = (range(count) if one is None else [one] for one, count in zip((layer, head), counts, strict=True))
    side = (WIDTH - 1.6) / len(heads)  # of a map, in inches; labels and the scale take the rest
    high = min(max(side * len(maps.queries) / len(maps.keys), 0.7), 9.0)
    figure = Figure(figsize=(WIDTH, (high + 0.35) * len(layers) + 1.5), layout="constrained")
    figure.suptitle(maps.title)
    figure.supxlabel(maps.key_title, fontsize=rcParams["font.size"])
    figure.supylabel(maps.query_title, fontsize=rcParams["font.size"])
    panels = figure.subplots(len(layers), len(heads), squeeze=False, sharex=True, sharey=True)
    largest = float(maps.weights[np.ix_(layers, heads)].max())
    ground, ink = rcParams["axes.facecolor"], rcParams["axes.prop_cycle"].by_key()["color"][0]
    colours = LinearSegmentedColormap.from_list("weights", [ground, ink])
    for row, number in zip(panels, layers, strict=True):
        for axes, head in zip(row, heads, strict=True):
            image = axes.imshow(
                maps.weights[number, head],
                aspect="auto",
                interpolation="nearest",
                cmap=colours,
                vmin=0.0,
                vmax=largest,
            )
            axes.set_title(f"layer {number}, head {head}", fontsize=min(MOST_POINTS, 10 * side))
            axes.spines[:].set_visible(True)
            axes.tick_params(length=0)
    figure.colorbar(
        image, ax=panels, label="weight", pad=0.01, aspect=40, shrink=min(1.0, 4 / figure.get_figheight() + 0.3)
    )
    families, missing = _fonts([*maps.queries, *maps.keys])
    for axes in panels[-1]:
        _label(axes.xaxis, maps.keys, side, families, missing, rotation=90)
    for axes in panels[:, 0]:
        _label(axes.yaxis, maps.queries, high, families, missing)
    return figure


def _label(
    axis: Axis, tokens: Sequence[str], inches: float, families: list[str], missing: set[str], rotation: int = 0
) -> None:
    """Labels an axis of this length with tokens, as large as fits; a crowded axis gets every other one, or fewer."""
    room = 72 * inches / len(tokens) / 1.25  # for a label, in points
    size = min(max(room, LEAST_POINTS), MOST_POINTS)
    places = range(0, len(tokens), math.ceil(size / room))
    texts = [
        _short("".join(NO_GLYPH if character in missing else character for character in tokens[i])) for i in places
    ]
    axis.set_ticks(list(places), texts, rotation=rotation, fontsize=size, fontfamily=families, parse_math=False)


def _short(token: str) -> str:
    return token if len(token) <= LONGEST_LABEL else f"{token[: LONGEST_LABEL - 1]}…"


def _fonts(tokens: Sequence[str]) -> tuple[list[str], set[str]]:
    """Returns matplotlib's font plus the installed fonts that the tokens need, and the characters that no font has."""
    missing = set("".join(tokens)) - _characters(findfont(FontProperties()))
    families = list(rcParams["font.family"])
    for entry in fontManager.ttflist:
        found = missing and entry.name not in NO_FONTS and missing & _characters(entry.fname)
        if found:
            families.append(entry.name)
            missing -= found
    return families, missing


def _characters(file: str) -> set[str]:
    """Returns a font's characters; none for a bitmap font, which matplotlib can't draw."""
    font = get_font(file)
    return {chr(code) for code in font.get_charmap()} if font.scalable else set()
