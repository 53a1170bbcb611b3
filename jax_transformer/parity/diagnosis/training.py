"""Explain a wrong loss and wrong optimizer steps by replaying them on a side's own logits and gradients.

Findings are independent of a side's inputs: a fault of the model changes logits and gradients, but no finding here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jax_transformer.comparison.findings import Finding, Match
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import Arrays, ParityError
from jax_transformer.comparison.gates.compare import rms
from jax_transformer.parity.faults.training import TrainingVariant, loss_variants, pairs, update_variants
from jax_transformer.parity.oracle.losses import LossRule, loss
from jax_transformer.parity.oracle.updates import State, UpdateRule, step

GATE = tolerances.FLOAT64_RELATIVE_RMS


class Step(NamedTuple):
    """Holds one optimizer step of a side."""

    gradients: Arrays
    """Gradients by path, from the backward pass, before clipping."""
    after: Arrays
    """The parameters after the step, by path."""


class Outcome(NamedTuple):
    """Holds a variant and the distance between its result and the received one."""

    variant: TrainingVariant
    residual: float
    left: frozenset[str] = frozenset()
    """For steps: the parameters that the variant doesn't explain."""


class Miss(NamedTuple):
    """Holds the distance of a parameter's updates from the expected ones, at the worst step."""

    residual: float
    """The relative RMS of the update."""
    within: bool


# --- the loss


def explain_loss(rule: LossRule, logits: np.ndarray, labels: np.ndarray, received: float) -> Finding | None:
    """Explains a side's loss of its own logits [B, T, V] and labels [B, T] in float64; None if it is the rule's loss.

    If no single fault explains it, pairs of faults are tried.

    Raises:
      ValueError: the shapes don't fit; a label that counts is V or above.
    """
    error = _apart(received, loss(rule, logits, labels))
    if error <= GATE:
        return None
    singles, tried = loss_variants(rule), []
    for variants in (singles, pairs(singles)):
        found = [Outcome(variant, _apart(received, loss(variant.of(rule), logits, labels))) for variant in variants]
        tried += found
        if within := [outcome for outcome in found if outcome.residual <= GATE]:
            return _finding("loss", "loss", error, within, tried)
    return _finding("loss", "loss", error, [], tried)


def unseen_losses(rule: LossRule, logits: np.ndarray, labels: np.ndarray) -> dict[str, str]:
    """Returns the faults that leave the loss of these logits and labels unchanged, each with an input that shows it."""
    right = loss(rule, logits, labels)
    return {
        variant.name: variant.shown_by
        for variant in loss_variants(rule)
        if _apart(loss(variant.of(rule), logits, labels), right) <= GATE
    }  # fmt: skip


def _apart(received: float, expected: float) -> float:
    """Returns the relative difference; infinite if exactly one is finite, or exactly one is zero."""
    if received == expected or (np.isnan(received) and np.isnan(expected)):
        return 0.0
    if not (np.isfinite(received) and np.isfinite(expected)) or expected == 0.0:
        return np.inf
    return abs(received - expected) / abs(expected)


# --- optimizer steps


def explain_step(rule: UpdateRule, before: State, gradients: Arrays, after: Arrays) -> list[Finding]:
    """Explains a single step as `explain_steps` does. Many faults look the same in one step; the findings list them."""
    return explain_steps(rule, before, [Step(gradients, after)])


def explain_steps(rule: UpdateRule, before: State, steps: Sequence[Step]) -> list[Finding]:
    """Finds the parameters that didn't follow the rule, and explains their updates, from all steps together.

    Every step starts from the side's own parameters, and its moments follow from the side's own gradients. The check
    compares updates, the differences of parameters: a step changes parameters by a thousandth or less, so the
    parameters themselves hide its errors. One cause for everything is a finding at the node "step"; a cause for one
    parameter has its path. Parameters whose gradient is analytically zero (`tolerances.has_zero_gradient`) are left
    out.

    Args:
      before: `initial_state` of the parameters, or the rule's own state after earlier steps.
      steps: consecutive steps in float64. Three distinguish most faults that one can't. A schedule in a tuple needs the
        rate of one more step, or an early schedule can't be recognised.

    Raises:
      ParityError: no steps; more steps than the schedule has rates; parameters or gradients that are missing, of a
        wrong shape, or not float64.
    """
    replay = _replay(before, steps)
    right = replay.misses(_correct_updates(replay, rule))
    wrong = _outside(right)
    if not wrong:
        return []
    singles = update_variants(rule)
    tried = alone = _outcomes(replay, rule, singles)
    if all(outcome.left for outcome in alone):
        probe = replay.part(min(wrong, key=lambda path: (before.parameters[path].size, path)))
        likely = [variant for variant, misses in _tried(probe, rule, pairs(singles)) if not _outside(misses)]
        tried = alone + _outcomes(replay, rule, likely)
    # a fault that would make correct parameters wrong isn't the side's
    leader = min(
        (outcome for outcome in tried if outcome.left <= wrong), key=lambda outcome: len(outcome.left), default=None
    )
    if leader is None or 2 * len(leader.left) >= len(wrong):
        return _by_parameter(replay, rule, wrong)
    within = [outcome for outcome in (alone if leader in alone else tried) if outcome.left == leader.left]
    node = next(iter(wrong)) if len(wrong) == 1 < len(replay.paths) else "step"
    finding = _finding(node, "update", max(right[path].residual for path in wrong - leader.left), within, tried)
    return [finding, *_by_parameter(replay, leader.variant.of(rule), leader.left)]


def unseen_updates(rule: UpdateRule, before: State, steps: Sequence[Step]) -> dict[str, str]:
    """Returns the faults that leave the updates of these gradients unchanged, each with an input that shows it.

    Raises:
      ParityError: as `explain_steps`.
    """
    replay = _replay(before, steps)
    right = _correct_updates(replay, rule)
    found = _tried(replay, rule, update_variants(rule), right)
    return {variant.name: variant.shown_by for variant, misses in found if not _outside(misses)}


def _by_parameter(replay: _Replay, rule: UpdateRule, paths: frozenset[str]) -> list[Finding]:
    """Returns a finding for each of these parameters, in order; a single one if all that move have the same cause."""
    if not paths:
        return []
    right = replay.updates(rule)
    misses = replay.misses(right)
    tried = list(_tried(replay, rule, update_variants(rule)))
    for name, times in (("not updated", 0.0), ("moves twice as far", 2.0)):
        scaled = [{path: times * update for path, update in updates.items()} for updates in right]
        tried.append((TrainingVariant(name, {}, "gradients other than zero"), replay.misses(scaled)))
    findings = []
    for path in (path for path in replay.paths if path in paths):
        outcomes = [Outcome(variant, of[path].residual, _outside({path: of[path]})) for variant, of in tried]
        within = [outcome for outcome in outcomes if not outcome.left]
        findings.append(_finding(path, "update", misses[path].residual, within, outcomes))
    moving = {path for path in replay.paths if any(updates[path].any() for updates in right)}
    if moving <= paths and len({finding.cause for finding in findings}) == 1 < len(findings):
        return [max(findings, key=lambda finding: finding.local_error)._replace(node="step")]
    return findings


def _correct_updates(replay: _Replay, rule: UpdateRule) -> list[dict[str, np.ndarray]]:
    try:
        return replay.updates(rule)
    except LookupError:
        last = replay.before.count + len(replay.steps)
        raise ParityError(
            f"expected a learning rate for each step up to step {last}; the schedule has fewer: give it more"
        ) from None


def _outcomes(replay: _Replay, rule: UpdateRule, variants: Iterable[TrainingVariant]) -> list[Outcome]:
    """Returns the unexplained rest of each variant."""
    tried = _tried(replay, rule, variants)
    return [
        Outcome(variant, max(miss.residual for miss in misses.values()), _outside(misses)) for variant, misses in tried
    ]


def _tried(
    replay: _Replay, rule: UpdateRule, variants: Iterable[TrainingVariant], received: Sequence[Arrays] | None = None
) -> Iterator[tuple[TrainingVariant, dict[str, Miss]]]:
    """Yields each applicable variant with its distance from the received updates, or from `received`."""
    for variant in variants:
        try:
            updates = replay.updates(variant.of(rule))
        except LookupError:  # a schedule that ends
            continue
        yield variant, replay.misses(updates, received)


def _outside(misses: Mapping[str, Miss]) -> frozenset[str]:
    return frozenset(path for path, miss in misses.items() if not miss.within)


# --- replaying the steps


@dataclass(frozen=True)
class _Replay:
    """Holds steps to replay."""

    before: State
    steps: Sequence[Step]
    paths: tuple[str, ...]
    """The parameters that are compared."""

    def part(self, path: str) -> _Replay:
        """Returns the part for one parameter."""
        return replace(self, paths=(path,))

    @cached_property
    def starts(self) -> list[Arrays]:
        """Returns the side's parameters before each step."""
        return [self.before.parameters, *(made.after for made in self.steps[:-1])]

    @cached_property
    def received(self) -> list[dict[str, np.ndarray]]:
        """Returns the side's updates."""
        return [
            {path: made.after[path] - start[path] for path in self.paths}
            for start, made in zip(self.starts, self.steps, strict=True)
        ]

    def updates(self, rule: UpdateRule) -> list[dict[str, np.ndarray]]:
        """Returns the rule's updates for the side's gradients, each step from the side's parameters. Raises LookupError
        at the end of a schedule."""
        state, updates = self.before, []
        for made in self.steps:
            with np.errstate(all="ignore"):
                after = step(rule, state, made.gradients, only=self.paths)
            updates.append({path: after.parameters[path] - state.parameters[path] for path in self.paths})
            state = replace(after, parameters=made.after)
        return updates

    def misses(self, expected: Sequence[Arrays], received: Sequence[Arrays] | None = None) -> dict[str, Miss]:
        """Returns the distance of these updates from the side's, or from `received`."""
        every = list(zip(self.starts, received or self.received, expected, strict=True))
        return {
            path: _worst(_miss(start[path], own[path], update[path]) for start, own, update in every)
            for path in self.paths
        }


def _replay(before: State, steps: Sequence[Step]) -> _Replay:
    """Checks the steps for replay. Raises ParityError if they can't start there."""
    if not steps:
        raise ParityError("expected optimizer steps to explain; received none")
    shapes = {path: array.shape for path, array in before.parameters.items()}
    for number, made in enumerate(steps, before.count + 1):
        for what, arrays in (("gradients", made.gradients), ("parameters after it", made.after)):
            differing = sorted(shapes.keys() ^ arrays.keys())
            if differing:
                raise ParityError(
                    f"step {number}: expected {what} of the same parameters as before; only in one: "
                    f"{', '.join(differing[:3])}"
                )
            for path, array in arrays.items():
                if array.shape != shapes[path] or array.dtype != np.float64:
                    raise ParityError(
                        f"step {number}: {what}: {path}: expected float64 of shape {list(shapes[path])}, as rounding "
                        f"to other dtypes hides a step; received {array.dtype} of shape {list(array.shape)}"
                    )
    return _Replay(
        before, steps, tuple(path for path in shapes if not tolerances.has_zero_gradient(path.split("[")[0]))
    )


def _miss(start: np.ndarray, received: np.ndarray, expected: np.ndarray) -> Miss:
    """Returns the miss of one parameter in one step. Both the update and the parameter after it are gated."""
    finite = np.isfinite(received) & np.isfinite(expected)
    if (np.isfinite(received) != np.isfinite(expected)).any():
        return Miss(np.inf, False)
    error, size = rms((received - expected)[finite]), rms(expected[finite])
    rounding = (
        tolerances.UPDATE_ROUNDOFFS * tolerances.FLOAT64_ROUNDOFF * max(rms(start), rms((start + expected)[finite]))
    )
    within = error <= GATE * size + rounding and error <= GATE * rms((start + expected)[finite])
    return Miss(error / size if size else (0.0 if within else np.inf), within)


def _worst(misses: Iterable[Miss]) -> Miss:
    return max(misses, key=lambda miss: (not miss.within, miss.residual))


def _finding(node: str, kind: str, error: float, within: Sequence[Outcome], tried: Sequence[Outcome]) -> Finding:
    """Returns a finding with the variants that explain it, in the catalogue's order, and the nearest other variant."""
    matches = tuple(Match(outcome.variant.name, outcome.residual) for outcome in within)
    rejected = [Match(outcome.variant.name, outcome.residual) for outcome in tried if outcome not in within]
    nearest = min(
        (match for match in rejected if np.isfinite(match.residual)), key=lambda match: match.residual, default=None
    )
    told_apart_by = "; ".join(dict.fromkeys(outcome.variant.shown_by for outcome in within[1:]))
    return Finding(node, kind, error, matches, nearest, told_apart_by)
