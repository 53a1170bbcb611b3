"""The stages `forward float32` and `forward bfloat16`: check that the candidate is as near to the truth as the
reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

import ml_dtypes
import numpy as np

from jax_transformer.comparison.findings import SideName
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.gates.rounding import excuse_rounding
from jax_transformer.comparison.gates.stages import Stage, compare_stage
from jax_transformer.comparison.sides import Arrays, Dtype
from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.diagnosis.padding import where_not_padding
from jax_transformer.parity.problems import Problem, nudged_problem
from jax_transformer.parity.run_results import Pair, RunResults
from jax_transformer.parity.stages.forward import MASK, attended, both
from jax_transformer.runtime.trees import flatten, unflatten


def rounded(problem: Problem, dtype: Dtype) -> Problem:
    """Returns the problem with its parameters rounded to the dtype, stored in float32; constants are unchanged.

    Returns the same object for "float32" if all parameters already are float32.
    """
    if dtype == "float32" and all(np.asarray(leaf).dtype == np.float32 for leaf in flatten(problem.params).values()):
        return problem
    kept = np.dtype(np.float32) if dtype == "float32" else np.dtype(ml_dtypes.bfloat16)
    leaves = {
        path: leaf if path.startswith("constants/") else np.asarray(leaf).astype(kept).astype(np.float32)
        for path, leaf in flatten(problem.params).items()
    }
    return dataclasses.replace(problem, params=unflatten(leaves))


def compare_precision(
    config: TransformerConfig,
    dtype: Dtype,
    candidate: Arrays,
    reference: Arrays,
    truth: Arrays,
    counts: Mapping[str, np.ndarray] | None = None,
) -> Stage:
    """Compares both sides in the dtype with the truth: the reference in float64 with the same rounded parameters.

    Args:
      counts: for some arrays, masks of the values that count.
    """
    floating = [_floating(side) for side in (candidate, reference)]
    wide = {name: array.astype(np.float64) for name, array in truth.items() if not name.startswith(MASK)}
    stage = compare_stage(
        f"forward {dtype}",
        *floating,
        truth=wide,
        where=both(counts or {}, attended(config, candidate, reference)),
        dtypes=dict.fromkeys(floating[1], dtype),
    )
    return stage


def _floating(side: Arrays) -> dict[str, np.ndarray]:
    """Returns a side's arrays without its masks, in float32."""
    return {name: array.astype(np.float32) for name, array in side.items() if not name.startswith(MASK)}


def run_precision(pair: Pair, own: Problem, dtype: Dtype, results: RunResults) -> Stage:
    """Runs both sides in a dtype, and the reference in float64 as the truth."""
    problem = rounded(own, dtype)
    candidate, reference = (results.in_order(name, side.forward(problem, dtype)) for name, side in pair.sides.items())
    known = results.truth if problem is own else None
    truth = results.in_order("reference", pair.reference.forward(problem, "float64") if known is None else known)
    if dtype == "float32":
        results.low = {
            name: _errors(side, truth) for name, side in zip(pair.sides, (candidate, reference), strict=True)
        }
    counts = where_not_padding(pair.config, problem.ids, truth) if results.zeroes_padding else None
    shown = {name: pair.shown(side) for name, side in zip(pair.sides, (candidate, reference), strict=True)}
    stage = compare_precision(pair.config, dtype, shown["candidate"], shown["reference"], truth, counts)
    if results.faults:  # these explain the differences
        return stage

    def from_itself(name: SideName, draw: int) -> Stage:
        results.progress(f"{stage.name}: the {name} against itself")
        again = pair.sides[name].forward(nudged_problem(problem, dtype, draw), dtype)
        again = {key: array for key, array in results.in_order(name, again).items() if key in shown[name]}
        where = both(counts or {}, attended(pair.config, again, shown[name]))
        floating = (_floating(side) for side in (again, shown[name]))
        return compare_stage(stage.name, *floating, where=where, tolerance=tolerances.MOST_FOR_ROUNDING)

    return excuse_rounding(stage, dtype, {name: partial(from_itself, name) for name in pair.sides})


def _errors(side: Arrays, truth: Arrays) -> dict[str, float]:
    shared = [
        name for name in truth if name in side and truth[name].dtype != bool and truth[name].shape == side[name].shape
    ]
    return {
        name: relative_rms(side[name].astype(np.float64), truth[name], np.abs(truth[name]) < 1e30) for name in shared
    }
