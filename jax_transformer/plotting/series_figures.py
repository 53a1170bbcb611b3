"""Pictures of forecasts: what was read of a series, the median of its futures, and bands between quantiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

MOST_SERIES = 20
WIDTH, HEIGHT = 12.0, 2.6
"""Inches of the figure, and of each series."""
CLOSE = 1e-9
"""Levels that differ by less are equal: 1 - 0.9 isn't 0.1."""


def forecasts(
    history: np.ndarray, quantiles: np.ndarray, levels: Sequence[float], names: Sequence[str], *, shown: int = 0
) -> Figure:
    """Draws a panel for each series: its last values, and its forecast after them.

    A pair of levels such as 0.1 and 0.9 bounds a band, 0.5 is a line, and a level without its partner is a dashed line.

    Args:
      history: the series [N, T]; NaN for missing values, which interrupt the line.
      quantiles: [N, prediction_length, levels].
      levels: from 0 to 1.
      names: of the series.
      shown: values of the history to draw; 0 for all.

    Returns:
      A matplotlib Figure.

    Raises:
      ValueError: no series, or more than MOST_SERIES.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.plotting import forecasts
      >>> quantiles = np.arange(6.0).reshape(1, 2, 3)
      >>> figure = forecasts(np.array([[1.0, 2.0, 3.0]]), quantiles, [0.1, 0.5, 0.9], ["sales"])
      >>> [axes.get_title() for axes in figure.axes]
      ['sales']
    """
    count, end = history.shape
    check_count(count)
    figure = Figure(figsize=(WIDTH, HEIGHT * count + 0.9), layout="constrained")
    panels = figure.subplots(count, 1, squeeze=False, sharex=True)[:, 0]
    first = 0 if not shown else max(end - shown, 0)
    for axes, values, found, name in zip(panels, history, quantiles, names, strict=True):
        axes.plot(
            np.arange(first, end) + 1, values[first:], color=rcParams["text.color"], linewidth=1.2, label="history"
        )
        _draw_future(axes, end + 1 + np.arange(len(found)), found, levels)
        axes.set_title(name, parse_math=False)
        axes.margins(x=0.01)
    panels[-1].set_xlabel("step")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels))
    return figure


def check_count(count: int) -> None:
    """Raises ValueError unless a picture has room for so many series."""
    if not 1 <= count <= MOST_SERIES:
        raise ValueError(f"expected from 1 to {MOST_SERIES} series in a picture; received {count}")


def _draw_future(axes: Axes, steps: np.ndarray, quantiles: np.ndarray, levels: Sequence[float]) -> None:
    """Draws quantiles [prediction_length, levels]: the widest band first."""
    colour = rcParams["axes.prop_cycle"].by_key()["color"][0]
    for number, (low, high) in enumerate(sorted(bands(levels), key=lambda pair: levels[pair[0]])):
        axes.fill_between(
            steps,
            quantiles[:, low],
            quantiles[:, high],
            color=colour,
            alpha=min(0.2 + 0.15 * number, 1.0),  # so that the legend tells a narrower band from a wider one
            linewidth=0,
            label=f"{levels[low]:g} to {levels[high]:g}",
        )
    paired = {number for pair in bands(levels) for number in pair}
    for number, level in enumerate(levels):
        if abs(level - 0.5) < CLOSE:
            axes.plot(steps, quantiles[:, number], color=colour, linewidth=2.0, label="median")
        elif number not in paired:
            axes.plot(steps, quantiles[:, number], "--", color=colour, linewidth=1.0, label=f"{level:g}")


def bands(levels: Sequence[float]) -> list[tuple[int, int]]:
    """Returns the pairs of places whose levels are as far from 0.5, the lower level first."""
    return [
        (low, high)
        for low, below in enumerate(levels)
        for high, above in enumerate(levels)
        if below < 0.5 - CLOSE and abs(below + above - 1) < CLOSE
    ]
