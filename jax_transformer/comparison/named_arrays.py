"""Compares named arrays with named arrays, and a JAX function with any PyTorch module on inputs, without a model."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.checksums import hash_files
from jax_transformer.comparison.gates.arrays import ArrayFile, ParityError, read_arrays
from jax_transformer.comparison.gates.stages import compare_stage
from jax_transformer.comparison.report.report import Report, depth_of
from jax_transformer.comparison.sides import Path, selected

if TYPE_CHECKING:
    from jax_transformer.mapping.maps import NameMap


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
    ours, theirs = _read(candidate, "candidate"), _read(reference, "reference")
    stage = compare_stage(
        "arrays",
        ours.arrays,
        theirs.arrays,
        truth=None if truth is None else _read(truth, "truth").arrays,
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


def compare_on_inputs(
    function: Callable[..., Any],
    module: Any,
    inputs: Mapping[str, Any] | Path,
    names: NameMap | Path | None,
    stages: Sequence[str] | None,
    dtypes: Sequence[str] | None,
    candidate_name: str | None,
    reference_name: str | None,
) -> Report:
    """Compares a JAX function with a PyTorch module on the same inputs. Raises ParityError for unknown inputs, stages
    or dtypes."""
    from jax_transformer.comparison import any_two
    from jax_transformer.comparison.capture import check_module
    from jax_transformer.comparison.sides import DTYPES, name_of
    from jax_transformer.mapping.maps import NameMap

    pair = any_two.AnyPair(
        candidate_name or name_of(function),
        function,
        reference_name or name_of(module),
        module,
        read_inputs(inputs),
        NameMap.read(names) if isinstance(names, str | os.PathLike) else names or NameMap(),
    )
    check_module(module, pair.reference_name)
    report = any_two.run(
        pair, stages=selected(stages, any_two.STAGES, "stages"), dtypes=selected(dtypes, DTYPES, "dtypes")
    )
    return dataclasses.replace(report, sha256=hash_files(inputs))


def read_inputs(inputs: Mapping[str, Any] | Path) -> dict[str, np.ndarray]:
    """Reads inputs, or weights, by name as NumPy arrays. Raises ParityError for values that aren't arrays."""
    return dict(_read(inputs, "inputs").arrays)


def _read(side: Mapping[str, Any] | Path, what: str) -> ArrayFile:
    """Reads named arrays as NumPy arrays. Raises ParityError for values that aren't arrays of numbers."""
    if isinstance(side, str | os.PathLike):
        return read_arrays(side)
    arrays, widened = {}, {}
    for name, value in side.items():
        array, dtype = _as_numpy(value)
        if array.dtype.kind not in "biufc":
            raise ParityError(f"{what}: expected names with arrays; {name!r} is a {type(value).__name__}")
        arrays[name] = array
        if dtype != array.dtype.name:
            widened[name] = dtype
    return ArrayFile(arrays, {"widened": widened})


def _as_numpy(value: Any) -> tuple[np.ndarray, str]:
    """Converts an array of JAX or PyTorch to NumPy, bfloat16 to float32, and returns the name of its dtype too."""
    if hasattr(value, "detach"):
        value, dtype = value.detach().cpu(), str(value.dtype).removeprefix("torch.")
        return (value if hasattr(np, dtype) else value.float()).numpy(), dtype
    array = np.asarray(value)
    is_extended = array.dtype.kind == "V" and array.dtype.fields is None  # one of ml_dtypes
    return (array.astype(np.float32) if is_extended else array), array.dtype.name


def _path_or(side: Any, name: str) -> str:
    return os.fspath(side) if isinstance(side, str | os.PathLike) else name
