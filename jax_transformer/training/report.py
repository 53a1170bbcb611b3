"""report.html: a run as one self-contained page that needs no network, no server and no other file.

The page is assembled from the sources in report_template/, and can be rebuilt from the run directory at any time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jax_transformer.pages.page import assemble, write_page
from jax_transformer.training.report_data import read_run
from jax_transformer.training.run_directory import REPORT

TEMPLATE = Path(__file__).parent / "report_template"
STYLE = "report.css"
SCRIPTS = ("format.js", "axes.js", "charts.js", "histograms.js", "samples.js", "tables.js", "page.js")
"""Scripts in the order in which they run."""


def write_report(run: str | Path) -> Path:
    """Writes RUN/report.html atomically from the other files of the run, and returns its path.

    Raises:
      RunError: `run` is no run directory.
    """
    run = Path(run)
    write_page(run / REPORT, render(read_run(run)))
    return run / REPORT


def render(data: dict[str, Any]) -> str:
    """Returns the page for `data`, the result of `read_run`."""
    title = f"{data['name']} · training report"
    return assemble(title, data, style=TEMPLATE / STYLE, scripts=[TEMPLATE / name for name in SCRIPTS])
