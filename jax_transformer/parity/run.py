"""Run both sides of a pair through all stages, on every problem, and make the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.backends.side import Arrays, CannotRun, Dtype, Plan, Side
from jax_transformer.parity.diagnosis.findings import SideName
from jax_transformer.parity.gates import tolerances
from jax_transformer.parity.gates.arrays import ParityError
from jax_transformer.parity.gates.compare import relative_rms
from jax_transformer.parity.gates.rounding import allow_for_rounding
from jax_transformer.parity.gates.stages import Stage, compare_stage
from jax_transformer.parity.oracle.graph import nodes
from jax_transformer.parity.problems import Problem, long_problem, nudged_problem, other_weights, own_problem
from jax_transformer.parity.report.report import Report
from jax_transformer.parity.run_results import DTYPES, STAGES, Pair, RunResults
from jax_transformer.parity.stages import explanations
from jax_transformer.parity.stages import training as training_stages
from jax_transformer.parity.stages.decoding import compare_decoding, searches, with_sources
from jax_transformer.parity.stages.forward import compare_forward
from jax_transformer.parity.stages.precision import compare_precision, rounded
from jax_transformer.runtime.trees import nearest

T = TypeVar("T")


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
    results = RunResults(progress)
    if node is not None:
        check_node(pair.config, node)
        stages, dtypes = ("masks", "forward"), ("float64",)
    own = own_problem(pair.config, pair.params, seed)
    _check_precision(pair, dtypes, results)
    if "weights" in stages:
        progress("weights")
        results.add(_attempt("weights", lambda: _weights(pair, results)), own.name)
    decoded, trained = with_sources(pair, own, seed), _with_labels(pair, own)
    if "float64" in dtypes:
        for side in pair.sides.values():
            in_advance = decoded if "decode" in stages and not pair.is_large else None
            side.get_ready(Plan(stages, trained, in_advance, searches(pair)[0]))
    inputs_before = _copies(own)
    if {"masks", "forward"} & {*stages} and "float64" in dtypes:
        for problem in _problems(pair, own, seed):
            progress(f"forward, {problem.name}")
            _forward(pair, problem, results, is_own=problem is own)
    for dtype in dtypes:
        if dtype != "float64" and "forward" in stages:
            progress(f"forward in {dtype}")
            results.add(_attempt(f"forward {dtype}", partial(_low_precision, pair, own, dtype, results)), own.name)
    results.truth = None  # training needs the memory
    if "float64" in dtypes:
        _training(pair, trained, stages, seed, results)
    if "decode" in stages:
        progress("decode")
        results.add(_attempt("decode", lambda: compare_decoding(pair, decoded, results)), own.name)
    if "inputs" in stages:
        results.add(compare_stage("inputs", _copies(own), inputs_before), own.name)
    _add_missing_stages(stages, dtypes, results, own.name)
    return results.report(pair, stages, node)


def check_node(config: TransformerConfig, node: str) -> None:
    """Raises ParityError if the name is no activation of this model."""
    known = [one.name for one in nodes(config)]
    if node not in known:
        raise ParityError(
            f"node: expected an activation of this model, such as {known[-1]}; received {node!r}{nearest(node, known)}"
        )


def _problems(pair: Pair, own: Problem, seed: int) -> Iterator[Problem]:
    """Yields the problems of the forward pass, those with the same weights together: loading others takes time."""
    yield own
    longer = long_problem(pair.config, pair.params, seed)
    if longer is not None:
        yield longer
    yield from other_weights(pair.config, pair.params, seed)


def _copies(problem: Problem) -> dict[str, np.ndarray]:
    names = ("source_ids", "decoder_input_ids", "labels")
    return {name: getattr(problem, name).copy() for name in names}


def _attempt(name: str, compare: Callable[[], Stage]) -> Stage:
    """Returns the stage's result, or one that says why a side can't run it."""
    try:
        return compare()
    except CannotRun as reason:
        return Stage(name, not_run=str(reason))


# --- conditions without which a run is inconclusive


def _add_missing_stages(stages: Sequence[str], dtypes: Sequence[Dtype], results: RunResults, problem: str) -> None:
    """Adds a stage that says why for each requested stage that wasn't compared, so that it doesn't pass."""
    for name in stages:
        if any(known.split()[0] == name for known in results.stages):
            continue
        if "float64" not in dtypes:
            results.add(
                Stage(name, not_run=f"compared in float64 alone, which isn't among {', '.join(dtypes)}"), problem
            )
        elif name == "masks" and "forward" not in stages:  # a forward pass without masks is fine
            results.add(Stage(name, not_run="no mask can be seen on both sides"), problem)
    if {*stages} == {"inputs"}:
        results.doubts[
            "nothing was computed: the stage inputs only checks that other stages leave the batch unchanged"
        ] = None


def _check_precision(pair: Pair, dtypes: Sequence[Dtype], results: RunResults) -> None:
    for name, side in pair.sides.items():
        for dtype in dtypes:
            force = side.in_force(dtype)
            if force.get("dtype", dtype) != dtype:
                results.doubts[f"the {name} computes in {force['dtype']} instead of {dtype}"] = None
            if force.get("TF32"):
                results.doubts[f"the {name} multiplies in TF32: matrix products are rounded to 10 bits"] = None


def _repeats(name: SideName, side: Side, problem: Problem, trace: Arrays, results: RunResults) -> None:
    """Runs a side once more, and adds a doubt if it differs from itself."""
    for key, array in side.forward(problem, "float64").items():
        if key not in trace or not np.array_equal(array, trace[key], equal_nan=array.dtype != bool):
            results.doubts[
                f"the {name} differs from itself when it is run again, first at {key}: does it draw random numbers?"
            ] = None
            return


# --- stages


def _weights(pair: Pair, results: RunResults) -> Stage:
    candidate, reference = (_InFloat64(side.weights()) for side in pair.sides.values())
    stage = compare_stage("weights", candidate, reference, tolerance=0.0)
    results.faults += explanations.weight_faults(stage, candidate, reference)
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


def _forward(pair: Pair, problem: Problem, results: RunResults, *, is_own: bool) -> None:
    try:
        traces = {name: side.forward(problem, "float64") for name, side in pair.sides.items()}
    except CannotRun as reason:
        results.add(Stage("forward", not_run=str(reason)), problem.name)
        return
    if is_own:
        for name, side in pair.sides.items():
            _repeats(name, side, problem, traces[name], results)
        if not any("logits" in trace for trace in traces.values()):
            results.doubts["neither side shows its logits"] = None
    result = compare_forward(
        pair.config, problem, traces["candidate"], traces["reference"], look_at_reference=is_own, visible=pair.visible
    )
    for stage in (result.masks, result.forward, result.truth):
        if stage.name != "masks" or stage.rows or stage.reasons[1:]:  # some models have no masks
            results.add(stage, problem.name)
    results.faults += result.faults
    results.effects += [result.effect] if result.effect else []
    results.heat_maps += [result.heat_map] if result.heat_map else []
    if is_own:
        results.own, results.truth = result, traces["reference"]
        results.size_of_logits = (
            float(np.abs(traces["reference"]["logits"]).max(initial=0.0)) if "logits" in traces["reference"] else 0.0
        )


def _low_precision(pair: Pair, own: Problem, dtype: Dtype, results: RunResults) -> Stage:
    problem = rounded(own, dtype)
    candidate, reference = (side.forward(problem, dtype) for side in pair.sides.values())
    known = results.truth if problem is own else None
    truth = pair.reference.forward(problem, "float64") if known is None else known
    if dtype == "float32":
        results.low = {
            name: _errors(side, truth) for name, side in zip(pair.sides, (candidate, reference), strict=True)
        }
    return compare_precision(dtype, pair.shown(candidate), pair.shown(reference), truth)


def _errors(side: Arrays, truth: Arrays) -> dict[str, float]:
    shared = [
        name for name in truth if name in side and truth[name].dtype != bool and truth[name].shape == side[name].shape
    ]
    return {
        name: relative_rms(side[name].astype(np.float64), truth[name], np.abs(truth[name]) < 1e30) for name in shared
    }


def _with_labels(pair: Pair, problem: Problem) -> Problem:
    """Returns the problem to train on.

    Where pads count, it lacks the rows whose labels are all pads, which only fill up a batch, and targets that begin
    with a pad. The first pad's query sees no key, so its output and its gradient mean nothing: many programs give NaN.
    """
    if not pair.rules.train.loss_counts_pads:
        return problem
    pads = pair.config.source_pad_id, pair.config.target_pad_id
    counts = (problem.labels != pair.config.target_pad_id).any(axis=1) & ~np.isin(problem.decoder_input_ids[:, 0], pads)
    rows = {name: getattr(problem, name)[counts] for name in ("source_ids", "decoder_input_ids", "labels")}
    return replace(problem, **rows)


def _training(pair: Pair, own: Problem, stages: Sequence[str], seed: int, results: RunResults) -> None:
    if {"loss", "gradients"} & {*stages}:
        _gradients(pair, own, stages, results)
        _gradients(pair, _with_labels(pair, next(other_weights(pair.config, pair.params, seed))), stages, results)
    for name in ("step", "trajectory"):
        if name in stages:
            results.add(_attempt(name, partial(_steps, pair, own, name, results)), own.name)


def _in_turns(pair: Pair, results: RunResults, what: str, do: Callable[[Side], T]) -> dict[SideName, T]:
    """Runs work that needs several times a model's memory on one side after the other, while the other rests."""
    pair.reference.rest()
    done: dict[SideName, T] = {}
    for name, side in pair.sides.items():
        results.progress(f"{what}: the {name}")
        done[name] = do(side)
    return done


def _gradients(pair: Pair, problem: Problem, stages: Sequence[str], results: RunResults) -> None:
    try:
        done = _in_turns(pair, results, f"loss and gradients, {problem.name}", lambda side: side.gradients(problem))
        done = {name: one._replace(activations=pair.shown(one.activations)) for name, one in done.items()}
    except CannotRun as reason:
        for name in ("loss", "gradients"):
            results.add(Stage(name, not_run=str(reason)), problem.name)
        return
    losses, gradients = (compare_them(done["candidate"], done["reference"]) for compare_them in _COMPARED)

    def again(side: SideName, moved: Problem) -> Stage:
        gradients = pair.sides[side].gradients(moved)
        return training_stages.compare_gradients(
            gradients._replace(activations=pair.shown(gradients.activations)), done[side]
        )

    if losses.verdict == "passed" and not results.faults:
        gradients = _allow_for_rounding(pair, gradients, problem, again, results)
    results.add(losses, problem.name)
    results.add(gradients, problem.name)
    if results.faults and "loss" not in pair.rules.own:
        return  # earlier faults explain it
    if losses.verdict == "diverged":
        if pair.rules.knows_loss:
            results.faults += explanations.loss_faults(pair.config, pair.rules.train, problem, pair.sides, done)
    elif gradients.verdict == "diverged" and not results.faults:
        results.faults += explanations.gradient_faults(gradients, problem, done)


_COMPARED = (training_stages.compare_losses, training_stages.compare_gradients)


def _steps(pair: Pair, own: Problem, name: str, results: RunResults) -> Stage:
    steps, compare_them = {
        "step": (training_stages.STEPS, training_stages.compare_steps),
        "trajectory": (tolerances.TRAJECTORY_STEPS, training_stages.compare_trajectories),
    }[name]
    done = _in_turns(pair, results, name, lambda side: side.train(own, steps, keep_all=False))
    stage = compare_them(done["candidate"], done["reference"])
    if results.faults and "optimizer" not in pair.rules.own:
        return stage

    def again(side: SideName, moved: Problem) -> Stage:
        return compare_them(pair.sides[side].train(moved, steps, keep_all=False), done[side])

    stage = _allow_for_rounding(pair, stage, own, again, results)
    if stage.verdict == "diverged" and pair.rules.knows_update:
        results.faults += explanations.step_faults(pair.config, pair.rules.train, own, pair.sides)
    return stage


def _allow_for_rounding(
    pair: Pair, stage: Stage, problem: Problem, again: Callable[[SideName, Problem], Stage], results: RunResults
) -> Stage:
    """Returns the stage with diverged rows that amplify rounding judged by how much each side differs from itself.

    Args:
      again: compares a side's result on a problem with its earlier one.
    """
    sides: tuple[SideName, ...] = ("candidate", "reference")

    def from_itself(side: SideName) -> Stage:
        pair.reference.rest()
        results.progress(f"{stage.name}: the {side} against itself")
        return again(side, nudged_problem(problem))

    return allow_for_rounding(stage, [partial(from_itself, side) for side in sides])
