"""Draws a training run: scores, curves, sample translations, data, parameters and config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jax_transformer.pages.page import assemble

TEMPLATE = Path(__file__).parent / "training_template"
STYLE = "training.css"
SCRIPTS = ("format.js", "axes.js", "charts.js", "histograms.js", "samples.js", "tables.js", "page.js")
"""Scripts, in the order in which they run."""


def render(data: dict[str, Any]) -> str:
    """Returns the page as HTML text for `data`, the result of `training.report_data.read_run`."""
    title = f"{data['name']} · training report"
    return assemble(title, data, style=TEMPLATE / STYLE, scripts=[TEMPLATE / name for name in SCRIPTS])
