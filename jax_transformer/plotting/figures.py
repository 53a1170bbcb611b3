"""Pictures of a config: position tables, masks, learning rates, smoothed targets.

Every number drawn comes from the code that the model and its training run. Each function returns a matplotlib Figure
and doesn't touch pyplot; `style.figure_style` sets the look of the command's pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.model.masks import Mask, causal_mask, decoder_padding_id, make_masks, padding_mask
from jax_transformer.model.positions import sinusoid_table
from jax_transformer.plotting.style import ink, is_dark
from jax_transformer.training.losses import Criterion, Smoothing, cross_entropy
from jax_transformer.training.schedules import inverse_square_root, make_schedule

PAPER_CURVES = ((512, 4000), (512, 8000), (256, 4000))
"""d_model and warm-up of the curves in The Annotated Transformer (Rush 2018; Huang et al. 2022)."""
DASHES = ("-", "--", "-.", ":")
MOST_CELLS_WITH_SYMBOLS = 20
MOST_POINTS = 2000
MOST_STEPS = 10**9


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
    whole = _position_table(config, params, stack)
    table = whole[:rows]
    eighth = config.d_model // 8
    columns = columns or sorted({eighth, min(eighth + 1, config.d_model - 1), 2 * eighth, 3 * eighth})
    wrong = [column for column in columns if not 0 <= column < config.d_model]
    if wrong:
        raise ValueError(
            f"expected columns from 0 to {config.d_model - 1} (d_model={config.d_model}); received {wrong[0]}"
        )
    indices = {
        "column": "position of the token",
        "batch_row": "row of the sentence in its batch",
        "non_pad_count": "real tokens so far",
    }
    numbered = indices[config.position_index] + (f", plus {config.position_offset}" if config.position_offset else "")

    figure = Figure(figsize=(12, 9.2), layout="constrained")
    grid = figure.subplot_mosaic(
        [["table", "table"], ["curves", "products"]], width_ratios=(1.35, 1), height_ratios=(1.1, 1)
    )
    what = (
        "learned"
        if config.position_kind == "learned"
        else f"sinusoids, {config.position_layout}, {config.position_frequency}"
    )
    figure.suptitle(f"What the {stack} adds to its tokens for their position ({what})")

    limit = float(np.abs(table).max()) or 1.0
    colours = "berlin" if is_dark() else "RdBu_r"
    image = grid["table"].imshow(table, aspect="auto", interpolation="nearest", cmap=colours, vmin=-limit, vmax=limit)
    grid["table"].set(title=f"The table: rows 0 to {len(table) - 1} of {len(whole)}")
    grid["table"].set(xlabel="column (dimension of the model)", ylabel=numbered)
    figure.colorbar(image, ax=grid["table"], label="value added", pad=0.01)

    for column, dash in zip(columns, cycle(DASHES), strict=False):
        grid["curves"].plot(np.arange(len(table)), table[:, column], dash, label=str(column))
    grid["curves"].set(
        title="Some of its columns", xlabel=numbered, ylabel="value added", xlim=(0, max(len(table) - 1, 1))
    )
    grid["curves"].legend(title="column", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4)

    image = grid["products"].imshow(table @ table.T, interpolation="nearest", cmap="cividis")
    grid["products"].set(title="How alike two rows are", xlabel=numbered, ylabel=numbered)
    figure.colorbar(image, ax=grid["products"], label="dot product")
    for axes in (grid["table"], grid["products"]):
        _integer_ticks(axes)
    return figure


def _position_table(
    config: TransformerConfig, params: Mapping[str, Any] | None, stack: Literal["encoder", "decoder"]
) -> np.ndarray:
    """Returns the table [rows, D] that the stack reads."""
    if config.position_kind not in ("sinusoidal", "learned"):
        raise ValueError(
            f"expected position_kind sinusoidal or learned; received {config.position_kind!r}, which has no table to "
            "draw"
        )
    if params is not None:
        learned = config.position_kind == "learned"
        leaf = params[stack]["positions"]["embedding"] if learned else params["constants"][f"{stack}_positions"]
        return np.asarray(leaf).astype(np.float64)
    if config.position_kind == "learned":
        raise ValueError(
            "learned positions are part of a model's weights: expected a model directory, or a run directory with one "
            "in it"
        )
    return sinusoid_table(config, getattr(config, stack))


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
    source = _Side.of("source", source_ids, source_tokens, config.source_pad_id)
    target = _Side.of("target", decoder_input_ids, target_tokens, config.target_pad_id)
    made = make_masks(config, source.ids, target.ids)
    is_real = target.ids != decoder_padding_id(config)
    covers = {
        "keys": "pads hidden as keys",
        "queries": "pads hidden as queries",
        "both": "pads hidden both ways",
        "none": "hides no pads",
    }
    causal = "hides what comes later" if config.decoder_causal else "not causal: hides nothing"
    panels = {
        "padding": (
            padding_mask(is_real, is_real, config.decoder_padding),
            target,
            target,
            covers[config.decoder_padding],
        ),
        "causal": (causal_mask(len(target.tokens)) if config.decoder_causal else None, target, target, causal),
        "decoder_self": (made.decoder_self, target, target, "hides what either hides"),
        "encoder_self": (made.encoder_self, source, source, covers[config.encoder_padding]),
        "cross": (made.cross, target, source, covers[config.cross_padding]),
    }
    titles = {
        "padding": "Target padding mask", "causal": "Causal mask", "decoder_self": "Decoder self-attention: both",
        "encoder_self": "Encoder self-attention", "cross": "Cross-attention",
    }  # fmt: skip
    figure = Figure(figsize=(12, 8.6), layout=ConstrainedLayoutEngine(hspace=0.06))
    grid = figure.subplot_mosaic([["padding", "causal", "decoder_self"], ["encoder_self", "cross", "legend"]])
    figure.suptitle("Who may attend to whom: one row for each token that attends, one column for each that it sees")
    for name, (mask, query, key, what) in panels.items():
        _draw_mask(grid[name], mask, query, key)
        grid[name].set(title=titles[name], xlabel=f"key ({what})", ylabel="query")
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
        "may attend to nothing, and so\nattends to every key alike": Patch(
            facecolor=uniform, edgecolor=ink(), hatch="////"
        ),
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


# --- learning rates


def schedule(
    config: TrainConfig, d_model: int, *, curves: Sequence[tuple[int, int]] = PAPER_CURVES, steps: int = 20_000
) -> Figure:
    """Draws the config's learning rate over its max_steps, and the paper's schedule for other sizes and warm-ups.

    Args:
      d_model: the model's width, which the paper's schedule depends on.
      curves: pairs of d_model and warm-up steps; the paper's schedule is drawn for each, with the factor 1.
      steps: the number of steps in the second panel.

    Returns:
      A matplotlib Figure.

    Raises:
      ValueError: a size or a warm-up below 1; `steps` outside 1 to 10⁹.

    Example:
      >>> from jax_transformer import TrainConfig
      >>> from jax_transformer.plotting import schedule
      >>> schedule(TrainConfig(), d_model=512, steps=100).get_suptitle()
      'Learning rate by optimizer step'
    """
    for size, warmup in curves:
        if size < 1 or warmup < 1:
            raise ValueError(f"expected a d_model and a warm-up of at least 1; received {size}:{warmup}")
    if not 1 <= steps <= MOST_STEPS:
        raise ValueError(f"expected from 1 to {MOST_STEPS:,} steps; received {steps}")
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    own, paper = figure.subplots(1, 2)
    figure.suptitle("Learning rate by optimizer step")

    shape = {
        "paper": "inverse square root of the step",
        "constant": "constant",
        "linear": "linear to 0",
        "cosine": "cosine to 0",
    }
    taken = _some_steps(min(config.max_steps, MOST_STEPS), config.warmup_steps)
    rates = np.broadcast_to(make_schedule(config, d_model)(jnp.asarray(taken - 1)), taken.shape)
    (line,) = own.plot(taken, rates, linewidth=2.0)
    top = int(np.argmax(rates))
    own.plot(taken[top], rates[top], "o", color=line.get_color(), clip_on=False)
    own.text(0.98, 0.98, f"peak {rates[top]:.3g} at step {taken[top]:,}", transform=own.transAxes, ha="right", va="top")
    own.set_ylim(0, 1.15 * rates[top])
    values = f"d_model {d_model}, warm-up {config.warmup_steps:,}, learning_rate {config.learning_rate:g}"
    own.set_title(f"This config: {shape[config.schedule]}\n{values}")

    for (size, warmup), dash in zip(curves, cycle(DASHES), strict=False):
        taken = _some_steps(steps, warmup)
        rates = np.asarray(inverse_square_root(1.0, size, warmup)(jnp.asarray(taken, float)))
        paper.plot(taken, rates, dash, linewidth=2.0, label=f"{size}:{warmup}")
    paper.set_title("The paper's, by size and warm-up:\nd_model$^{-0.5}$ · min(step$^{-0.5}$, step · warm-up$^{-1.5}$)")
    paper.set_ylim(0, None)
    if curves:
        paper.legend(title="d_model:warm-up")
    for axes in (own, paper):
        axes.set(xlabel="optimizer step (from 1)", ylabel="learning rate", xlim=(0, None))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.grid(alpha=0.25)
    return figure


def _some_steps(steps: int, warmup: int) -> np.ndarray:
    """Returns at most MOST_POINTS + 1 steps from 1 to `steps`, evenly spread, the end of the warm-up included."""
    spread = np.linspace(1, steps, min(steps, MOST_POINTS)).round()
    return np.unique([*spread, min(max(warmup, 1), steps)]).astype(np.int32)


# --- label smoothing

EXAMPLE_PAD = 0
EXAMPLE_VOCABULARY = ("<pad>", "<eos>", "Der", "Hund", "schläft", "Katze", ".")
EXAMPLE_LABELS = (2, 3, 4, 6, 1, EXAMPLE_PAD)


SPREAD = {
    "all": "1 − ε on the label plus ε / V on every entry",
    "others": "1 − ε on the label, ε / (V − 1) on every other entry",
    "others_but_pad": "1 − ε on the label, ε / (V − 2) on every other entry but <pad>",
}


def smoothing(label_smoothing: float = 0.1, *, over: Smoothing = "all", vocab_size: int = 0) -> Figure:
    """Draws the smoothed targets of a small example, and one token's loss against the probability of its label.

    Args:
      label_smoothing: ε, in [0, 1).
      over: the entries that share ε, as `TrainConfig.smoothing`.
      vocab_size: a second vocabulary size to draw the loss for. 0 draws it for the example's only.

    Returns:
      A matplotlib Figure.

    Raises:
      ValueError: a value out of range.

    Example:
      >>> from jax_transformer.plotting import smoothing
      >>> [axes.get_title() for axes in smoothing(0.1).axes[:2]]
      ['Target distributions, V = 7', 'Cross-entropy of one token']
    """
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing must be in [0, 1); received {label_smoothing}")
    if vocab_size < 0 or vocab_size in (1, 2):
        raise ValueError(f"vocab_size must be at least 3, or 0; received {vocab_size}")
    figure = Figure(figsize=(12, 6.2), layout="constrained")
    targets, losses = figure.subplots(1, 2)
    figure.suptitle(f"Label smoothing ε = {label_smoothing:g}: the target is {SPREAD[over]}")
    aim = Criterion(EXAMPLE_PAD, label_smoothing, over)
    _draw_targets(targets, aim)
    _draw_losses(losses, aim, vocab_size)
    return figure


def _draw_targets(axes: Axes, criterion: Criterion) -> None:
    names = EXAMPLE_VOCABULARY
    table = smoothed_targets(EXAMPLE_LABELS, len(names), criterion)
    image = axes.imshow(table, interpolation="nearest", cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto")
    for (row, column), value in np.ndenumerate(table):
        axes.text(
            column,
            row,
            f"{value:.3f}",
            ha="center",
            va="center",
            color="black" if value > 0.5 else "white",
            fontsize=10,
        )
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(
        range(len(table)), [names[label] + ("\n(left out)" if label == EXAMPLE_PAD else "") for label in EXAMPLE_LABELS]
    )
    axes.set(title=f"Target distributions, V = {len(names)}", xlabel="vocabulary", ylabel="label of the position")
    axes.figure.colorbar(image, ax=axes, label="target probability")


def _draw_losses(axes: Axes, criterion: Criterion, vocab_size: int) -> None:
    probabilities = np.linspace(0.002, 0.998, 499)
    small = len(EXAMPLE_VOCABULARY)
    cases = [(0.0, small)]
    if criterion.label_smoothing:
        cases += [(criterion.label_smoothing, size) for size in (small, vocab_size) if size]
    for (epsilon, size), dash in zip(cases, DASHES, strict=False):
        curve = loss_by_probability(probabilities, size, criterion._replace(label_smoothing=epsilon))
        (line,) = axes.plot(probabilities, curve, dash, linewidth=2.0, label=f"ε = {epsilon:g}, V = {size:,}")
        if epsilon:
            best = int(np.argmin(curve))
            at = (probabilities[best], curve[best])
            axes.plot(*at, "o", color=line.get_color())
            halo = [patheffects.withStroke(linewidth=3, foreground=matplotlib.rcParams["axes.facecolor"])]
            note = f"least: {curve[best]:.2f}"
            axes.annotate(note, at, xytext=(0, 10), textcoords="offset points", ha="right", path_effects=halo)
    what = (
        "Divergence of one token from its target"
        if criterion.smoothing == "others_but_pad"
        else "Cross-entropy of one token"
    )
    axes.set(title=what, xlim=(0, 1), ylim=(0, None))
    axes.set(xlabel="probability given to the label (the rest spread evenly)", ylabel="loss (nats)")
    axes.grid(alpha=0.25)
    axes.legend()


def smoothed_targets(labels: Sequence[int], vocab_size: int, criterion: Criterion) -> np.ndarray:
    """Returns the target distributions [T, V] of `cross_entropy`, zero at pads.

    They are recovered from its gradient, which is softmax(logits) - target.
    """
    ids = jnp.asarray(labels)[None]
    logits = jnp.zeros((1, len(labels), vocab_size))
    to_logits = jax.grad(lambda x: cross_entropy(x, ids, criterion)[0])(logits)
    targets = jnp.where((ids != criterion.pad_id)[..., None], jax.nn.softmax(logits) - to_logits, 0.0)
    return np.asarray(targets[0])


def loss_by_probability(probabilities: np.ndarray, vocab_size: int, criterion: Criterion) -> np.ndarray:
    """Returns one token's `cross_entropy`, in nats, for each probability of its label; other entries share the rest."""

    label = criterion.pad_id + 1

    def loss(probability: jax.Array) -> jax.Array:
        others = jnp.log((1.0 - probability) / (vocab_size - 1))
        logits = jnp.where(jnp.arange(vocab_size) == label, jnp.log(probability), others)
        return cross_entropy(logits[None, None], jnp.full((1, 1), label), criterion)[0]

    return np.asarray(jax.lax.map(loss, jnp.asarray(probabilities, jnp.float32)))


def _integer_ticks(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
