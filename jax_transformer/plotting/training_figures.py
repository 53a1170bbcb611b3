"""Pictures of a TrainConfig: learning rates and smoothed targets.

Every number drawn comes from the code that the model and its training run. Each function returns a matplotlib Figure
and doesn't touch pyplot; `style.figure_style` sets the look of the command's pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, StrMethodFormatter

from jax_transformer.config.run import TrainConfig
from jax_transformer.plotting.style import DASHES
from jax_transformer.training.losses import Criterion, Smoothing, cross_entropy
from jax_transformer.training.schedules import inverse_square_root, make_schedule

PAPER_CURVES = ((512, 4000), (512, 8000), (256, 4000))
"""d_model and warm-up of the curves in The Annotated Transformer (Rush 2018; Huang et al. 2022)."""
MOST_POINTS = 2000
MOST_STEPS = 10**9


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
    criterion = Criterion(EXAMPLE_PAD, label_smoothing, over)
    _draw_targets(targets, criterion)
    _draw_losses(losses, criterion, vocab_size)
    return figure


def _draw_targets(axes: Axes, criterion: Criterion) -> None:
    names = EXAMPLE_VOCABULARY
    table = smoothed_targets(EXAMPLE_LABELS, len(names), criterion)
    image = axes.imshow(table, interpolation="nearest", cmap="cividis", vmin=0.0, vmax=1.0, aspect="auto")
    for (row, column), value in np.ndenumerate(table):
        colour = "black" if value > 0.5 else "white"
        axes.text(column, row, f"{value:.3f}", ha="center", va="center", color=colour, fontsize=10)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    labels = [names[label] + ("\n(ignored)" if label == EXAMPLE_PAD else "") for label in EXAMPLE_LABELS]
    axes.set_yticks(range(len(table)), labels)
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
            note = f"minimum {curve[best]:.2f}"
            axes.annotate(note, at, xytext=(0, 10), textcoords="offset points", ha="right", path_effects=halo)
    is_divergence = criterion.smoothing == "others_but_pad"
    title = "Divergence of one token from its target" if is_divergence else "Cross-entropy of one token"
    axes.set(title=title, xlim=(0, 1), ylim=(0, None))
    axes.set(xlabel="probability of the label (the rest is spread evenly)", ylabel="loss (nats)")
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
        rest = jnp.log((1.0 - probability) / (vocab_size - 1))
        logits = jnp.where(jnp.arange(vocab_size) == label, jnp.log(probability), rest)
        return cross_entropy(logits[None, None], jnp.full((1, 1), label), criterion)[0]

    return np.asarray(jax.lax.map(loss, jnp.asarray(probabilities, jnp.float32)))
