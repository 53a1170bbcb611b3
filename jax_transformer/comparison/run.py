"""Runs the stages of a comparison in order, whatever the first finds, and makes one report of what they find."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from jax_transformer.comparison.findings import Fault, Finding
from jax_transformer.comparison.gates.stages import Stage, compare_stage, merge_stages
from jax_transformer.comparison.report.report import Depth, Effect, HeatMap, Report, depth_of
from jax_transformer.comparison.sides import Arrays, CannotRun
from jax_transformer.proof.certificate import Certificate

INPUTS = "inputs"
"""The stage that checks that the others leave the inputs unchanged."""
FORWARD = "forward"
"""The stage that compares activations, whose errors are the report's depth."""
OTHER_PROBLEMS = "other inputs and weights than these, on all of which they are the same; --seed draws others"


class Work(NamedTuple):
    """Defines a piece of a run: a comparison of both sides on one problem."""

    title: str
    """Its name to the user before it begins; "" for none."""
    stage: str
    problem: str
    """The weights and inputs on which it compares; "" if there is only one problem."""
    compare: Callable[[], Stage | None]
    """Returns the stage; or None, if it adds stages itself. Raises CannotRun if a side can't do it."""


@dataclass(frozen=True)
class Order:
    """Defines how a report lists stages, and which of their faults explain a divergence."""

    stages: tuple[str, ...]
    """All stages in order. One of two words, such as "forward float32", belongs to the stage of the first word."""
    always: tuple[str, ...] = ()
    """Stages that are listed even if they weren't requested."""
    explained_together: tuple[tuple[str, ...], ...] = ()
    """Stages whose faults explain one another's divergence."""
    from_own_results: tuple[str, ...] = ()
    """Stages whose faults are found from a side's own results: no earlier fault explains them."""


@dataclass
class Results:
    """Collects what the stages of a run find."""

    progress: Callable[[str], None] = lambda what: None
    """Called with the name of each piece of work before it begins."""
    stages: dict[str, dict[str, Stage]] = field(default_factory=dict)
    """By stage and problem."""
    faults: list[Fault] = field(default_factory=list)
    notes: list[Fault] = field(default_factory=list)
    """Differences that change nothing."""
    effects: list[Effect] = field(default_factory=list)
    heat_maps: list[HeatMap] = field(default_factory=list)
    doubts: dict[str, None] = field(default_factory=dict)
    """Reasons for an inconclusive verdict, in order, each once."""
    facts: dict[str, str] = field(default_factory=dict)
    """The settings in force on both sides, for the report."""
    remarks: list[str] = field(default_factory=list)
    """Facts that aren't compared."""
    proof: Certificate | None = None

    def add(self, stage: Stage, problem: str = "") -> None:
        """Adds a stage's result on one problem."""
        self.stages.setdefault(stage.name, {})[problem] = stage

    def attempt(self, work: Work) -> None:
        """Adds a stage's result on one problem, or the reason why a side can't run it."""
        try:
            stage = work.compare()
        except CannotRun as reason:
            stage = Stage(work.stage, not_run=str(reason))
        if stage is not None:
            self.add(stage, work.problem)

    @property
    def have_diverged(self) -> bool:
        """Returns whether a stage has diverged so far."""
        return any(stage.verdict == "diverged" for cases in self.stages.values() for stage in cases.values())

    @property
    def depth(self) -> tuple[Depth, ...]:
        """Returns the errors of the activations of the first problem."""
        return next((depth_of(stage) for stage in self.stages.get(FORWARD, {}).values()), ())


def run(
    names: tuple[str, str],
    works: Iterable[Work],
    results: Results,
    order: Order,
    requested: Sequence[str],
    *,
    inputs: Callable[[], Arrays],
    node: str | None = None,
) -> Report:
    """Does all work in order, and makes the report: each stage merged over its problems, and the faults that explain
    the first divergence.

    Args:
      names: the candidate's and the reference's.
      works: the work; the next piece is asked for when the last is done.
      results: collects what the works find.
      requested: the names of the stages to report on.
      inputs: returns copies of the inputs, which no work may change.
      node: the only activation to report on; None: all.
    """
    inputs_before = inputs()
    for work in works:
        if work.title:
            results.progress(work.title)
        results.attempt(work)
    if INPUTS in requested:
        results.add(compare_stage(INPUTS, inputs(), inputs_before, tolerance=0.0))
    stages = [
        merge_stages(results.stages[name])
        for name in order.stages
        if name in results.stages and name.split()[0] in (*requested, *order.always)
    ]
    faults = _explaining(stages, results.faults, order)
    at_fault = {(fault.side, fault.finding.node) for fault in faults}
    notes = tuple(note for note in _once(results.notes) if (note.side, note.finding.node) not in at_fault)
    if node is not None:
        stages = _at_node(stages, node, order.always)
        faults, notes = (tuple(fault for fault in found if fault.finding.node == node) for found in (faults, notes))
    worst = max(results.effects, key=lambda effect: effect.relative_rms, default=None)
    return Report(
        *names,
        tuple(stages),
        faults=faults,
        notes=notes,
        remarks=tuple(results.remarks),
        doubts=tuple(results.doubts),
        effect=worst if node is None or faults else None,
        environment=results.facts,
        depth=results.depth,
        heat_map=results.heat_maps[0] if results.heat_maps else None,
        proof=results.proof,
    )


def _explaining(stages: Sequence[Stage], faults: Sequence[Fault], order: Order) -> tuple[Fault, ...]:
    """Returns each node's fault once, those of the first stage that diverges; one without a cause if there is none."""
    found = _once(faults)
    diverged = next((stage for stage in stages if stage.verdict == "diverged"), None)
    if diverged is None:
        return found
    together = next((names for names in order.explained_together if diverged.name in names), (diverged.name,))
    explained = tuple(
        _with_distinction(fault) for fault in found if fault.stage in (*together, *order.from_own_results)
    )
    if explained:
        return explained
    row = diverged.first_divergence
    assert row is not None  # it diverged
    error = row.error.relative_rms if row.error is not None else math.nan
    return (Fault("unknown", diverged.name, Finding(row.name, diverged.name, math.nan, (), None), error, row.case),)


def _once(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Returns each node's fault once, with the causes that fit on every problem."""
    once: dict[tuple[str, str], Fault] = {}
    for fault in faults:
        key = fault.side, fault.finding.node
        once[key] = _narrowed(once[key], fault) if key in once else fault
    return tuple(once.values())


def _narrowed(fault: Fault, again: Fault) -> Fault:
    """Returns the fault with the causes that also fit on another problem.

    A fault that changes the function counts, not what is left of it on a problem that hardly shows it: fully
    masked rows, or rounding alone. The fault is unchanged if no cause fits on both.
    """
    first, second = fault.finding, again.finding
    if first.effect != second.effect:
        return again if second.effect == "function" else fault
    others = {match.variant for match in second.matches}
    matches = tuple(match for match in first.matches if match.variant in others)
    if matches:
        return fault._replace(finding=first._replace(matches=matches))
    return again if _says_more(second, first) else fault


def _says_more(finding: Finding, other: Finding) -> bool:
    """Returns whether a finding has the other's precision and another fault."""
    if finding.precision and not finding.matches:
        return all(match.variant == f"computed in {finding.precision}" for match in other.matches)
    causes = [match.variant.removeprefix("norm: ") for match in other.matches]
    return (
        bool(causes)
        and all(
            any(match.variant.endswith(f", {link}{cause}") for link in ("", "and ") for cause in causes)
            for match in finding.matches
        )
        and bool(finding.matches)
    )


def _with_distinction(fault: Fault) -> Fault:
    """Returns the fault, saying what would tell several possible causes apart if it doesn't say so yet."""
    several = len(fault.finding.matches) > 1 and not fault.finding.told_apart_by
    return fault._replace(finding=fault.finding._replace(told_apart_by=OTHER_PROBLEMS)) if several else fault


def _at_node(stages: Sequence[Stage], node: str, always: Sequence[str]) -> list[Stage]:
    """Returns the stages with the rows of one activation alone; one that couldn't run if no stage compares it."""

    def only(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name == node)

    kept = [
        replace(
            stage,
            rows=tuple(row for row in stage.rows if row.name == node),
            only_in_candidate=only(stage.only_in_candidate),
            only_in_reference=only(stage.only_in_reference),
        )
        for stage in stages
    ]
    kept = [
        stage for stage in kept if stage.rows or stage.not_run or stage.only_in_candidate or stage.only_in_reference
    ]
    if any(stage.name not in always for stage in kept):
        return kept
    return [Stage(FORWARD, not_run=f"{node} can't be seen in the reference"), *kept]
