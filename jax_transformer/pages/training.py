"""Draws a training run: scores, curves, sample translations, data, parameters and config; or several to compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax_transformer.pages.page import assemble

TEMPLATE = Path(__file__).parent / "training_template"
STYLE = "training.css"
MAPS = [Path(__file__).parent / "attention_template" / name for name in ("weights.js", "map.js")]
"""Scripts that draw attention weights, of the page of attention."""
DRAWING = ("format.js", "axes.js", "charts.js", "samples.js")
"""Scripts of both pages."""
SCRIPTS = (*DRAWING, "histograms.js", "tables.js", "analysis.js", "live.js", "page.js")
"""Scripts of a run's page, in the order in which they run."""
COMPARING = (*DRAWING, "comparison.js")
"""Scripts of a comparison's page, in the order in which they run."""


def render(data: dict[str, Any]) -> str:
    """Returns the page as HTML text for `data`, the result of `training.report_data.read_run`, with "live": the
    seconds after which the page reloads itself, or None; and "attention": weights, or None."""
    return _page(f"{data['name']} · training report", data, [*MAPS, *(TEMPLATE / name for name in SCRIPTS)])


def render_comparison(data: dict[str, Any]) -> str:
    """Returns the page as HTML text for `data`, the result of `training.run_comparison.read_runs`."""
    names = ", ".join(run["name"] for run in data["runs"])
    return _page(f"{names} · comparison", data, [TEMPLATE / name for name in COMPARING])


def _page(title: str, data: dict[str, Any], scripts: Sequence[Path]) -> str:
    return assemble(title, data, style=TEMPLATE / STYLE, scripts=scripts)
