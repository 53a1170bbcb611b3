"""jax-transformer report RUN… [--watch] [--output FILE]."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jax_transformer.commands.parsing import parsed

UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""Errors that another file to write mends."""


@dataclass(frozen=True)
class ReportOptions:
    """Rebuild RUN/report.html from the other files of the run. With several runs, write one page that compares them:
    curves, scores with confidence intervals, translations side by side, and the differences of their configs."""

    run: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN…")]
    """Run directory, or several; gs://, s3:// and hf:// too."""
    watch: tyro.conf.FlagCreatePairsOff[bool] = False
    """Rewrite the page whenever the run's files change, until the run is finished; the page reloads itself. Another
    process trains the run, on this machine or on another that shares the directory. Ctrl-C ends it."""
    attention: tyro.conf.FlagCreatePairsOff[bool] = False
    """Load the finished run's model, and also draw where it looks while it translates some sentences of its test."""
    output: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """File to write instead of RUN/report.html; for a run in a bucket instead of NAME.html, and for several runs of
    comparison.html, in the working directory."""


def report(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer report ARGUMENTS`; returns the exit code."""
    options = parsed(ReportOptions, arguments, "report")
    if not options.run:
        raise ValueError("report: expected one or more run directories; received none")
    for name in ("watch", "attention"):
        if getattr(options, name) and len(options.run) > 1:
            raise ValueError(f"--{name}: expected one run; received {len(options.run)}")
    if options.watch and options.attention:
        raise ValueError("--attention: expected a finished run, which nobody needs to watch; received --watch")
    from jax_transformer.training.report import COMPARISON, page_of, watch, write_comparison, write_report

    pages = {str(page_of(options.run[0])), str(Path(options.output or COMPARISON))}
    try:
        if options.watch:
            watch(options.run[0], options.output, say=lambda line: print(line, flush=True))
        elif len(options.run) > 1:
            print(write_comparison(options.run, options.output or COMPARISON))
        else:
            print(write_report(options.run[0], options.output, shows_attention=options.attention))
    except KeyboardInterrupt:
        if not options.watch:
            raise
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename not in pages:
            raise
        raise ValueError(
            f"{error.filename}: expected a file that can be written; received {error.strerror}; name another with "
            "--output FILE"
        ) from None
    return 0
