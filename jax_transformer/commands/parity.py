"""jax-transformer parity --diff CANDIDATE.npz REFERENCE.npz [options]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from jax_transformer.commands.parallel_text import check_writable, write_lines


@dataclass(frozen=True)
class ParityOptions:
    """Tell whether two sides compute the same, and where they part.

    Exit codes: 0 the same; 2 a mistake of the user's; 3 inconclusive; 4 diverged, for a reason that isn't known.
    """

    diff: Annotated[tuple[str, str], tyro.conf.arg(metavar="CANDIDATE REFERENCE")]
    """Two .npz of named arrays, in execution order: what either side computed."""
    truth: str | None = None
    """The reference's arrays in float64, computed of weights and inputs rounded to the precision of the two: what lower precision is judged
    by."""
    tolerance: float | None = None
    """The largest relative RMS of the difference that passes, in place of the gates: 1e-12 in float64."""
    json: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Where to write the report as JSON."""


def parity(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer parity ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: files that can't be read, or written; a tolerance below 0.
    """
    options = tyro.cli(ParityOptions, args=arguments, prog="jax-transformer parity")
    if options.tolerance is not None and not options.tolerance >= 0:
        raise ValueError(f"--tolerance must be at least 0; received {options.tolerance}")
    if options.json is not None:
        check_writable(options.json)
    from rich.console import Console

    from jax_transformer.data.text_files import hash_file
    from jax_transformer.parity.arrays import read_arrays
    from jax_transformer.parity.console import show
    from jax_transformer.parity.report import Report
    from jax_transformer.parity.stages import compare_stage

    candidate, reference = (read_arrays(path) for path in options.diff)
    truth = None if options.truth is None else read_arrays(options.truth).arrays
    stage = compare_stage(
        "arrays", candidate.arrays, reference.arrays, truth=truth, tolerance=options.tolerance, dtypes=reference.notes.get("widened")
    )
    notes = {f"{side}_{name}": value for side, kept in (("candidate", candidate), ("reference", reference))
             for name, value in kept.notes.items() if name != "widened"}  # fmt: skip
    report = Report(*options.diff, stages=(stage,), environment=notes, sha256={path: hash_file(path) for path in options.diff})
    show(report, Console(soft_wrap=True, highlight=False))
    if options.json is not None:
        write_lines(options.json, report.to_json().splitlines())
    return report.exit_code
