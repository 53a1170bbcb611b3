"""The report of a parity run, made of what its stages found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax_transformer.parity.diagnosis.findings import Fault, Finding
from jax_transformer.parity.gates.stages import Stage, merge_stages
from jax_transformer.parity.report.report import Depth, Report
from jax_transformer.parity.run_results import STAGES, Found, Pair


def make_report(
    pair: Pair,
    found: Found,
    asked: Sequence[str],
    node: str | None,
    command: str,
    environment: Mapping[str, Any],
    sha256: Mapping[str, str],
) -> Report:
    order = [name for stage in STAGES for name in (stage, *_SUBSTAGES.get(stage, ()))]
    merged = [
        merge_stages(found.stages[name])
        for name in order
        if name in found.stages and name.split()[0] in (*asked, "truth")
    ]
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


def _depth(found: Found) -> tuple[Depth, ...]:
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
