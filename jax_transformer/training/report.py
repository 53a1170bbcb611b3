"""report.html: a run as one page that needs nothing else, no network, no server, no other file.

The page is assembled from the sources in report_template/, and can be made again from the run directory at any time.
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
"""In the order in which they run."""


def write_report(run: str | Path) -> Path:
    """Writes RUN/report.html from the other files of the run, and returns its path; a reader sees the old file or the
    new one, whole.

    Raises:
      RunError: it is no run directory.
    """
    run = Path(run)
    write_page(run / REPORT, render(read_run(run)))
    return run / REPORT


def render(data: dict[str, Any]) -> str:
    """The page that shows `data`, as `read_run` gives it."""
    title = f"{data['name']} · training report"
    return assemble(title, data, style=TEMPLATE / STYLE, scripts=[TEMPLATE / name for name in SCRIPTS])
