"""A parity run: both sides through the stages, on every problem, to a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.backends.side import Arrays, CannotRun, Dtype, Plan, Side
from jax_transformer.parity.diagnosis.findings import Fault, SideName
from jax_transformer.parity.gates import tolerances
from jax_transformer.parity.gates.arrays import ParityError
from jax_transformer.parity.gates.compare import relative_rms
from jax_transformer.parity.gates.rounding import allow_for_rounding
from jax_transformer.parity.gates.stages import Row, Stage, compare_stage
from jax_transformer.parity.oracle.graph import nodes
from jax_transformer.parity.problems import Problem, long_problem, nudged_problem, other_weights, own_problem
from jax_transformer.parity.report.report import Report
from jax_transformer.parity.report.results import make_report
from jax_transformer.parity.run_results import DTYPES, STAGES, Found, Pair
from jax_transformer.parity.stages import explanations
from jax_transformer.parity.stages import training as training_stages
from jax_transformer.parity.stages.forward import compare_forward
from jax_transformer.parity.stages.precision import compare_precision, rounded
from jax_transformer.runtime.trees import nearest

T = TypeVar("T")
BEAMS = 4
NEW_TOKENS = 12


def run(
    pair: Pair,
    *,
    stages: Sequence[str] = STAGES,
    dtypes: Sequence[Dtype] = DTYPES,
    seed: int = 0,
    progress: Callable[[str], None] = lambda what: None,
    node: str | None = None,
    command: str = "",
    environment: Mapping[str, Any] | None = None,
    sha256: Mapping[str, str] | None = None,
) -> Report:
    """Runs the stages in their order, all of them whatever the first finds; explains what the first that diverges
    finds.

    Args:
      stages: which of STAGES.
      dtypes: float64 decides; the others ask whether the candidate's precision is as good as the reference's.
      progress: told what is done next.
      node: an activation; nothing but it is looked at.
      command: what made this run, to which `--node NAME` is added to replay one.
    """
    found = Found(progress)
    if node is not None:
        check_node(pair.config, node)
        stages, dtypes = ("masks", "forward"), ("float64",)
    own = own_problem(pair.config, pair.params, seed)
    _check_precision(pair, dtypes, found)
    if "weights" in stages:
        progress("weights")
        found.add(_attempt("weights", lambda: _weights(pair, found)), own.name)
    decoded, most = _with_sources(pair, own), min(NEW_TOKENS, pair.config.decoder.max_length)
    if "float64" in dtypes:
        for side in pair.sides.values():
            side.get_ready(Plan(stages, own, decoded if "decode" in stages and not pair.is_large else None, most))
    given = _copies(own)
    if {"masks", "forward"} & {*stages} and "float64" in dtypes:
        for problem in _problems(pair, own, seed):
            progress(f"forward, {problem.name}")
            _forward(pair, problem, found, is_own=problem is own)
    for dtype in dtypes:
        if dtype != "float64" and "forward" in stages:
            progress(f"forward in {dtype}")
            found.add(_attempt(f"forward {dtype}", partial(_low_precision, pair, own, dtype, found)), own.name)
    found.truth = None  # training needs the memory
    if "float64" in dtypes:
        _training(pair, own, stages, seed, found)
    if "decode" in stages:
        progress("decode")
        found.add(_attempt("decode", lambda: _decoding(pair, decoded, most, found)), own.name)
    if "inputs" in stages:
        found.add(compare_stage("inputs", _copies(own), given), own.name)
    _add_left_out(stages, dtypes, found, own.name)
    return make_report(pair, found, stages, node, command, environment or {}, sha256 or {})


def check_node(config: TransformerConfig, node: str) -> None:
    """Raises ParityError for what is no activation of this model."""
    known = [one.name for one in nodes(config)]
    if node not in known:
        raise ParityError(
            f"--node: expected an activation of this model, such as {known[-1]}; received "
            f"{node!r}{nearest(node, known)}"
        )


def _problems(pair: Pair, own: Problem, seed: int) -> Iterator[Problem]:
    """Those of the same weights one after the other: to load others takes time."""
    yield own
    longer = long_problem(pair.config, pair.params, seed)
    if longer is not None:
        yield longer
    yield from other_weights(pair.config, pair.params, seed)


def _copies(problem: Problem) -> dict[str, np.ndarray]:
    names = ("source_ids", "decoder_input_ids", "labels")
    return {name: getattr(problem, name).copy() for name in names}


def _attempt(name: str, compare: Callable[[], Stage]) -> Stage:
    """The stage, or why a side can't run it."""
    try:
        return compare()
    except CannotRun as reason:
        return Stage(name, not_run=str(reason))


# --- what must hold for anything to follow


def _add_left_out(stages: Sequence[str], dtypes: Sequence[Dtype], found: Found, problem: str) -> None:
    """What was asked for and not compared is no pass: a stage that says why."""
    for name in stages:
        if any(known.split()[0] == name for known in found.stages):
            continue
        if "float64" not in dtypes:
            found.add(
                Stage(name, not_run=f"it is compared in float64 alone, which isn't among {', '.join(dtypes)}"), problem
            )
        elif name == "masks" and "forward" not in stages:  # beside a forward pass, a model without masks is no question
            found.add(Stage(name, not_run="no mask can be seen on both sides"), problem)
    if {*stages} == {"inputs"}:
        found.doubts["nothing was computed: the stage inputs tells whether other stages leave the batch as it was"] = (
            None
        )


def _check_precision(pair: Pair, dtypes: Sequence[Dtype], found: Found) -> None:
    for name, side in pair.sides.items():
        for dtype in dtypes:
            force = side.in_force(dtype)
            if force.get("dtype", dtype) != dtype:
                found.doubts[f"{dtype} was asked of the {name}, which computes in {force['dtype']}"] = None
            if force.get("TF32"):
                found.doubts[f"the {name} multiplies in TF32: matrix products are rounded to 10 bits"] = None


def _repeats(name: SideName, side: Side, problem: Problem, trace: Arrays, found: Found) -> None:
    """Whether a side, run once more, gives the same."""
    for key, array in side.forward(problem, "float64").items():
        if key not in trace or not np.array_equal(array, trace[key], equal_nan=array.dtype != bool):
            found.doubts[
                f"the {name} differs from itself when it is run again, first at {key}: does it draw random numbers?"
            ] = None
            return


# --- stages


def _weights(pair: Pair, found: Found) -> Stage:
    candidate, reference = (_InFloat64(side.weights()) for side in pair.sides.values())
    stage = compare_stage("weights", candidate, reference, tolerance=0.0)
    found.faults += explanations.weight_faults(stage, candidate, reference)
    return stage


class _InFloat64(Mapping[str, np.ndarray]):
    """Arrays in float64, which holds the numbers of every dtype that weights come in; each is made when it is asked
    for, and not kept."""

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


def _forward(pair: Pair, problem: Problem, found: Found, *, is_own: bool) -> None:
    try:
        traces = {name: side.forward(problem, "float64") for name, side in pair.sides.items()}
    except CannotRun as reason:
        found.add(Stage("forward", not_run=str(reason)), problem.name)
        return
    if is_own:
        for name, side in pair.sides.items():
            _repeats(name, side, problem, traces[name], found)
        if not any("logits" in trace for trace in traces.values()):
            found.doubts["neither side shows its logits, which all else is for"] = None
    result = compare_forward(
        pair.config, problem, traces["candidate"], traces["reference"], look_at_reference=is_own, visible=pair.visible
    )
    for stage in (result.masks, result.forward, result.truth):
        if stage.name != "masks" or stage.rows or stage.reasons[1:]:  # some models have no masks
            found.add(stage, problem.name)
    found.faults += result.faults
    found.effects += [result.effect] if result.effect else []
    found.heat_maps += [result.heat_map] if result.heat_map else []
    if is_own:
        found.own, found.truth = result, traces["reference"]
        found.size_of_logits = (
            float(np.abs(traces["reference"]["logits"]).max(initial=0.0)) if "logits" in traces["reference"] else 0.0
        )


def _low_precision(pair: Pair, own: Problem, dtype: Dtype, found: Found) -> Stage:
    problem = rounded(own, dtype)
    candidate, reference = (side.forward(problem, dtype) for side in pair.sides.values())
    known = found.truth if problem is own else None
    truth = pair.reference.forward(problem, "float64") if known is None else known
    if dtype == "float32":
        found.low = {name: _errors(side, truth) for name, side in zip(pair.sides, (candidate, reference), strict=True)}
    return compare_precision(dtype, pair.shown(candidate), pair.shown(reference), truth)


def _errors(side: Arrays, truth: Arrays) -> dict[str, float]:
    shared = [
        name for name in truth if name in side and truth[name].dtype != bool and truth[name].shape == side[name].shape
    ]
    return {
        name: relative_rms(side[name].astype(np.float64), truth[name], np.abs(truth[name]) < 1e30) for name in shared
    }


def _training(pair: Pair, own: Problem, stages: Sequence[str], seed: int, found: Found) -> None:
    if {"loss", "gradients"} & {*stages}:
        _gradients(pair, own, stages, found)
        _gradients(pair, next(other_weights(pair.config, pair.params, seed)), stages, found)
    for name in ("step", "trajectory"):
        if name in stages:
            found.add(_attempt(name, partial(_steps, pair, own, name, found)), own.name)


def _in_turns(pair: Pair, found: Found, what: str, do: Callable[[Side], T]) -> dict[SideName, T]:
    """What takes as much memory as a model several times over: one side after the other, while the other rests."""
    pair.reference.rest()
    done: dict[SideName, T] = {}
    for name, side in pair.sides.items():
        found.progress(f"{what}: the {name}")
        done[name] = do(side)
    return done


def _gradients(pair: Pair, problem: Problem, stages: Sequence[str], found: Found) -> None:
    try:
        done = _in_turns(pair, found, f"loss and gradients, {problem.name}", lambda side: side.gradients(problem))
        done = {name: one._replace(activations=pair.shown(one.activations)) for name, one in done.items()}
    except CannotRun as reason:
        for name in ("loss", "gradients"):
            found.add(Stage(name, not_run=str(reason)), problem.name)
        return
    losses, gradients = (compare_them(done["candidate"], done["reference"]) for compare_them in _COMPARED)

    def again(side: SideName, moved: Problem) -> Stage:
        gradients = pair.sides[side].gradients(moved)
        return training_stages.compare_gradients(
            gradients._replace(activations=pair.shown(gradients.activations)), done[side]
        )

    if losses.verdict == "passed" and not found.faults:
        gradients = _allow_for_rounding(pair, gradients, problem, again, found)
    found.add(losses, problem.name)
    found.add(gradients, problem.name)
    if found.faults:
        return  # what comes before explains it
    if losses.verdict == "diverged":
        found.faults += explanations.loss_faults(pair.config, problem, pair.sides, done)
    elif gradients.verdict == "diverged":
        found.faults += explanations.gradient_faults(gradients, problem, done)


_COMPARED = (training_stages.compare_losses, training_stages.compare_gradients)


def _steps(pair: Pair, own: Problem, name: str, found: Found) -> Stage:
    steps, compare_them = {
        "step": (training_stages.STEPS, training_stages.compare_steps),
        "trajectory": (tolerances.TRAJECTORY_STEPS, training_stages.compare_trajectories),
    }[name]
    done = _in_turns(pair, found, name, lambda side: side.train(own, steps, keep_all=False))
    stage = compare_them(done["candidate"], done["reference"])
    if found.faults:
        return stage

    def again(side: SideName, moved: Problem) -> Stage:
        return compare_them(pair.sides[side].train(moved, steps, keep_all=False), done[side])

    stage = _allow_for_rounding(pair, stage, own, again, found)
    if stage.verdict == "diverged":
        found.faults += explanations.step_faults(pair.config, own, pair.sides)
    return stage


def _allow_for_rounding(
    pair: Pair, stage: Stage, problem: Problem, again: Callable[[SideName, Problem], Stage], found: Found
) -> Stage:
    """The stage with what amplifies rounding judged by that.

    Args:
      again: compares what a side computes of a problem with what it computed before.
    """
    sides: tuple[SideName, ...] = ("candidate", "reference")

    def from_itself(side: SideName) -> Stage:
        pair.reference.rest()
        found.progress(f"{stage.name}: the {side} against itself")
        return again(side, nudged_problem(problem))

    return allow_for_rounding(stage, [partial(from_itself, side) for side in sides])


def _with_sources(pair: Pair, own: Problem) -> Problem:
    """Without the sentences that are all padding: those end at once here, and are decoded from nothing elsewhere."""
    return replace(own, source_ids=own.source_ids[(own.source_ids != pair.config.source_pad_id).any(axis=1)])


def _decoding(pair: Pair, own: Problem, most: int, found: Found) -> Stage:
    rows: list[Row] = []
    for beam_size, title in ((1, "greedy"), (BEAMS, f"{BEAMS} beams")):
        try:
            tokens = {
                name: _padded(side.decode(own, beam_size, most), most, pair)
                for name, side in reversed(pair.sides.items())
            }
        except CannotRun:
            if beam_size == 1:
                raise
            continue  # such programs have no beams: there is nothing to be the same
        (row,) = compare_stage("decode", {title: tokens["candidate"]}, {title: tokens["reference"]}).rows
        rows.append(
            row if row.verdict == "passed" else _explained_tokens(pair, own, row, beam_size, most, tokens, found)
        )
    return Stage("decode", tuple(rows))


def _explained_tokens(
    pair: Pair, own: Problem, row: Row, beam_size: int, most: int, tokens: Mapping[SideName, np.ndarray], found: Found
) -> Row:
    floor = tolerances.FLOAT64_RELATIVE_RMS * max(1.0, found.size_of_logits)
    explained = {
        name: explanations.decoded_by(pair.config, pair.generation, own, beam_size, most, tokens[name], floor)
        for name in pair.sides
    }
    if not found.faults:
        found.faults += [
            Fault(name, "decode", one.finding, one.finding.local_error, own.name)
            for name, one in explained.items()
            if one.finding
        ]
    return explanations.forgiven(row, explained.values()) or row


def _padded(ids: np.ndarray, length: int, pair: Pair) -> np.ndarray:
    return np.pad(ids, ((0, 0), (0, length - ids.shape[1])), constant_values=pair.config.target_pad_id).astype(np.int64)
