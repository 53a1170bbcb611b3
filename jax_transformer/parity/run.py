"""The stages of a parity run over a pair of models, on every problem, in the order of execution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from jax_transformer.comparison import run as comparison
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.gates.stages import Stage
from jax_transformer.comparison.report.report import Report
from jax_transformer.comparison.run import INPUTS, Work
from jax_transformer.comparison.sides import DTYPES, CannotRun, Dtype
from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.backends.side import Plan
from jax_transformer.parity.oracle.graph import nodes
from jax_transformer.parity.problems import Problem, Problems, decoding_problem, training_problem, unseen_windows
from jax_transformer.parity.run_results import ORDER, STAGES, Pair, RunResults
from jax_transformer.parity.stages.ctranslate2 import compare_with_ctranslate2
from jax_transformer.parity.stages.decoding import compare_decoding, searches
from jax_transformer.parity.stages.forward import run_forward
from jax_transformer.parity.stages.precision import run_precision
from jax_transformer.parity.stages.proof import prove_pair, usual_stages
from jax_transformer.parity.stages.training import training_works
from jax_transformer.parity.stages.weights import compare_weights
from jax_transformer.runtime.trees import nearest


class _Selected(NamedTuple):
    """Selects what a run computes."""

    stages: Sequence[str]
    dtypes: Sequence[Dtype]
    seed: int


def run(
    pair: Pair,
    *,
    stages: Sequence[str] = STAGES,
    dtypes: Sequence[Dtype] = DTYPES,
    seed: int = 0,
    progress: Callable[[str], None] = lambda what: None,
    node: str | None = None,
) -> Report:
    """Runs all stages in order, whatever the first finds, and explains the divergence of the first that diverges.

    Args:
      stages: a selection of STAGES.
      dtypes: float64 decides; the others check whether the candidate is as precise as the reference.
      seed: seeds the inputs and the random weights.
      progress: called with the name of each piece of work before it begins.
      node: the only activation to look at; None: all.

    Raises:
      ParityError: `node` is no activation of this model; the user's program can't be run.
    """
    if node is not None:
        check_node(pair.config, node)
        stages, dtypes = ("masks", "forward"), ("float64",)
    results = RunResults(progress)
    problems = pair.problems(seed)
    own = problems.own()
    works = _works(pair, problems, own, _Selected(stages, dtypes, seed), results)
    names = pair.candidate.name, pair.reference.name
    return comparison.run(names, works, results, ORDER, stages, inputs=partial(_copies, own), node=node)


def check_node(config: TransformerConfig, node: str) -> None:
    """Raises ParityError if the name is no activation of this model."""
    known = [one.name for one in nodes(config)]
    if node not in known:
        raise ParityError(
            f"node: expected an activation of this model, such as {known[-1]}; received {node!r}{nearest(node, known)}"
        )


def _works(pair: Pair, problems: Problems, own: Problem, selected: _Selected, results: RunResults) -> Iterator[Work]:
    """Yields the work of all stages that are selected, and notes what makes the run inconclusive."""
    stages, dtypes, seed = selected
    trained = training_problem(pair.config, own, pair.rules.train.loss_counts_pads)
    decoded = decoding_problem(pair.config, own, None if pair.rules.decoding is None else seed + 1)
    _check_precision(pair, dtypes, results)
    if "weights" in stages:
        yield Work("weights", "weights", own.name, partial(compare_weights, pair, results))
    if "float64" in dtypes:
        for side in pair.sides.values():
            in_advance = decoded if "decode" in stages and not pair.is_large else None
            side.get_ready(Plan(stages, trained, in_advance, searches(pair)[0]))
    if {"masks", "forward"} & {*stages} and "float64" in dtypes:
        yield from _forward_works(pair, own, problems, results)
    else:
        results.remarks += unseen_windows(pair.config, own, own)
    for dtype in dtypes:
        if dtype != "float64" and "forward" in stages:
            rounded = partial(run_precision, pair, own, dtype, results)
            yield Work(f"forward in {dtype}", f"forward {dtype}", own.name, rounded)
    results.truth = None  # training needs the memory
    if "float64" in dtypes:
        yield from training_works(pair, trained, problems, stages, results)
    if "ctranslate2" in stages and {"float32", "float64"} <= {*dtypes}:
        scored = partial(compare_with_ctranslate2, pair, own, seed, results)
        yield Work("ctranslate2", "ctranslate2", own.name, scored)
    if "decode" in stages:
        yield Work("decode", "decode", own.name, partial(compare_decoding, pair, decoded, results))
    if "proof" in stages:
        inside = results.harmless(pair.config)
        results.proof = prove_pair(pair, stages=usual_stages(pair), seed=seed, progress=results.progress, inside=inside)
    _add_missing_stages(stages, dtypes, results, own.name)
    for name, case in results.not_finite.items():
        results.doubts[f"the reference isn't finite: {name} has NaN or infinity (first on {case})"] = None
    results.doubts |= {doubt: None for side in pair.sides.values() for doubt in side.doubts}


def _forward_works(pair: Pair, own: Problem, problems: Problems, results: RunResults) -> Iterator[Work]:
    """Yields the work of the forward pass on all problems, the model's own first; those with the same weights follow
    one another, since loading others takes time. Remarks which windows they don't show."""
    longest = own
    for problem in chain([own], problems.others()):
        longest = max(longest, problem, key=lambda one: one.source_ids.shape[1])
        forward = partial(run_forward, pair, problem, results, is_own=problem is own)
        yield Work(f"forward, {problem.name}", "forward", problem.name, forward)
    results.remarks += unseen_windows(pair.config, own, longest)


def _copies(problem: Problem) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in problem.batch.items()}


# --- conditions without which a run is inconclusive


def _add_missing_stages(stages: Sequence[str], dtypes: Sequence[Dtype], results: RunResults, problem: str) -> None:
    """Adds a stage that says why for each requested stage that wasn't compared, so that it doesn't pass."""
    for name in stages:
        if name in (INPUTS, "proof") or any(known.split()[0] == name for known in results.stages):
            continue
        if "float64" not in dtypes:
            results.add(
                Stage(name, not_run=f"compared in float64 alone, which isn't among {', '.join(dtypes)}"), problem
            )
        elif name == "ctranslate2":
            results.add(Stage(name, not_run=f"compared in float32, which isn't among {', '.join(dtypes)}"), problem)
        elif name == "masks" and "forward" not in stages:  # a forward pass without masks is fine
            results.add(Stage(name, not_run="no mask can be seen on both sides"), problem)
    if {*stages} == {INPUTS}:
        results.doubts[
            "nothing was computed: the stage inputs only checks that other stages leave the batch unchanged"
        ] = None


def _check_precision(pair: Pair, dtypes: Sequence[Dtype], results: RunResults) -> None:
    """Notes the settings in force on both sides, and doubts a side that computes in another precision than asked."""
    for name, side in pair.sides.items():
        for dtype in dtypes:
            try:
                force = side.in_force(dtype)
            except CannotRun as reason:
                results.doubts[str(reason)] = None
                continue
            results.facts |= {f"{name}'s {setting}": str(force[setting]) for setting in force if setting != "dtype"}
            if force.get("dtype", dtype) != dtype:
                results.doubts[f"the {name} computes in {force['dtype']} instead of {dtype}"] = None
            if force.get("TF32"):
                results.doubts[f"the {name} multiplies in TF32: matrix products are rounded to 10 bits"] = None
