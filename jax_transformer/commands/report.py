"""jax-transformer report RUN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tyro


@dataclass(frozen=True)
class ReportOptions:
    """Rebuild RUN/report.html from the other files of the run."""

    run: tyro.conf.Positional[str]
    """Run directory."""


def report(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer report ARGUMENTS`; returns the exit code."""
    options = tyro.cli(ReportOptions, args=arguments, prog="jax-transformer report")
    from jax_transformer.training.report import write_report

    print(write_report(options.run))
    return 0
