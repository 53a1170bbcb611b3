"""A page on a parity report: what diverged and why, the stages, error against depth, the modules, where in an
activation, every array."""

from __future__ import annotations

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
    "headline.js",
    "funnel.js",
    "axis.js",
    "depth.js",
    "tree.js",
    "heat.js",
    "table.js",
    "arrays.js",
    "faults.js",
    "environment.js",
    "page.js",
)
"""In the order in which they run."""


def render(report: Mapping[str, Any]) -> str:
    """The page as text.

    Args:
      report: what the JSON of a parity report holds: of schema 1.

    Raises:
      ValueError: another schema.
    """
    if report.get("schema") != 1:
        received = report.get("schema")
        raise ValueError(
            f"expected a parity report of schema 1; received schema {received!r}: write it anew with this version"
        )
    title = f"Parity · {report['candidate']} · {report['verdict']}"
    return assemble(title, dict(report), style=TEMPLATE / STYLE, scripts=[TEMPLATE / name for name in SCRIPTS])
