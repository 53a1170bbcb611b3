"""Compares named arrays with named arrays, without a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jax_transformer.comparison.checksums import hash_files
from jax_transformer.comparison.gates.arrays import ParityError, named_arrays
from jax_transformer.comparison.gates.stages import compare_stage
from jax_transformer.comparison.report.report import Report, depth_of
from jax_transformer.comparison.sides import Path

if TYPE_CHECKING:
    pass


def compare_arrays(
    candidate: Mapping[str, Any] | Path,
    reference: Mapping[str, Any] | Path | None,
    truth: Mapping[str, Any] | Path | None,
    tolerance: float | None,
    candidate_name: str | None,
    reference_name: str | None,
) -> Report:
    """Compares named arrays, or `.npz` files of them. Raises ParityError for a side of another kind."""
    if reference is None:
        raise ParityError("expected a reference: a mapping of arrays, or an .npz, to compare the candidate's with")
    for name, side in (("candidate", candidate), ("reference", reference)):
        if not isinstance(side, Mapping | str | os.PathLike):
            raise ParityError(f"{name}: arrays are compared with arrays; received {type(side).__name__}")
    ours, theirs = named_arrays(candidate, "candidate"), named_arrays(reference, "reference")
    stage = compare_stage(
        "arrays",
        ours.arrays,
        theirs.arrays,
        truth=None if truth is None else named_arrays(truth, "truth").arrays,
        tolerance=tolerance,
        dtypes=theirs.notes.get("widened"),
    )
    notes = {
        f"{side}_{name}": value
        for side, kept in (("candidate", ours), ("reference", theirs))
        for name, value in kept.notes.items()
        if name != "widened"
    }
    return Report(
        candidate_name or _path_or(candidate, "candidate"),
        reference_name or _path_or(reference, "reference"),
        stages=(stage,),
        environment=notes,
        sha256=hash_files(candidate, reference),
        depth=depth_of(stage),
    )


def _path_or(side: Any, name: str) -> str:
    return os.fspath(side) if isinstance(side, str | os.PathLike) else name
