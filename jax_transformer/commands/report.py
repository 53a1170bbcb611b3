"""jax-transformer report RUN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from jax_transformer.commands.parsing import parsed


@dataclass(frozen=True)
class ReportOptions:
    """Rebuild RUN/report.html from the other files of the run."""

    run: tyro.conf.Positional[str]
    """Run directory."""


def report(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer report ARGUMENTS`; returns the exit code."""
    options = parsed(ReportOptions, arguments, "report")
    from jax_transformer.training.report import write_report

    print(write_report(options.run))
    return 0
