"""Pictures of a TransformerConfig: position tables and attention masks.

Every number drawn comes from the code that the model and its training run. Each function returns a matplotlib Figure
and doesn't touch pyplot; `style.figure_style` sets the look of the command's pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Learned, Table
from jax_transformer.config.specs import Stack
from jax_transformer.model.masks import Mask, causal_mask, decoder_padding_id, make_masks, padding_mask
from jax_transformer.model.positions import sinusoid_table
from jax_transformer.plotting.style import DASHES, ink, is_dark

MOST_CELLS_WITH_SYMBOLS = 20


# --- positions


def positions(
    config: TransformerConfig,
    params: Mapping[str, Any] | None = None,
    *,
    stack: Literal["encoder", "decoder"] = "encoder",
    rows: int = 128,
    columns: Sequence[int] = (),
) -> Figure:
    """Draws a stack's position table: its first rows, some of its columns, and the dot products of its rows.

    Args:
      params: the model's parameters, which hold the table. None computes sinusoids.
      stack: "encoder" or "decoder".
      rows: the most rows to draw.
      columns: the columns to draw as curves; by default four from the first half, two of them neighbours.

    Returns:
      A matplotlib Figure.

    Raises:
      ValueError: the config has no position table; it has a learned one and `params` is None; the table has no such
        column.

    Example:
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.plotting import positions
      >>> figure = positions(TransformerConfig(d_model=8, num_heads=2), rows=4)
      >>> figure.axes[0].get_title()
      'The table: rows 0 to 3 of 512'
    """
    own = _table(config, stack)
    whole = _rows(config, params, stack, own)
    table = whole[:rows]
    width = whole.shape[1]
    eighth = width // 8
    columns = columns or sorted({eighth, min(eighth + 1, width - 1), 2 * eighth, 3 * eighth})
    wrong = [column for column in columns if not 0 <= column < width]
    if wrong:
        raise ValueError(f"expected columns from 0 to {width - 1} (d_model={width}); received {wrong[0]}")
    indices = {
        "column": "position of the token",
        "batch_row": "row of the sentence in its batch",
        "non_pad_count": "number of real tokens so far",
    }
    numbered = indices[own.index] + (f", plus {own.offset}" if own.offset else "")

    figure = Figure(figsize=(12, 9.2), layout="constrained")
    grid = figure.subplot_mosaic(
        [["table", "table"], ["curves", "products"]], width_ratios=(1.35, 1), height_ratios=(1.1, 1)
    )
    kind = "learned" if isinstance(own, Learned) else f"sinusoids, {own.layout}, {own.frequency}"
    figure.suptitle(f"Position table of the {stack} ({kind})")

    limit = float(np.abs(table).max()) or 1.0
    colours = "berlin" if is_dark() else "RdBu_r"
    image = grid["table"].imshow(table, aspect="auto", interpolation="nearest", cmap=colours, vmin=-limit, vmax=limit)
    grid["table"].set(title=f"The table: rows 0 to {len(table) - 1} of {len(whole)}")
    grid["table"].set(xlabel="column (dimension of the model)", ylabel=numbered)
    figure.colorbar(image, ax=grid["table"], label="value added", pad=0.01)

    for column, dash in zip(columns, cycle(DASHES), strict=False):
        grid["curves"].plot(np.arange(len(table)), table[:, column], dash, label=str(column))
    grid["curves"].set(title="Some columns", xlabel=numbered, ylabel="value added", xlim=(0, max(len(table) - 1, 1)))
    grid["curves"].legend(title="column", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4)

    image = grid["products"].imshow(table @ table.T, interpolation="nearest", cmap="cividis")
    grid["products"].set(title="Similarity of two rows", xlabel=numbered, ylabel=numbered)
    figure.colorbar(image, ax=grid["products"], label="dot product")
    for axes in (grid["table"], grid["products"]):
        _integer_ticks(axes)
    return figure


def _table(config: TransformerConfig, name: Literal["encoder", "decoder"]) -> Table:
    """Returns the positions of a stack. Raises ValueError if they aren't a table."""
    stack: Stack = getattr(config, name)
    if not isinstance(stack.positions, Table):
        raise ValueError(
            f"expected position_kind sinusoidal or learned; received {stack.position_kind!r}, which has no table to "
            "draw"
        )
    return stack.positions


def _rows(
    config: TransformerConfig, params: Mapping[str, Any] | None, name: Literal["encoder", "decoder"], positions: Table
) -> np.ndarray:
    """Returns the table [rows, D] that the stack reads."""
    is_learned = isinstance(positions, Learned)
    if params is not None:
        leaf = params[name]["positions"]["embedding"] if is_learned else params["constants"][f"{name}_positions"]
        return np.asarray(leaf).astype(np.float64)
    if is_learned:
        raise ValueError(
            "learned positions are part of a model's weights: expected a model directory, or a run directory with one "
            "in it"
        )
    stack: Stack = getattr(config, name)
    return sinusoid_table(stack)


def _integer_ticks(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


# --- masks


def masks(
    config: TransformerConfig,
    source_ids: Sequence[int] | np.ndarray,
    decoder_input_ids: Sequence[int] | np.ndarray,
    *,
    source_tokens: Sequence[str] = (),
    target_tokens: Sequence[str] = (),
) -> Figure:
    """Draws the attention masks of one sentence pair, and the two masks that the decoder's combines.

    Args:
      source_ids, decoder_input_ids: [S] and [T], pads included.
      source_tokens, target_tokens: S and T texts for the axes; positions by default.

    Returns:
      A matplotlib Figure.

    Raises:
      ValueError: an empty sentence; a different number of texts and ids.

    Example:
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.plotting import masks
      >>> figure = masks(TransformerConfig(), [5, 6, 0], [1, 7], source_tokens=["a", "dog", "<pad>"])
      >>> figure.axes[0].get_title()
      'Target padding mask'
    """
    source = _Side.of("source", source_ids, source_tokens, config.source.pad_id)
    target = _Side.of("target", decoder_input_ids, target_tokens, config.target.pad_id)
    made = make_masks(config, source.ids, target.ids)
    is_real = target.ids != decoder_padding_id(config)
    covers = {
        "keys": "pads hidden as keys",
        "queries": "pads hidden as queries",
        "both": "pads hidden both ways",
        "none": "hides no pads",
    }
    encoder, decoder, cross = config.attentions
    causal = "hides later positions" if decoder.causal else "not causal: hides nothing"
    panels = {
        "padding": (
            padding_mask(is_real, is_real, decoder.padding),
            target,
            target,
            covers[decoder.padding],
        ),
        "causal": (causal_mask(len(target.tokens)) if decoder.causal else None, target, target, causal),
        "decoder_self": (made.decoder_self, target, target, "hides what either mask hides"),
        "encoder_self": (made.encoder_self, source, source, covers[encoder.padding]),
        "cross": (made.cross, target, source, covers[cross.padding]),
    }
    titles = {
        "padding": "Target padding mask", "causal": "Causal mask", "decoder_self": "Decoder self-attention: both",
        "encoder_self": "Encoder self-attention", "cross": "Cross-attention",
    }  # fmt: skip
    figure = Figure(figsize=(12, 8.6), layout=ConstrainedLayoutEngine(hspace=0.06))
    grid = figure.subplot_mosaic([["padding", "causal", "decoder_self"], ["encoder_self", "cross", "legend"]])
    figure.suptitle("Attention masks: one row per query token, one column per key token")
    for name, (mask, query, key, rule) in panels.items():
        _draw_mask(grid[name], mask, query, key)
        grid[name].set(title=titles[name], xlabel=f"key ({rule})", ylabel="query")
    _explain_cells(grid["legend"])
    return figure


class _Side(NamedTuple):
    """Holds one sentence: ids [1, T], a text for each id, and whether each id is a pad."""

    ids: jax.Array
    tokens: Sequence[str]
    is_pad: np.ndarray

    @classmethod
    def of(cls, name: str, ids: Sequence[int] | np.ndarray, tokens: Sequence[str], pad_id: int) -> _Side:
        array = np.asarray(ids, np.int32)
        tokens = tokens or [str(i) for i in range(array.size)]
        if array.ndim != 1 or array.size < 1 or array.size != len(tokens):
            raise ValueError(
                f"{name}: expected the ids of one sentence and as many tokens; received {array.shape} and "
                f"{len(tokens)} tokens"
            )
        return cls(jnp.asarray(array)[None], tokens, array == pad_id)


def _explain_cells(axes: Axes) -> None:
    """Draws the legend of the three kinds of cells."""
    shown, hidden, uniform, disc = _mask_colours()
    dot = Line2D([], [], marker="o", markersize=4, color=disc, linestyle="")
    cells: dict[str, Any] = {
        "may attend": (Patch(facecolor=shown, edgecolor=ink()), dot),
        "may not attend": Patch(facecolor=hidden, edgecolor=ink()),
        "fully masked row: attends\nto every key equally": Patch(facecolor=uniform, edgecolor=ink(), hatch="////"),
    }
    axes.axis("off")
    axes.legend(list(cells.values()), list(cells), loc="center", handlelength=1.8, handleheight=1.8, labelspacing=1.2)


def _draw_mask(axes: Axes, mask: Mask, query: _Side, key: _Side) -> None:
    """Draws a grid of cells: a disc marks a key that the query may attend to, hatches a fully masked row."""
    shown, hidden, uniform, disc = _mask_colours()
    shape = (len(query.tokens), len(key.tokens))
    allowed = np.ones(shape, bool) if mask is None else np.asarray(jnp.broadcast_to(mask, (1, 1, *shape)))[0, 0]
    axes.imshow(allowed, interpolation="nearest", cmap=ListedColormap([hidden, shown]), vmin=0, vmax=1)
    for row in np.flatnonzero(~allowed.any(axis=1)):
        axes.axhspan(row - 0.5, row + 0.5, facecolor=uniform, edgecolor=ink(), hatch="////", linewidth=0)
    few = max(shape) <= MOST_CELLS_WITH_SYMBOLS
    if few:
        rows, columns = np.nonzero(allowed)
        axes.scatter(columns, rows, s=18, color=disc, zorder=3)
    axes.set_xticks(np.arange(shape[1]) - 0.5, minor=True)
    axes.set_yticks(np.arange(shape[0]) - 0.5, minor=True)
    axes.grid(which="minor", color=ink(), linewidth=0.4 if few else 0.1)
    axes.tick_params(which="minor", length=0)
    axes.set_xticks(range(shape[1]), key.tokens, rotation=90, parse_math=False)
    axes.set_yticks(range(shape[0]), query.tokens, parse_math=False)
    for label, is_pad in zip(
        [*axes.get_yticklabels(), *axes.get_xticklabels()], [*query.is_pad, *key.is_pad], strict=True
    ):
        if is_pad:
            label.set(alpha=0.5, fontstyle="italic")


def _mask_colours() -> tuple[str, str, str, str]:
    """Returns the colours of visible cells, hidden cells, fully masked rows, and discs."""
    return ("#56B4E9", "#2a2d33", "#5a4a1a", "black") if is_dark() else ("#0072B2", "#eeeeee", "#f6dfae", "white")
