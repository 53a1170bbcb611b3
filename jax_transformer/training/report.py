"""Writes report.html: a run as one page that needs no network, no server and no other file.

The page can be rebuilt from the run directory at any time.
"""

from __future__ import annotations

from pathlib import Path

from jax_transformer.pages.page import write_page
from jax_transformer.pages.training import render
from jax_transformer.training.report_data import read_run
from jax_transformer.training.run_directory import REPORT


def write_report(run: str | Path) -> Path:
    """Writes RUN/report.html atomically from the other files of the run, and returns its path.

    Raises:
      RunError: `run` is no run directory.
    """
    run = Path(run)
    write_page(run / REPORT, render(read_run(run)))
    return run / REPORT
