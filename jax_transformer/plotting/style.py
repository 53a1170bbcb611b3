"""Sets the look of pictures, and saves them. The colours stay distinct in print and for colour-blind readers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler

from jax_transformer.plotting.formats import check_path
from jax_transformer.runtime.files import atomic_write

# Okabe and Ito 2008; the lighter colours come first on a dark background
ON_WHITE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
ON_DARK = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#F0E442")
DASHES = ("-", "--", "-.", ":")


@contextlib.contextmanager
def figure_style(*, dark: bool = False) -> Iterator[None]:
    """Gives figures that are made and saved inside the context the look of `jax-transformer plot`.

    Args:
      dark: light on a dark background instead of dark on white.

    Example:
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.plotting import figure_style, positions
      >>> with figure_style(dark=True):
      ...     figure = positions(TransformerConfig(d_model=8, num_heads=2), rows=4)
      >>> figure.get_facecolor()[0] < 0.1
      True
    """
    text, ground = ("#e8e8e8", "#16181c") if dark else ("#1a1a1a", "white")
    options: dict[Any, Any] = {
        "axes.edgecolor": text,
        "axes.facecolor": ground,
        "axes.labelcolor": text,
        "axes.prop_cycle": cycler(color=ON_DARK if dark else ON_WHITE),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 12,
        "figure.constrained_layout.h_pad": 0.08,
        "figure.dpi": 100,
        "figure.edgecolor": ground,
        "figure.facecolor": ground,
        "figure.titlesize": 14,
        "font.size": 11,
        "legend.frameon": False,
        "savefig.facecolor": "auto",
        "svg.hashsalt": "jax-transformer",
        "text.color": text,
        "xtick.color": text,
        "ytick.color": text,
    }
    with matplotlib.rc_context(options):
        yield


def save(figure: Figure, path: str | os.PathLike[str], *, dpi: int = 100) -> None:
    """Writes a figure to a file whose suffix names the format; the same figure gives the same bytes.

    The file is written under a temporary name first, so a reader never sees half of it.

    Args:
      path: ends in .png, .svg or .pdf; a file of that name is replaced.
      dpi: dots per inch of a PNG, and of bitmaps inside the other formats.

    Raises:
      ValueError: a suffix outside `formats.FORMATS`; a directory that doesn't exist.

    Example:
      >>> import tempfile
      >>> from pathlib import Path
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.plotting import positions, save
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = Path(folder) / "positions.png"
      ...     save(positions(TransformerConfig(d_model=8, num_heads=2), rows=4), path)
      ...     path.is_file()
      True
    """
    path = Path(path)
    check_path(path)
    kind = path.suffix.lower().removeprefix(".")
    metadata = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format=kind, metadata=metadata, dpi=dpi)


def ink() -> str:
    """Returns the current colour of text and lines."""
    return str(matplotlib.rcParams["text.color"])


def is_dark() -> bool:
    """Returns whether figures are currently drawn on a dark background."""
    return sum(to_rgb(matplotlib.rcParams["axes.facecolor"])) < 1.5
