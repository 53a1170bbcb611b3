"""A parity run: both sides through the stages, on every problem, to a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from jax_transformer.config import GenerationConfig, TransformerConfig
from jax_transformer.parity import tolerances
from jax_transformer.parity.arrays import ParityError
from jax_transformer.parity.compare import relative_rms
from jax_transformer.parity.findings import Fault, Finding, SideName
from jax_transformer.parity.report import Depth, Effect, HeatMap, Report
from jax_transformer.parity.stages import Row, Stage, compare_stage, merge_stages
from jax_transformer.parity.truth.graph import nodes
from jax_transformer.trees import nearest
from jax_transformer.verification import explanations, training_stages
from jax_transformer.verification.forward_stage import Forward, compare_forward
from jax_transformer.verification.precision_stage import compare_precision, rounded
from jax_transformer.verification.problems import Problem, long_problem, other_weights, own_problem
from jax_transformer.verification.sides import Arrays, CannotRun, Dtype, Side

STAGES = ("weights", "inputs", "masks", "forward", "loss", "gradients", "step", "trajectory", "decode")
DTYPES: tuple[Dtype, ...] = ("float64", "float32", "bfloat16")
BEAMS = 4
NEW_TOKENS = 12


@dataclass(frozen=True)
class Pair:
    """What is compared."""

    config: TransformerConfig
    params: Mapping[str, Any]
    """The candidate's own."""
    candidate: Side
    reference: Side
    generation: GenerationConfig
    visible: frozenset[str] | None = None
    """The activations that can be seen in the reference; None: all."""

    @property
    def sides(self) -> dict[SideName, Side]:
        return {"candidate": self.candidate, "reference": self.reference}

    def shown(self, arrays: Arrays) -> Arrays:
        """Those that can be seen in the reference."""
        return arrays if self.visible is None else {name: array for name, array in arrays.items() if name in self.visible}


@dataclass
class _Found:
    """What a run has found so far."""

    stages: dict[str, dict[str, Stage]] = field(default_factory=dict)
    """By stage and problem."""
    faults: list[Fault] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    heat_maps: list[HeatMap] = field(default_factory=list)
    doubts: dict[str, None] = field(default_factory=dict)
    own: Forward | None = None
    truth: Arrays | None = None
    """The reference's activations of its own weights in float64."""
    size_of_logits: float = 0.0
    low: dict[SideName, Mapping[str, float]] = field(default_factory=dict)
    """Errors in float32, by side and activation."""

    def add(self, stage: Stage, problem: str) -> None:
        self.stages.setdefault(stage.name, {})[problem] = stage


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
    """Runs the stages in their order, all of them whatever the first finds; explains what the first that diverges finds.

    Args:
      stages: which of STAGES.
      dtypes: float64 decides; the others ask whether the candidate's precision is as good as the reference's.
      progress: told what is done next.
      node: an activation; nothing but it is looked at.
      command: what made this run, to which `--node NAME` is added to replay one.
    """
    found = _Found()
    if node is not None:
        check_node(pair.config, node)
        stages = ("masks", "forward")
    own = own_problem(pair.config, pair.params, seed)
    _check_precision(pair, dtypes, found)
    if "weights" in stages:
        progress("weights")
        found.add(_attempt("weights", lambda: _weights(pair, found)), own.name)
    if {"step", "trajectory"} & {*stages} and "float64" in dtypes:
        pair.candidate.get_ready(own)
    given = _copies(own)
    if {"masks", "forward"} & {*stages} and "float64" in dtypes:
        for problem in _problems(pair, own, seed):
            progress(f"forward, {problem.name}")
            _forward(pair, problem, found, is_own=problem is own)
    for dtype in dtypes:
        if dtype != "float64" and "forward" in stages:
            progress(f"forward in {dtype}")
            found.add(_attempt(f"forward {dtype}", partial(_low_precision, pair, own, dtype, found)), own.name)
    if "float64" in dtypes:
        _training(pair, own, stages, seed, found, progress)
    if "decode" in stages:
        progress("decode")
        found.add(_attempt("decode", lambda: _decoding(pair, own, found)), own.name)
    if "inputs" in stages:
        found.add(compare_stage("inputs", _copies(own), given), own.name)
    _add_left_out(stages, dtypes, found, own.name)
    return _report(pair, found, stages, node, command, environment or {}, sha256 or {})


def check_node(config: TransformerConfig, node: str) -> None:
    """Raises ParityError for what is no activation of this model."""
    known = [one.name for one in nodes(config)]
    if node not in known:
        raise ParityError(f"--node: expected an activation of this model, such as {known[-1]}; received {node!r}{nearest(node, known)}")


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


def _add_left_out(stages: Sequence[str], dtypes: Sequence[Dtype], found: _Found, problem: str) -> None:
    """What was asked for and not compared is no pass: a stage that says why."""
    for name in stages:
        if any(known.split()[0] == name for known in found.stages):
            continue
        if "float64" not in dtypes:
            found.add(Stage(name, not_run=f"it is compared in float64 alone, which isn't among {', '.join(dtypes)}"), problem)
        elif name == "masks" and "forward" not in stages:  # beside a forward pass, a model without masks is no question
            found.add(Stage(name, not_run="no mask can be seen on both sides"), problem)
    if {*stages} == {"inputs"}:
        found.doubts["nothing was computed: the stage inputs tells whether other stages leave the batch as it was"] = None


def _check_precision(pair: Pair, dtypes: Sequence[Dtype], found: _Found) -> None:
    for name, side in pair.sides.items():
        for dtype in dtypes:
            force = side.in_force(dtype)
            if force.get("dtype", dtype) != dtype:
                found.doubts[f"{dtype} was asked of the {name}, which computes in {force['dtype']}"] = None
            if force.get("TF32"):
                found.doubts[f"the {name} multiplies in TF32: matrix products are rounded to 10 bits"] = None


def _repeats(name: SideName, side: Side, problem: Problem, trace: Arrays, found: _Found) -> None:
    """Whether a side, run once more, gives the same."""
    for key, array in side.forward(problem, "float64").items():
        if key not in trace or not np.array_equal(array, trace[key], equal_nan=array.dtype != bool):
            found.doubts[f"the {name} differs from itself when it is run again, first at {key}: does it draw random numbers?"] = None
            return


# --- stages


def _weights(pair: Pair, found: _Found) -> Stage:
    candidate, reference = (_InFloat64(side.weights()) for side in pair.sides.values())
    stage = compare_stage("weights", candidate, reference, tolerance=0.0)
    found.faults += explanations.weight_faults(stage, candidate, reference)
    return stage


class _InFloat64(Mapping[str, np.ndarray]):
    """Arrays in float64, which holds the numbers of every dtype that weights come in; each is made when it is asked for, and not kept."""

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


def _forward(pair: Pair, problem: Problem, found: _Found, *, is_own: bool) -> None:
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
    result = compare_forward(pair.config, problem, traces["candidate"], traces["reference"], look_at_reference=is_own, visible=pair.visible)
    for stage in (result.masks, result.forward, result.truth):
        if stage.name != "masks" or stage.rows or stage.reasons[1:]:  # some models have no masks
            found.add(stage, problem.name)
    found.faults += result.faults
    found.effects += [result.effect] if result.effect else []
    found.heat_maps += [result.heat_map] if result.heat_map else []
    if is_own:
        found.own, found.truth = result, traces["reference"]
        found.size_of_logits = float(np.abs(traces["reference"]["logits"]).max(initial=0.0)) if "logits" in traces["reference"] else 0.0


def _low_precision(pair: Pair, own: Problem, dtype: Dtype, found: _Found) -> Stage:
    problem = rounded(own, dtype)
    candidate, reference = (side.forward(problem, dtype) for side in pair.sides.values())
    known = found.truth if problem is own else None
    truth = pair.reference.forward(problem, "float64") if known is None else known
    if dtype == "float32":
        found.low = {name: _errors(side, truth) for name, side in zip(pair.sides, (candidate, reference), strict=True)}
    return compare_precision(dtype, pair.shown(candidate), reference, truth)


def _errors(side: Arrays, truth: Arrays) -> dict[str, float]:
    shared = [name for name in truth if name in side and truth[name].dtype != bool and truth[name].shape == side[name].shape]
    return {name: relative_rms(side[name].astype(np.float64), truth[name], np.abs(truth[name]) < 1e30) for name in shared}


def _training(pair: Pair, own: Problem, stages: Sequence[str], seed: int, found: _Found, progress: Callable[[str], None]) -> None:
    if {"loss", "gradients"} & {*stages}:
        progress("loss and gradients")
        _gradients(pair, own, stages, found)
        _gradients(pair, next(other_weights(pair.config, pair.params, seed)), stages, found)
    for name in ("step", "trajectory"):
        if name in stages:
            progress(name)
            found.add(_attempt(name, partial(_steps, pair, own, name, found)), own.name)


def _gradients(pair: Pair, problem: Problem, stages: Sequence[str], found: _Found) -> None:
    pair.reference.rest()
    try:
        done = {name: side.gradients(problem) for name, side in pair.sides.items()}
        done = {name: one._replace(activations=pair.shown(one.activations)) for name, one in done.items()}
    except CannotRun as reason:
        for name in ("loss", "gradients"):
            found.add(Stage(name, not_run=str(reason)), problem.name)
        return
    losses, gradients = (compare_them(done["candidate"], done["reference"]) for compare_them in _COMPARED)
    found.add(losses, problem.name)
    found.add(gradients, problem.name)
    if found.faults:
        return  # what comes before explains it
    if losses.verdict == "diverged":
        found.faults += explanations.loss_faults(pair.config, problem, pair.sides, done)
    elif gradients.verdict == "diverged":
        found.faults += explanations.gradient_faults(gradients, problem, done)


_COMPARED = (training_stages.compare_losses, training_stages.compare_gradients)


def _steps(pair: Pair, own: Problem, name: str, found: _Found) -> Stage:
    steps, compare_them = {
        "step": (training_stages.STEPS, training_stages.compare_steps),
        "trajectory": (tolerances.TRAJECTORY_STEPS, training_stages.compare_trajectories),
    }[name]
    pair.reference.rest()
    stage = compare_them(*(side.train(own, steps, keep_all=False) for side in pair.sides.values()))
    if stage.verdict == "diverged" and not found.faults:
        found.faults += explanations.step_faults(pair.config, own, pair.sides)
    return stage


def _decoding(pair: Pair, own: Problem, found: _Found) -> Stage:
    """Of the sentences that aren't all padding: those end at once here, and are decoded from nothing elsewhere."""
    has_tokens = (own.source_ids != pair.config.source_pad_id).any(axis=1)
    own = replace(own, source_ids=own.source_ids[has_tokens])
    most = min(NEW_TOKENS, pair.config.decoder.max_length)
    rows: list[Row] = []
    for beam_size, title in ((1, "greedy"), (BEAMS, f"{BEAMS} beams")):
        try:
            tokens = {name: _padded(side.decode(own, beam_size, most), most, pair) for name, side in reversed(pair.sides.items())}
        except CannotRun:
            if beam_size == 1:
                raise
            continue  # such programs have no beams: there is nothing to be the same
        (row,) = compare_stage("decode", {title: tokens["candidate"]}, {title: tokens["reference"]}).rows
        rows.append(row if row.verdict == "passed" else _explained_tokens(pair, own, row, beam_size, most, tokens, found))
    return Stage("decode", tuple(rows))


def _explained_tokens(
    pair: Pair, own: Problem, row: Row, beam_size: int, most: int, tokens: Mapping[SideName, np.ndarray], found: _Found
) -> Row:
    floor = tolerances.FLOAT64_RELATIVE_RMS * max(1.0, found.size_of_logits)
    explained = {
        name: explanations.decoded_by(pair.config, pair.generation, own, beam_size, most, tokens[name], floor) for name in pair.sides
    }
    if not found.faults:
        found.faults += [
            Fault(name, "decode", one.finding, one.finding.local_error, own.name) for name, one in explained.items() if one.finding
        ]
    return explanations.forgiven(row, explained.values()) or row


def _padded(ids: np.ndarray, length: int, pair: Pair) -> np.ndarray:
    return np.pad(ids, ((0, 0), (0, length - ids.shape[1])), constant_values=pair.config.target_pad_id).astype(np.int64)


# --- the report


def _report(
    pair: Pair,
    found: _Found,
    asked: Sequence[str],
    node: str | None,
    command: str,
    environment: Mapping[str, Any],
    sha256: Mapping[str, str],
) -> Report:
    order = [name for stage in STAGES for name in (stage, *_SUBSTAGES.get(stage, ()))]
    merged = [merge_stages(found.stages[name]) for name in order if name in found.stages and name.split()[0] in (*asked, "truth")]
    faults = _explaining(merged, found.faults)
    if node is not None:
        merged = _of_node(merged, node)
        faults = tuple(fault for fault in faults if fault.finding.node == node)
    elif command:
        faults = tuple(_replayed_by(command, fault) for fault in faults)
    return Report(
        pair.candidate.name,
        pair.reference.name,
        tuple(merged),
        environment,
        sha256,
        faults,
        tuple(found.doubts),
        max(found.effects, key=lambda effect: effect.relative_rms, default=None) if node is None or faults else None,
        _depth(found),
        found.heat_maps[0] if found.heat_maps else None,
    )


def _of_node(stages: Sequence[Stage], node: str) -> list[Stage]:
    """What they say of one activation; that it is compared nowhere, if so."""

    def only(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name == node)

    kept = [
        replace(stage, rows=tuple(row for row in stage.rows if row.name == node), only_in_candidate=only(stage.only_in_candidate),
                only_in_reference=only(stage.only_in_reference))
        for stage in stages
    ]  # fmt: skip
    kept = [stage for stage in kept if stage.rows or stage.not_run or stage.only_in_candidate or stage.only_in_reference]
    if any(stage.name != "truth" for stage in kept):
        return kept
    return [Stage("forward", not_run=f"{node} can't be seen in the reference"), *kept]


def _replayed_by(command: str, fault: Fault) -> Fault:
    """With the command that replays its node alone, where it is one of the forward pass."""
    is_node = fault.stage in ("masks", "forward", "truth")
    return fault._replace(command=f"{command} --node {fault.finding.node}") if is_node else fault


def _narrowed(fault: Fault, again: Fault) -> Fault:
    """The fault with those causes that fit on the other problem, too; if none does, as it was."""
    others = {match.variant for match in again.finding.matches}
    matches = tuple(match for match in fault.finding.matches if match.variant in others) or fault.finding.matches
    return fault._replace(finding=fault.finding._replace(matches=matches))


ALIKE = "other inputs and weights than these, on all of which they are the same; --seed draws others"


def _ambiguous(fault: Fault) -> Fault:
    """Of several causes that are left in a forward pass, what would tell them apart."""
    several = len(fault.finding.matches) > 1 and not fault.finding.told_apart_by
    return fault._replace(finding=fault.finding._replace(told_apart_by=ALIKE)) if several else fault


_SUBSTAGES = {"forward": ("truth", "forward float32", "forward bfloat16")}


_EXPLAINED_TOGETHER = (("masks", "forward", "truth"), ("step", "trajectory"))


def _explaining(stages: Sequence[Stage], faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Each node's fault once, of the first stage that diverges; where none was found there, one that says so."""
    once: dict[tuple[str, str], Fault] = {}
    for fault in faults:
        key = fault.side, fault.finding.node
        once[key] = _narrowed(once[key], fault) if key in once else fault
    diverged = next((stage for stage in stages if stage.verdict == "diverged"), None)
    if diverged is None:
        return tuple(once.values())
    together = next((names for names in _EXPLAINED_TOGETHER if diverged.name in names), (diverged.name,))
    explained = tuple(_ambiguous(fault) for fault in once.values() if fault.stage in together)
    if explained:
        return explained
    row = diverged.first_divergence
    assert row is not None  # it diverged
    error = row.error.relative_rms if row.error is not None else math.nan
    return (Fault("candidate", diverged.name, Finding(row.name, diverged.name, error, (), None), error, row.case),)


def _depth(found: _Found) -> tuple[Depth, ...]:
    if found.own is None:
        return ()
    errors = {row.name: row.error.relative_rms for row in found.own.forward.rows if row.error is not None}
    candidate, reference = (found.own.local.get(side, {}) for side in ("candidate", "reference"))
    low = [found.low.get(side, {}) for side in ("candidate", "reference")]
    nan = math.nan
    return tuple(
        Depth(name, error, candidate.get(name, nan), reference.get(name, nan), *(side.get(name, nan) for side in low))
        for name, error in errors.items()
    )
