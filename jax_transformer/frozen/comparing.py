"""Compares what two programs computed, one or both of which are frozen, under the gates of the project's tolerances."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from jax_transformer.comparison import run as comparison
from jax_transformer.comparison.capture import OWN
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import Arrays, ParityError
from jax_transformer.comparison.gates.compare import Comparison
from jax_transformer.comparison.gates.rounding import TOO_MUCH, allow_for_rounding, excuse_rounding, without_cancelled
from jax_transformer.comparison.gates.stages import Row, Stage, compare_stage
from jax_transformer.comparison.report.report import Report
from jax_transformer.comparison.run import Order, Results, Work
from jax_transformer.comparison.sides import CannotRun, selected
from jax_transformer.frozen.places import Located
from jax_transformer.frozen.record import Frozen

STAGES = ("weights", "forward", "loss", "gradients", "steps")
LISTED = 3
INSIDE = "computes in float32 inside: judged by how far the sides are from themselves when float32 rounds otherwise"
OF_LOGITS = "@logits"

Again = Callable[[str, int], Arrays]
"""("own" or "gradients", draw) → what the candidate computes from weights changed in their last bit."""


@dataclass(frozen=True)
class Pair:
    """Holds a candidate that was run on a reference's inputs, and the reference."""

    candidate: Frozen
    reference: Frozen
    has_own_weights: bool
    """Whether the candidate has weights of its own, which are compared; else it computes with the reference's."""
    compares_inside: bool
    """Whether activations are compared by name; a JAX candidate's have none."""
    exact: frozenset[str] = frozenset()
    """Results that were evaluated in float64 as the programs are read, though they compute in float32 inside."""
    locate: Callable[[], Located] | None = None
    again: Again | None = None
    facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What is known of the map of weights."""
    doubts: tuple[str, ...] = ()
    doubts_if_different: tuple[str, ...] = ()


def check_inputs(candidate: Frozen, reference: Frozen) -> None:
    """Raises ParityError for references that were frozen on other inputs."""
    ours, theirs = candidate.inputs, reference.inputs
    names = [name for name in {**theirs, **ours} if not np.array_equal(ours.get(name, ()), theirs.get(name, ()))]
    if names:
        raise ParityError(
            f"inputs: expected two references that were frozen on the same inputs; {names[0]} differs between "
            f"{candidate.path or candidate.name} and {reference.path or reference.name}: freeze one on the other's"
        )


def compare_pair(
    pair: Pair, names: tuple[str, str], stages: Sequence[str] | None, progress: Callable[[str], None]
) -> Report:
    """Compares both, stage by stage, and reports the first difference.

    Raises:
      ParityError: an unknown stage.
    """
    chosen = selected(stages, STAGES, "stages")
    results = Results(progress)
    results.doubts |= dict.fromkeys(pair.doubts)
    results.remarks += _remarks(pair)
    own = f"forward {pair.reference.dtype}"
    order = Order(("weights", "forward", own, "loss", "gradients", "step 1", f"step {len(pair.reference.steps) or 3}"))
    requested = [*chosen, *(["step"] if "steps" in chosen else [])]
    works = _works(pair, chosen, results)
    report = comparison.run(names, works, results, order, requested, inputs=dict)
    sha256 = {one.path: one.sha256 for one in (pair.candidate, pair.reference) if one.path is not None}
    return replace(_located(report, pair), sha256=sha256)


def _works(pair: Pair, chosen: Sequence[str], results: Results) -> Iterator[Work]:
    if "weights" in chosen and pair.has_own_weights:
        yield Work("weights", "weights", "", partial(_weights, pair, results))
    if "forward" in chosen:
        yield Work("forward", "forward", "", partial(_forward, pair, results, "float64"))
        own = pair.reference.dtype
        if own != "float64":
            yield Work(f"forward {own}", f"forward {own}", "", partial(_forward, pair, results, own))
    if "loss" in chosen and (pair.reference.has_loss or pair.candidate.has_loss):
        yield Work("loss", "loss", "", partial(_loss, pair))
    if "gradients" in chosen or "steps" in chosen:
        left_out: set[str] = set()
        yield Work("gradients", "gradients", "", partial(_gradients, pair, results, left_out))
        if "steps" in chosen and (pair.reference.steps or pair.candidate.steps):
            for step in (1, len(pair.reference.steps) or 3):
                yield Work("", f"step {step}", "", partial(_step, pair, step, left_out))


# --- stages


def _weights(pair: Pair, results: Results) -> Stage:
    """Compares weights bit for bit."""
    ours, theirs = pair.candidate, pair.reference
    stage = compare_stage("weights", ours.weights, theirs.weights, tolerance=0.0)
    trained = {each for one in (ours, theirs) for each in _with_ties(one, one.trained)}
    for side, only in (("candidate", stage.only_in_candidate), ("reference", stage.only_in_reference)):
        rest = [name for name in only if name not in trained]
        if rest:
            results.remarks.append(f"not trained, and in the {side} alone: {_listed(rest)}")
    kept = {
        name: tuple(each for each in getattr(stage, name) if each in trained)
        for name in ("only_in_candidate", "only_in_reference")
    }
    return replace(stage, **kept)  # type: ignore[arg-type]


def _with_ties(one: Frozen, names: Sequence[str]) -> list[str]:
    return [each for name in names for each in (name, *one.tied.get(name, ()))]


def _forward(pair: Pair, results: Results, dtype: str) -> Stage:
    """Compares outputs, and activations of the same names, in a type."""
    name = "forward" if dtype == "float64" else f"forward {dtype}"
    ours, theirs = (one.float64 if dtype == "float64" else one.own for one in (pair.candidate, pair.reference))
    for side, arrays, one in (("candidate", ours, pair.candidate), ("reference", theirs, pair.reference)):
        if not arrays:
            raise CannotRun(f"the {side} {one.name} has no results in float64{_why(one)}")
    if dtype != "float64" and pair.candidate.dtype != dtype:
        raise CannotRun(f"the candidate runs in {pair.candidate.dtype}, the reference in {dtype}")
    if pair.compares_inside:
        alone = [each for each in theirs if each not in ours and each != OWN]
        if alone and dtype == "float64":
            results.remarks.append(f"activations of the reference alone, not compared: {_listed(alone)}")
        ours = {each: array for each, array in ours.items() if each in theirs}
        theirs = {each: array for each, array in theirs.items() if each in ours}
        unlike = [each for each in theirs if each != OWN and _form(ours[each]) != _form(theirs[each])]
        if unlike and dtype == "float64":
            results.remarks.append(f"activations of other shapes or types, not compared: {_listed(unlike)}")
        ours, theirs = ({each: one[each] for each in theirs if each not in unlike} for one in (ours, theirs))
    else:
        ours, theirs = {OWN: ours[OWN]}, {OWN: theirs[OWN]}
    wide = {each: array for each, array in pair.reference.float64.items() if array.dtype == np.float64}
    truth = wide if dtype != "float64" else None  # some compute parts in float32 even then
    where = {each: _read(ours[each], theirs[each]) for each in theirs if OF_LOGITS in each}
    dtypes = dict.fromkeys(theirs, dtype)
    stage = compare_stage(name, ours, theirs, truth=truth, where=where, dtypes=dtypes)
    unjudged = [row.name for row in stage.rows if row.verdict == "inconclusive" and row.name != OWN]
    if unjudged:
        results.remarks.append(f"{name}: activations without a gate, not compared: {_listed(unjudged)}")
    stage = replace(stage, rows=tuple(row for row in stage.rows if row.name not in unjudged))
    if dtype == "float64" and _rounds(pair, dtype):
        stage = _in_its_type(stage, pair, "float64")
    if dtype != "float64" and not results.have_diverged:
        stage = excuse_rounding(stage, dtype, _moving(pair, "own"))
    return _without_unread(stage, results)


def _form(array: np.ndarray) -> tuple[Any, ...]:
    return array.shape, array.dtype


def _why(one: Frozen) -> str:
    found = [note for note in one.notes if note.startswith("not in float64")]
    return f": {found[0]}" if found else ""


def _read(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Returns which scores count: those that neither side masks."""
    return np.isfinite(ours) & np.isfinite(theirs) & (np.minimum(ours, theirs) > tolerances.MASKED_BELOW)


def _rounds(pair: Pair, what: str) -> bool:
    return what not in pair.exact and (pair.candidate.rounds or pair.reference.rounds)


def _in_its_type(stage: Stage, pair: Pair, what: str) -> Stage:
    """Judges diverged rows of programs that compute in float32 inside by how far both sides are from themselves when
    weights change in their last bit of float32; never beyond MOST_FOR_ROUNDING."""
    left = [row for row in stage.rows if row.verdict == "diverged" and row.allowed and row.error is not None]
    if not left:
        return stage
    moves = [{row.name: row.error for row in one(0).rows} for one in _moving(pair, what).values()]
    judged = {}
    for row in left:
        floors = [each[row.name].relative_rms if each.get(row.name) is not None else 0.0 for each in moves]  # type: ignore[union-attr]
        allowed = min(tolerances.FACTOR_ROUNDING * min(floors), tolerances.MOST_FOR_ROUNDING)
        assert row.error is not None
        if row.error.within(allowed):
            gate = f"relative RMS ≤ {allowed:.1e}"
            judged[row.name] = replace(row, verdict="passed", gate=gate, allowed=allowed, reason=INSIDE)
        elif row.error.within(tolerances.FACTOR_ROUNDING * min(floors)):
            judged[row.name] = replace(row, verdict="inconclusive", gate="", reason=TOO_MUCH)
    return replace(stage, rows=tuple(judged.get(row.name, row) for row in stage.rows))


def _without_unread(stage: Stage, results: Results) -> Stage:
    """Drops activations that differ, if the output is the same: on this batch they change nothing."""
    output = next((row for row in stage.rows if row.name == OWN), None)
    different = [row.name for row in stage.rows if row.verdict == "diverged"]
    if output is None or output.verdict != "passed" or not different:
        return stage
    results.remarks.append(f"{stage.name}: differ without changing the output on these inputs: {_listed(different)}")
    return replace(stage, rows=tuple(row for row in stage.rows if row.name not in different))


def _moving(pair: Pair, what: str) -> dict[str, Callable[[int], Stage]]:
    """Returns, for each side, how far it is from itself when it rounds otherwise, as the rounding gates ask for it."""

    def candidate_stage(draw: int) -> Stage:
        if pair.again is None:
            return _moved(pair.candidate, what, draw)
        if what.startswith("step "):
            own = pair.candidate.steps[int(what.removeprefix("step ")) - 1]
        else:
            own = getattr(pair.candidate, what)
        return compare_stage(what, pair.again(what, draw), own, tolerance=tolerances.MOST_FOR_ROUNDING)

    return {"candidate": candidate_stage, "reference": partial(_moved, pair.reference, what)}


def _moved(one: Frozen, what: str, draw: int) -> Stage:
    """Returns the distances that were measured when a program was frozen, as a stage."""
    rows = []
    for name, several in one.moves.get(what, {}).items():
        if draw < len(several):
            error = Comparison(*several[draw], (), False, 0, 0, 1)
            rows.append(Row(name, "diverged", "", error, tolerances.MOST_FOR_ROUNDING))
    return Stage(what, tuple(rows))


def _loss(pair: Pair) -> Stage:
    sides = (("candidate", pair.candidate), ("reference", pair.reference))
    for side, one in sides:
        if not one.has_loss:
            raise CannotRun(f"the {side} has no loss: give it, Side(program, loss=output → one number)")
    arrays = ({"loss": np.array([one.losses[0]])} for _, one in sides)
    return compare_stage("loss", *arrays)


def _gradients(pair: Pair, results: Results, left_out: set[str]) -> Stage:
    """Compares gradients in float64."""
    ours, theirs = pair.candidate, pair.reference
    for side, one in (("candidate", ours), ("reference", theirs)):
        if not one.gradients:
            raise CannotRun(f"the {side} {one.name} has no gradients{_no_gradients(one)}")
    if ours.has_loss != theirs.has_loss:
        lacks = "candidate" if theirs.has_loss else "reference"
        raise CannotRun(f"the gradients are of other losses: the {lacks} has none; give it in Side(program, loss=...)")
    stage = compare_stage("gradients", ours.gradients, theirs.gradients)
    if _rounds(pair, "gradients"):
        stage = _in_its_type(stage, pair, "gradients")
    else:
        stage = allow_for_rounding(stage, [partial(one, 0) for one in _moving(pair, "gradients").values()])
    stage = stage if results.have_diverged else excuse_rounding(stage, "float64", _moving(pair, "gradients"))
    before = {row.name for row in stage.rows if row.verdict == "inconclusive"}
    stage = without_cancelled(stage, ours.gradients, theirs.gradients)
    cancelled = [row.name for row in stage.rows if row.verdict == "inconclusive" and row.name not in before]
    if cancelled:
        results.remarks.append(f"gradients that are zero but for rounding, not compared: {_listed(cancelled)}")
        left_out |= {*cancelled}
    left_out |= {row.name for row in stage.rows if row.verdict != "passed"}
    return replace(stage, rows=tuple(row for row in stage.rows if row.name not in cancelled))


def _no_gradients(one: Frozen) -> str:
    found = [note for note in one.notes if note.startswith(("no gradients", "not in float64"))]
    return f": {found[0]}" if found else ""


def _step(pair: Pair, step: int, left_out: set[str]) -> Stage:
    """Compares trained weights after a step, but for those whose gradients already differ or are rounding."""
    ours, theirs = pair.candidate, pair.reference
    if ours.optimizer != theirs.optimizer:
        raise CannotRun(f"the steps are of other optimizers: {ours.optimizer} and {theirs.optimizer}")
    name = f"step {step}"
    both = [
        {each: array for each, array in one.steps[step - 1].items() if each not in left_out} for one in (ours, theirs)
    ]
    if not both[1]:
        raise CannotRun("the gradients differ, or are rounding")
    gate = tolerances.FLOAT64_RELATIVE_RMS if step == 1 else tolerances.TRAJECTORY_PARAMETERS_RELATIVE_RMS
    stage = compare_stage(name, *both, tolerance=gate)
    return _in_its_type(stage, pair, name) if _rounds(pair, "gradients") else stage


# --- the report


def _remarks(pair: Pair) -> list[str]:
    ours, theirs = pair.candidate, pair.reference
    found = ["numbers were compared on one batch: nothing is proven here"]
    found += [f"map of the weights: {what}: {each}" for what, several in pair.facts.items() for each in several]
    found += [f"the candidate: {note}" for note in ours.notes]
    found += [f"the reference: {note}" for note in theirs.notes]
    if pair.has_own_weights:
        groups = [{frozenset((name, *others)) for name, others in one.tied.items()} for one in (ours, theirs)]
        for side, mine, rest in (("candidate", groups[0], groups[1]), ("reference", groups[1], groups[0])):
            for group in sorted(map(sorted, mine - rest)):
                found.append(f"one tensor in the {side} alone: {' = '.join(group)}")
        changed = [
            one["name"] for one in theirs.source if one["sha256"] not in {each["sha256"] for each in ours.source}
        ]
        if changed and ours.source and ours.framework == theirs.framework:
            found.append(f"classes whose text differs: {_listed([name.rpartition('.')[2] for name in changed])}")
    differing = [
        f"{name} {ours.versions.get(name, 'none')} and {version}"
        for name, version in theirs.versions.items()
        if ours.versions.get(name) != version and name not in ("system", "CPU cores")
    ]
    return [*found, f"versions that differ: {', '.join(differing)}"] if differing else found


def _located(report: Report, pair: Pair) -> Report:
    """Names the first activation that a candidate without names of its own doesn't compute."""
    if report.verdict != "diverged":
        return report
    report = replace(report, doubts=(*report.doubts, *pair.doubts_if_different))
    diverged = next((stage for stage in report.stages if stage.verdict == "diverged"), None)
    if pair.locate is None or diverged is None or not diverged.name.startswith("forward"):
        return report
    try:
        found = pair.locate()
    except Exception as error:  # a search that adds to a verdict, and changes none
        return replace(
            report, remarks=(*report.remarks, f"where they part wasn't found: {type(error).__name__}: {error}")
        )
    text = [f"{len(found.computed)} of {len(pair.reference.float64)} activations are among the candidate's values"]
    if found.activation:
        after = f"; the last before it that it computes: {found.before}" if found.before else ""
        text.append(f"first activation of the reference that the candidate doesn't compute: {found.activation}{after}")
    if found.place:
        text.append(f"first operation of the candidate that computes what the reference doesn't: {found.place}")
    return replace(report, remarks=(*text, *report.remarks), faults=_renamed(report, found))


def _renamed(report: Report, found: Located) -> Any:
    """Returns the report's faults, that of the output at the activation at which it begins."""
    if not found.activation:
        return report.faults
    return tuple(
        fault._replace(finding=fault.finding._replace(node=found.activation)) if fault.finding.node == OWN else fault
        for fault in report.faults
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{', '.join(names[:LISTED])}{more}"
