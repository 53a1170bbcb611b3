"""The stages `masks`, `forward` and `truth`: compare both sides' traces on one problem, and find the faulty nodes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from jax_transformer.comparison.findings import Fault, Finding, SideName
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.rounding import allow_for_rounding
from jax_transformer.comparison.gates.stages import Row, Stage, compare_stage
from jax_transformer.comparison.report.report import Effect, HeatMap
from jax_transformer.comparison.sides import Arrays
from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.backends.side import Backend
from jax_transformer.parity.diagnosis.head_orders import in_order
from jax_transformer.parity.diagnosis.nodes import diagnose, walk, with_ids
from jax_transformer.parity.diagnosis.padding import ZERO, counting, where_not_padding
from jax_transformer.parity.oracle.graph import Node, known_nodes, masks_of, nodes
from jax_transformer.parity.problems import Problem, nudged_problem
from jax_transformer.parity.run_results import Forward, Pair, RunResults

MASK = "mask."
LARGEST_MAP = 120
"""Maximum number of columns of a heat map; neighbours share a column if there are more."""


def compare_forward(
    config: TransformerConfig,
    problem: Problem,
    candidate: Arrays,
    reference: Arrays,
    *,
    look_at_reference: bool = False,
    visible: Collection[str] | None = None,
) -> Forward:
    """Compares two traces with each other, and each node with the truth.

    Args:
      look_at_reference: compute the reference's local errors even if nothing differs.
      visible: names of the activations that both sides can show; only these are compared with each other, and masks are
        inferred from logits. None: all names, including masks.
    """
    if visible is not None:
        shown_by_reference = {name: reference[name] for name in reference if name in visible}
        graph = nodes(config)
        reference = with_shared_masks(graph, shown_by_reference, masks_of(config, problem.params, *problem.inputs))
    where = attended(config, candidate, reference)
    shown = [
        side if visible is None else {name: side[name] for name in side if name in visible}
        for side in (candidate, reference)
    ]
    masks = compare_stage("masks", *_as_broad(*_split(*shown, masks=True)))
    forward = compare_stage("forward", *_split(*shown, masks=False), where=where)
    local: dict[SideName, dict[str, float]] = {}
    findings: dict[SideName, list[Finding]] = {}
    local["candidate"], findings["candidate"] = _judged(config, problem, candidate)
    if (
        "diverged" in (masks.verdict, forward.verdict)
        or any(finding.is_fault for finding in findings["candidate"])
        or look_at_reference
    ):
        local["reference"], findings["reference"] = _judged(config, problem, reference)
    not_finite = _not_finite(findings.get("reference", ()), reference)
    if not_finite:
        findings["reference"] = [one for one in findings["reference"] if _is_judged(one, reference)]
    zeroed = any(match.variant == ZERO for side in findings.values() for one in side for match in one.matches)
    if zeroed or any(one.heads for side in findings.values() for one in side):
        where = both(where_not_padding(config, problem.ids, reference) if zeroed else {}, where)
        sides: tuple[SideName, ...] = ("candidate", "reference")
        shown = [in_order(arrays, findings.get(side, ())) for side, arrays in zip(sides, shown, strict=True)]
        forward = compare_stage("forward", *_split(*shown, masks=False), where=where)
    masks, forward = (_with_local(stage, local) for stage in (masks, forward))
    differs = "diverged" in (masks.verdict, forward.verdict)
    apart = _propagated(masks, forward)
    found = [
        Fault(
            side,
            "masks" if finding.node.startswith(MASK) else "forward",
            finding,
            apart.get(finding.node, math.nan),
            problem.name,
        )
        for side, side_findings in findings.items()
        for finding in side_findings
    ]
    faults = tuple(fault for fault in found if fault.finding.is_fault)
    first = next((row for stage in (masks, forward) for row in stage.rows if row.verdict == "diverged"), None)
    return Forward(
        masks,
        forward,
        _truth_stage(local, faults),
        faults,
        tuple(fault for fault in found if not fault.finding.is_fault),
        effect_on_logits(config, problem, candidate, reference) if differs else None,
        heat_map(problem.name, first.name, candidate, reference)
        if first is not None and first.error is not None
        else None,
        local,
        not_finite,
    )


def _not_finite(findings: Iterable[Finding], trace: Arrays) -> tuple[str, ...]:
    """Returns the faulty nodes of a trace whose values aren't finite. (NaN in a fully masked row is no such fault.)"""
    names = (finding.node for finding in findings if finding.effect == "function" and finding.node in trace)
    return tuple(name for name in names if trace[name].dtype != bool and not np.isfinite(trace[name]).all())


def _is_judged(finding: Finding, trace: Arrays) -> bool:
    """Checks that a finding is about finite values, which excludes masks: the logits that imply them may not be."""
    name = finding.node
    return not name.startswith(MASK) and (name not in trace or bool(np.isfinite(trace[name]).all()))


def _with_local(stage: Stage, local: Mapping[SideName, Mapping[str, float]]) -> Stage:
    """Returns the stage with each row's larger local error."""

    def larger(name: str) -> float:
        return max((errors[name] for errors in local.values() if name in errors), default=math.nan)

    return dataclasses.replace(
        stage, rows=tuple(dataclasses.replace(row, local=larger(row.name)) for row in stage.rows)
    )


def attended(config: TransformerConfig, candidate: Arrays, reference: Arrays) -> dict[str, np.ndarray]:
    """Returns masks of the attention logits that are unmasked on both sides: fill values would outweigh all other
    logits."""
    where = {}
    for node in known_nodes(config):
        name, mask = node.name, node.inputs.get("mask")
        if mask is not None and name in reference:
            known = [side[mask] for side in (candidate, reference) if mask in side]
            if known and all(
                one.dtype == bool and _can_be_broadcast(one.shape, reference[name].shape) for one in known
            ):
                where[name] = np.logical_and.reduce(np.broadcast_arrays(*known))
    return where


def both(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Intersects two mappings of masks; a name that one of them lacks keeps its mask."""
    return {name: np.asarray(first.get(name, True) & second.get(name, np.True_)) for name in {**first, **second}}


def _can_be_broadcast(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _split(candidate: Arrays, reference: Arrays, *, masks: bool) -> tuple[Arrays, Arrays]:
    def part(side: Arrays) -> Arrays:
        return {name: array for name, array in side.items() if name.startswith(MASK) == masks}

    return part(candidate), part(reference)


def _as_broad(candidate: Arrays, reference: Arrays) -> tuple[Arrays, Arrays]:
    """Broadcasts both sides' masks to each other: [1, 1, T, T] is the same mask as [B, 1, T, T]."""
    sides: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = ({**candidate}, {**reference})
    for name in candidate.keys() & reference.keys():
        if _fit(candidate[name].shape, reference[name].shape):
            sides[0][name], sides[1][name] = np.broadcast_arrays(candidate[name], reference[name])
    return sides


def _fit(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    return len(first) == len(second) and all(
        1 in (one, other) or one == other for one, other in zip(first, second, strict=True)
    )


def _judged(config: TransformerConfig, problem: Problem, trace: Arrays) -> tuple[dict[str, float], list[Finding]]:
    """Returns one side's local errors, and the findings that explain them."""
    errors, findings = {}, []
    for step, finding in walk(config, problem.params, with_ids(trace, *problem.ids, **problem.feature_inputs)):
        errors[step.node.name] = step.error
        findings += [] if finding is None else [finding]
    return errors, findings


def _truth_stage(local: Mapping[SideName, Mapping[str, float]], faults: Sequence[Fault]) -> Stage:
    """Compares each side with the truth, to find mistakes that both make."""
    gate = f"relative RMS ≤ {tolerances.FLOAT64_RELATIVE_RMS:g} of the truth, from its own inputs"
    sides = {fault.finding.node: fault.side for side in SIDES for fault in faults if fault.side == side}
    names = dict.fromkeys([*local["candidate"], *sides])
    rows = tuple(
        Row(name, "diverged", gate, reason=f"the {sides[name]} computes something else")
        if name in sides
        else Row(name, "passed", gate)
        for name in names
    )
    return _with_local(Stage("truth", rows), local)


SIDES: tuple[SideName, ...] = ("reference", "candidate")
"""In order of increasing precedence: the candidate's fault counts if both sides have one."""


def _propagated(*stages: Stage) -> dict[str, float]:
    return {row.name: row.error.relative_rms for stage in stages for row in stage.rows if row.error is not None}


# --- the effect of a divergence


def effect_on_logits(
    config: TransformerConfig, problem: Problem, candidate: Arrays, reference: Arrays
) -> Effect | None:
    """Measures the effect on the logits of the positions that count: no padding, and no sentence without a source. None
    if a side has no logits there, or logits that aren't finite."""
    if "logits" not in candidate or "logits" not in reference or candidate["logits"].shape != reference["logits"].shape:
        return None
    counts = counting(config, *problem.ids)
    received, expected = (side["logits"][counts] for side in (candidate, reference))  # [positions, V]
    if not len(expected) or not (np.isfinite(received).all() and np.isfinite(expected).all()):
        return None
    error = compare(received, expected)
    logs = [side - _log_sum(side) for side in (expected.astype(np.float64), received.astype(np.float64))]
    divergence = float(np.mean(np.sum(np.exp(logs[0]) * (logs[0] - logs[1]), axis=-1)))
    changed = int(np.sum(received.argmax(axis=-1) != expected.argmax(axis=-1)))
    return Effect(
        problem.name,
        error.relative_rms,
        error.max_error,
        max(divergence, 0.0),
        changed,
        len(expected),
    )


def _log_sum(logits: np.ndarray) -> np.ndarray:
    highest = logits.max(axis=-1, keepdims=True)
    return np.asarray(highest + np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True)))


def heat_map(case: str, name: str, candidate: Arrays, reference: Arrays) -> HeatMap:
    """Returns the error of one activation by row of the batch, position, and its last axes."""
    received, expected = candidate[name], reference[name]
    shape = np.broadcast_shapes(received.shape, expected.shape)
    if expected.dtype == bool:
        errors = np.not_equal(received, expected).astype(float)
        size = 1.0
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            errors = np.abs(received.astype(np.float64) - expected)
        size = float(np.sqrt(np.mean(np.square(expected[np.isfinite(expected) & (np.abs(expected) < 1e30)])))) or 1.0
    errors = np.broadcast_to(errors, shape)
    attention = name.endswith(("attention.logits", "attention.weights")) or name.startswith(MASK)
    if attention:  # [B, N, Q, K]
        errors, rows, columns = errors.max(axis=1), "row of the batch, query", "key"
    else:
        rows, columns = "row of the batch, position", "vocabulary" if name == "logits" else "feature"
    labels = tuple(f"{b}, {t}" for b in range(errors.shape[0]) for t in range(errors.shape[1]))
    with np.errstate(over="ignore"):
        cells = _pooled(errors.reshape(len(labels), -1) / size)
    return HeatMap(name, case, rows, columns, labels, tuple(tuple(float(cell) for cell in row) for row in cells))


def _pooled(cells: np.ndarray) -> np.ndarray:
    """Takes the maximum over neighbouring columns, to leave at most LARGEST_MAP."""
    share = -(-cells.shape[1] // LARGEST_MAP)
    padded = np.pad(cells, ((0, 0), (0, -cells.shape[1] % share)), constant_values=-np.inf)
    return np.asarray(padded.reshape(len(cells), -1, share).max(axis=-1))


# --- the activations of attentions that a module shows when it runs

# A map of names assumes a softmax in every attention, from its logits to its weights. A module may compute its weights
# without one, as exp(s − logsumexp(s)), or apply the mask afterwards. Then the trace has no such activation, or a
# tensor that isn't the logits.

INSIDE_ATTENTION = ("mask", "attention_logits", "attention_weights")


def unseen(config: TransformerConfig, problem: Problem, trace: Arrays) -> frozenset[str]:
    """Returns the masks, attention logits and attention weights that a module doesn't show on a problem.

    Args:
      trace: its activations, with masks inferred from logits.
    """
    graph = nodes(config)
    internal = [node for node in graph if node.kind in INSIDE_ATTENTION]
    missing = {node.name for node in internal if node.name not in trace}
    masks = masks_of(config, problem.params, *problem.inputs)
    trace = with_shared_masks(graph, trace, masks)
    wrong = {name for name, mask in masks.items() if name in trace and not _same(mask, trace[name])}
    if not wrong:
        return frozenset(missing)
    suspect = {node.name for node in internal if _mask_of(node, graph) in wrong}
    without = {name: array for name, array in trace.items() if name not in suspect}
    found = diagnose(config, problem.params, with_ids(without, *problem.ids, **problem.feature_inputs))
    fits = not any(finding.effect == "function" for finding in found)
    return frozenset(missing | (suspect if fits else set()))


def with_shared_masks(graph: Sequence[Node], trace: Arrays, masks: Arrays) -> dict[str, np.ndarray]:
    """Replaces an inferred mask in the trace by the right mask if an attention applies the right one.

    A mask is inferred from the magnitude of the logits of one attention. Just that attention may be faulty, or its
    masked logits may be larger than usual.

    Args:
      masks: the right masks; see `masks_of`.
    """
    shared = dict(trace)
    for node in graph:
        name = node.inputs.get("mask", "")
        is_wrong = name in shared and node.name in trace and not _same(masks[name], shared[name])
        if is_wrong and _applies(trace[node.name], masks[name]):
            shared[name] = masks[name]
    return shared


def _mask_of(node: Node, graph: tuple[Node, ...]) -> str:
    """Returns the name of a mask, or of the mask that an attention's logits or weights have; "" for none."""
    if node.kind == "mask":
        return node.name
    logits = node if node.kind == "attention_logits" else _named(graph, node.inputs["logits"])
    return logits.inputs.get("mask", "")


def _named(graph: tuple[Node, ...], name: str) -> Node:
    return next(node for node in graph if node.name == name)


def _same(mask: np.ndarray, other: np.ndarray) -> bool:
    try:
        return bool((mask == other).all())
    except ValueError:  # different shapes
        return False


def _applies(logits: np.ndarray, mask: np.ndarray) -> bool:
    """Checks that logits have this mask: all masked logits are very low, or have one value.

    Scores of trained models may be as low as fill values, but differ from each other; the fill of a different mask has
    one value.
    """
    try:
        hidden = ~np.broadcast_to(mask, logits.shape)
    except ValueError:
        return False
    low = logits <= tolerances.MASKED_BELOW
    values, others = logits[hidden], logits[low & ~hidden]
    are_scores = bool(np.isfinite(others).all()) and (others.size == 1 or np.unique(others).size > 1)
    is_one_value = values.size > 1 and bool((values == values[0]).all())
    if np.array_equal(low, hidden):
        return True
    return is_one_value and (not low.any() or (are_scores and bool((others != values[0]).all())))


# --- as a stage of a run


def run_forward(pair: Pair, problem: Problem, results: RunResults, *, is_own: bool) -> None:
    """Runs both sides on a problem, and adds the comparison of their traces to the results.

    Args:
      is_own: whether the problem has the model's own weights; only then are doubts and the details of the report
        collected.

    Raises:
      CannotRun: a side can't run it.
    """
    traces = {name: side.forward(problem, "float64") for name, side in pair.sides.items()}
    if is_own:
        for name, side in pair.sides.items():
            _repeats(name, side, problem, traces[name], results)
    if is_own and not any("logits" in trace for trace in traces.values()):
        results.doubts["neither side shows its logits"] = None
    result = compare_forward(
        pair.config, problem, traces["candidate"], traces["reference"], look_at_reference=is_own, visible=pair.visible
    )
    for node in result.not_finite:
        results.not_finite.setdefault(node, problem.name)
    forward = result.forward
    if forward.verdict == "diverged" and not result.faults:
        forward = _allow_for_rounding(pair, problem, traces, forward)
    for stage in (result.masks, forward, result.truth):
        if stage.name != "masks" or stage.rows or stage.reasons[1:]:  # some models have no masks
            results.add(stage, problem.name)
    results.faults += result.faults
    results.notes += result.notes
    results.effects += [result.effect] if result.effect else []
    results.heat_maps += [result.heat_map] if result.heat_map else []
    if is_own:
        results.own, results.truth = result, traces["reference"]
        logits = np.abs(traces["reference"].get("logits", np.zeros(0)))
        results.size_of_logits = float(logits.max(initial=0.0, where=np.isfinite(logits)))


def _allow_for_rounding(pair: Pair, problem: Problem, traces: Mapping[SideName, Arrays], stage: Stage) -> Stage:
    """Judges diverged rows that amplify rounding by the difference of each side from itself on a nudged problem."""
    moved = nudged_problem(problem)

    def from_itself(name: SideName) -> Stage:
        again = pair.sides[name].forward(moved, "float64")
        where = attended(pair.config, again, traces[name])
        return compare_stage("forward", *_split(again, traces[name], masks=False), where=where)

    return allow_for_rounding(stage, [partial(from_itself, name) for name in pair.sides])


def _repeats(name: SideName, side: Backend, problem: Problem, trace: Arrays, results: RunResults) -> None:
    """Runs a side again, and adds a doubt if the results differ."""
    for key, array in side.forward(problem, "float64").items():
        if key not in trace or not np.array_equal(array, trace[key], equal_nan=array.dtype != bool):
            results.doubts[
                f"the {name} differs from itself when it is run again, first at {key}: does it draw random numbers?"
            ] = None
            return
