"""The stage `weights`: both sides' parameters must be equal, and known mistakes in porting explain a difference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import ml_dtypes
import numpy as np

from jax_transformer.parity.backends.side import Arrays
from jax_transformer.parity.diagnosis.findings import Fault, Finding, Match
from jax_transformer.parity.gates.stages import Stage, compare_stage
from jax_transformer.parity.run_results import Pair, RunResults


def compare_weights(pair: Pair, results: RunResults) -> Stage:
    """Compares the parameters and constants of both sides, bit for bit."""
    candidate, reference = (_InFloat64(side.weights()) for side in pair.sides.values())
    stage = compare_stage("weights", candidate, reference, tolerance=0.0)
    results.faults += _faults(stage, candidate, reference)
    return stage


class _InFloat64(Mapping[str, np.ndarray]):
    """Converts arrays to float64 one at a time, on access, and keeps none: float64 holds every dtype of weights."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name].astype(np.float64)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _faults(stage: Stage, candidate: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> list[Fault]:
    """Explains each parameter that differs from the reference's."""
    faults = []
    for row in stage.rows:
        if row.verdict == "diverged":
            received, error = candidate[row.name], row.error.relative_rms if row.error is not None else math.inf
            matches = tuple(
                Match(name, 0.0)
                for name, value in _known_weights(row.name, reference)
                if np.array_equal(received, value)
            )
            finding = Finding(row.name, "weights", error if matches else math.nan, matches, None)
            faults.append(Fault("candidate" if matches else "unknown", "weights", finding, error))
    return faults


def _known_weights(path: str, reference: Mapping[str, np.ndarray]) -> Iterable[tuple[str, np.ndarray]]:
    """Yields known mistakes in porting a parameter, by name."""
    own = reference[path]
    yield "rounded to float16", own.astype(np.float16).astype(np.float64)
    yield "rounded to bfloat16", own.astype(ml_dtypes.bfloat16).astype(np.float64)
    yield "rounded to float32", own.astype(np.float32).astype(np.float64)
    matrix = own.reshape(len(own), -1) if own.ndim > 1 else own
    if own.ndim > 1:
        yield "transposed", matrix.T.reshape(own.shape)
    for other, array in reference.items():
        if other != path and array.shape == own.shape and not np.array_equal(array, own):
            yield f"the values of {other}", array
