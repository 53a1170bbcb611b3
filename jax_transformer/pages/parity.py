"""Draws a parity report: the divergence and its causes, the stages, error against depth, the tree of modules, a heat
map, and a table of all arrays."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_transformer.pages.page import assemble

TEMPLATE = Path(__file__).parent / "parity_template"
STYLE = "parity.css"
SCRIPTS = (
    "numbers.js",
    "facts.js",
    "marks.js",
    "diagnosis.js",
    "architecture.js",
    "discovery.js",
    "headline.js",
    "funnel.js",
    "axis.js",
    "depth.js",
    "tree.js",
    "heat.js",
    "arrays.js",
    "faults.js",
    "proof.js",
    "environment.js",
    "page.js",
)
"""In the order in which they run."""
FRAME_HEIGHT = 720
"""Pixels of the frame in a notebook; the page scrolls inside it."""


def render(report: Mapping[str, Any], discovery: Mapping[str, Any] | None = None) -> str:
    """Returns the page as HTML.

    Args:
      report: the content of a report's JSON, schema 1.
      discovery: the facts of what was discovered (`jax_transformer.discover.writing.facts`); they become the first
        section.

    Raises:
      ValueError: the report has another schema.
    """
    if report.get("schema") != 1:
        received = report.get("schema")
        raise ValueError(
            f"expected a parity report of schema 1; received schema {received!r}: write it anew with this version"
        )
    title = f"Parity · {report['candidate']} · {report['verdict']}"
    data = dict(report) if discovery is None else {**report, "discovery": dict(discovery)}
    return assemble(title, data, style=TEMPLATE / STYLE, scripts=[TEMPLATE / name for name in SCRIPTS])


def framed(page: str) -> str:
    """Returns an `<iframe>` that holds the page: its scripts run, and see nothing of the document around them."""
    style = f"width: 100%; height: {FRAME_HEIGHT}px; border: 0"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page)}"></iframe>'
