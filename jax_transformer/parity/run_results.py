"""The pair that a parity run compares, the results it collects, and the report it makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.findings import Fault, Finding, SideName
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.gates.stages import Stage, merge_stages
from jax_transformer.comparison.report.report import Depth, Effect, HeatMap, Report
from jax_transformer.comparison.sides import Arrays, CannotRun
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.allowances import (
    FIRST_TOKEN,
    FULLY_MASKED,
    INNER_PADDING,
    with_first_token,
    with_keys_for_all,
    with_padding_at_the_end,
)
from jax_transformer.parity.backends.side import Backend
from jax_transformer.parity.diagnosis.head_orders import in_order, inside_attention
from jax_transformer.parity.diagnosis.padding import ZERO, with_padding
from jax_transformer.parity.rules import BUILT_IN, Rules
from jax_transformer.proof.certificate import Certificate
from jax_transformer.runtime.trees import flatten

if TYPE_CHECKING:
    from jax_transformer.parity.problems import Problem

STAGES = ("weights", "inputs", "masks", "forward", "loss", "gradients", "step", "trajectory", "decode")
OPTIONAL = ("resume", "ctranslate2", "proof")
"""Stages that run only when they are asked for."""
SUBSTAGES = {"forward": ("truth", "forward float32", "forward bfloat16")}
"""Stages that the report lists after the one they belong to."""
EXPLAINED_TOGETHER = (("masks", "forward", "truth"), ("step", "trajectory"))
"""Stages whose faults explain one another's divergence."""
FROM_OWN_RESULTS = ("loss", "step", "decode")
"""Stages whose faults are found from a side's own logits and gradients: no earlier fault explains them."""
OTHER_PROBLEMS = "other inputs and weights than these, on all of which they are the same; --seed draws others"
LIBRARIES = ("jax-transformer", "jax", "jaxlib", "flax", "optax", "torch", "transformers", "numpy")
"""The libraries whose versions a report or a certificate tells."""
LARGE = 20_000_000
"""The number of parameters above which a run saves memory at the cost of time."""


@dataclass(frozen=True)
class Pair:
    """Holds the two sides of a run and the model that both should compute."""

    config: TransformerConfig
    params: Mapping[str, Any]
    """The candidate's parameters, a nested dict."""
    candidate: Backend
    reference: Backend
    generation: GenerationConfig
    visible: frozenset[str] | None = None
    """The activations that both sides can show; None: all."""
    rules: Rules = BUILT_IN
    allow: frozenset[str] = frozenset()
    """The differences of ALLOWANCES that don't count."""
    kept: frozenset[str] = frozenset()
    """The paths of constants that no tensor of the reference holds, so that it can't receive others."""

    def allowing(self, problem: Problem) -> Problem:
        """Returns the problem without what would show differences that are allowed.

        Raises:
          ParityError: first tokens may differ, and no token is known to begin targets.
        """
        if INNER_PADDING in self.allow:
            problem = with_padding_at_the_end(self.config, problem)
        if FULLY_MASKED in self.allow:
            problem = with_keys_for_all(self.config, problem)
        if FIRST_TOKEN not in self.allow:
            return problem
        start = self.generation.decoder_start_id
        if start is None:
            raise ParityError(f"allow {FIRST_TOKEN}: expected the id that targets begin with: give decoder_start_id")
        return with_first_token(problem, start)

    @property
    def start_id(self) -> int | None:
        """Returns the token that decoded targets begin with; None if none of the target's vocabulary is known."""
        start_id = self.generation.decoder_start_id
        return start_id if start_id is not None and 0 <= start_id < self.config.target.vocab_size else None

    @property
    def is_large(self) -> bool:
        """Whether the model has more than `LARGE` parameters."""
        return sum(np.size(leaf) for leaf in flatten(self.params).values()) > LARGE

    @property
    def sides(self) -> dict[SideName, Backend]:
        return {"candidate": self.candidate, "reference": self.reference}

    def shown(self, arrays: Arrays) -> Arrays:
        """Returns the arrays that both sides can show."""
        if self.visible is None:
            return arrays
        return {name: array for name, array in arrays.items() if name in self.visible}


@dataclass(frozen=True)
class Forward:
    """Holds the results of a forward pass on one problem."""

    masks: Stage
    forward: Stage
    truth: Stage
    faults: tuple[Fault, ...]
    notes: tuple[Fault, ...]
    """Differences that change nothing, such as another value of masked logits."""
    effect: Effect | None
    heat_map: HeatMap | None
    local: Mapping[SideName, Mapping[str, float]]
    """Local errors by side and node."""
    not_finite: tuple[str, ...] = ()
    """The nodes at which the reference makes NaN or infinity of finite values, where every query sees a key: whatever
    depends on them can't be judged."""


@dataclass
class RunResults:
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
    not_finite: dict[str, str] = field(default_factory=dict)
    """The nodes at which the reference isn't finite, each with the first problem that shows it."""
    own: Forward | None = None
    """The forward pass on the model's own weights."""
    truth: Arrays | None = None
    """The reference's activations in float64, on the model's own weights."""
    size_of_logits: float = 0.0
    """The largest absolute value of the reference's logits."""
    facts: dict[str, str] = field(default_factory=dict)
    """The settings in force on both sides, for the report."""
    low: dict[SideName, Mapping[str, float]] = field(default_factory=dict)
    """Errors in float32, by side and activation."""
    proof: Certificate | None = None
    remarks: list[str] = field(default_factory=list)
    """Facts that aren't compared."""

    @property
    def zeroes_padding(self) -> bool:
        """Returns whether a side zeroes positions of padding, so that arrays are compared without them."""
        return any(match.variant == ZERO for note in self.notes for match in note.finding.matches)

    def harmless(self, config: TransformerConfig) -> frozenset[str]:
        """Returns the activations whose differences change nothing by the notes: those inside attentions with heads in
        another order, and those of a stack whose padding is zero."""
        found = set[str]()
        for note in self.notes:
            finding = note.finding
            if finding.heads:
                found |= inside_attention(config, finding.node)
            elif any(match.variant == ZERO for match in finding.matches):
                found |= with_padding(config, finding.node)
        return frozenset(found)

    def in_order(self, side: SideName, arrays: Arrays) -> Arrays:
        """Returns a side's activations with the heads of each attention in the model's own order."""
        of_side = {note.finding.node: note.finding for note in self.notes if note.side == side}
        return in_order(arrays, of_side.values())

    def add(self, stage: Stage, problem: str) -> None:
        """Adds a stage's result on one problem."""
        self.stages.setdefault(stage.name, {})[problem] = stage

    def attempt(self, name: str, problem: str, compare: Callable[[], Stage]) -> None:
        """Adds a stage's result on one problem, or the reason why a side can't run it."""
        try:
            stage = compare()
        except CannotRun as reason:
            stage = Stage(name, not_run=str(reason))
        self.add(stage, problem)

    def report(self, pair: Pair, requested: Sequence[str], node: str | None) -> Report:
        """Makes the report: each stage merged over its problems, and the faults that explain the first divergence.

        Args:
          requested: the names of the stages that the run was started with.
          node: the only activation to report on; None: all.
        """
        order = [name for stage in (*STAGES, *OPTIONAL) for name in (stage, *SUBSTAGES.get(stage, ()))]
        stages = [
            merge_stages(self.stages[name])
            for name in order
            if name in self.stages and name.split()[0] in (*requested, "truth")
        ]
        faults = _explaining(stages, self.faults)
        at_fault = {(fault.side, fault.finding.node) for fault in faults}
        notes = tuple(note for note in _once(self.notes) if (note.side, note.finding.node) not in at_fault)
        if node is not None:
            stages = _at_node(stages, node)
            faults, notes = (tuple(fault for fault in found if fault.finding.node == node) for found in (faults, notes))
        worst = max(self.effects, key=lambda effect: effect.relative_rms, default=None)
        return Report(
            pair.candidate.name,
            pair.reference.name,
            tuple(stages),
            faults=faults,
            notes=notes,
            remarks=tuple(self.remarks),
            doubts=tuple(self.doubts),
            effect=worst if node is None or faults else None,
            environment=self.facts,
            depth=self._depth(),
            heat_map=self.heat_maps[0] if self.heat_maps else None,
            proof=self.proof,
        )

    def _depth(self) -> tuple[Depth, ...]:
        if self.own is None:
            return ()
        errors = {row.name: row.error.relative_rms for row in self.own.forward.rows if row.error is not None}
        local = [self.own.local.get(side, {}) for side in ("candidate", "reference")]
        low = [self.low.get(side, {}) for side in ("candidate", "reference")]
        return tuple(
            Depth(name, error, *(side.get(name, math.nan) for side in (*local, *low))) for name, error in errors.items()
        )


def _explaining(stages: Sequence[Stage], faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Returns each node's fault once, those of the first stage that diverges; one without a cause if there is none."""
    found = _once(faults)
    diverged = next((stage for stage in stages if stage.verdict == "diverged"), None)
    if diverged is None:
        return found
    together = next((names for names in EXPLAINED_TOGETHER if diverged.name in names), (diverged.name,))
    explained = tuple(_with_distinction(fault) for fault in found if fault.stage in (*together, *FROM_OWN_RESULTS))
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

    A fault that changes the function counts, not what is left of it on a problem that hardly shows it: rows masked
    altogether, or rounding alone. The fault is unchanged if no cause fits on both.
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
    """Returns whether a finding has the other's precision and a fault beside it."""
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


def _at_node(stages: Sequence[Stage], node: str) -> list[Stage]:
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
    if any(stage.name != "truth" for stage in kept):
        return kept
    return [Stage("forward", not_run=f"{node} can't be seen in the reference"), *kept]
