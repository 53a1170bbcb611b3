"""Which nodes of a model compute something else than they should, and what: by replaying each on the model's own
inputs.

The graph of the truth is walked in execution order. A node that was captured is compared with what should have been
made of those before it, and then stands for itself, so that what follows is judged by what it was fed: every fault is
found, whatever the others do. Nodes that weren't captured are computed; a fault among them shows at the next one that
was, and each variant of each of them is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.parity.diagnosis.findings import Finding, Match
from jax_transformer.parity.faults import Replay, outcomes
from jax_transformer.parity.gates import tolerances
from jax_transformer.parity.gates.arrays import Arrays
from jax_transformer.parity.gates.compare import relative_rms
from jax_transformer.parity.oracle.graph import MODEL_INPUTS, Node, nodes
from jax_transformer.parity.oracle.replay import parameter, recompute

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig


@dataclass(frozen=True)
class Step:
    """A captured node, reached on the walk."""

    node: Node
    error: float
    """Between what was captured and what should have been made of what was captured before."""
    hidden: tuple[Node, ...]
    """Nodes in between that weren't captured and lead here, in execution order."""
    known: Arrays
    """Everything before it, captured or else computed, by name."""
    fits: bool = True
    """Whether what was captured can stand for what should be there; what can't, as its shape is another, is replaced by
    that."""


def diagnose(config: TransformerConfig, params: Mapping[str, Any], captured: Arrays) -> list[Finding]:
    """The nodes at fault, in execution order: all of them, as each is judged by what it was fed.

    Args:
      params: those that the model should have.
      captured: its ids, and of its masks and activations those that are known, by name.
    """
    return [explain(step, config, params, captured) for step in walk(config, params, captured) if not passes(step)]


def passes(step: Step) -> bool:
    return step.error <= tolerances.FLOAT64_RELATIVE_RMS


def walk(config: TransformerConfig, params: Mapping[str, Any], captured: Arrays) -> Iterator[Step]:
    """Every captured node in execution order, with its local error.

    A step's `known` is of the moment: it grows while the walk goes on.
    """
    graph = nodes(config)
    known = {name: np.asarray(captured[name]) for name in MODEL_INPUTS}
    hidden: dict[str, set[str]] = {}  # of those not captured: the names of themselves, and of those that lead to them
    for node in graph:
        before = set[str]().union(*(hidden.get(name, ()) for name in node.inputs.values()))
        computed = recompute(node, config, known, params)
        if node.name in captured:
            received, hidden_before = captured[node.name], _named(graph, before)
            if not _fits(received, computed):
                yield Step(node, np.inf, hidden_before, known, fits=False)
                known[node.name] = computed
                continue
            yield Step(node, distance(received, computed, _attended(node, known)), hidden_before, known)
            known[node.name] = received
        else:
            hidden[node.name] = before | {node.name}
            known[node.name] = computed


def _fits(received: np.ndarray, expected: np.ndarray) -> bool:
    """Whether others can be computed of it: as a mask of one that broadcasts with it, as numbers of those that
    broadcast to it."""
    try:
        shape = np.broadcast_shapes(received.shape, expected.shape)
    except ValueError:
        return False
    is_mask = expected.dtype == bool
    return (received.dtype == bool) == is_mask and (is_mask or shape == received.shape)


def _named(graph: Sequence[Node], names: set[str]) -> tuple[Node, ...]:
    return tuple(node for node in graph if node.name in names) if names else ()


def explain(step: Step, config: TransformerConfig, params: Mapping[str, Any], captured: Arrays) -> Finding:
    """Every variant of the node, and of those before it that weren't captured, by how near it comes to what was."""
    if not step.fits:
        return Finding(step.node.name, step.node.kind, step.error, (), None)
    received, where = captured[step.node.name], _attended(step.node, step.known)
    chain = (*step.hidden, step.node)
    found = []
    for number, node in enumerate(chain):
        replay = _replay(node, config, params, {**step.known, step.node.name: received})
        for name, value in outcomes(replay):
            result = _carried(value, node, chain[number + 1 :], config, params, step.known)
            found.append((node, Match(name, np.inf if result is None else distance(received, result, where))))
    found.sort(key=lambda pair: pair[1].residual)
    within = [pair for pair in found if pair[1].residual <= tolerances.FLOAT64_RELATIVE_RMS]
    within.sort(key=lambda pair: pair[1].variant.count(", "))  # variants of one change first
    others = [
        match for _, match in found if match.residual > tolerances.FLOAT64_RELATIVE_RMS and np.isfinite(match.residual)
    ]
    place = within[0][0] if within else step.node
    return Finding(place.name, place.kind, step.error, _told(within, place), others[0] if others else None)


def _told(within: Sequence[tuple[Node, Match]], place: Node) -> tuple[Match, ...]:
    """The matches; those at another node than the first say where."""
    return tuple(
        match if node is place else match._replace(variant=f"{match.variant} (at {node.name})")
        for node, match in within
    )


def _replay(node: Node, config: TransformerConfig, params: Mapping[str, Any], known: Arrays) -> Replay:
    inputs = {argument: known[name] for argument, name in node.inputs.items()}
    parameters = {argument: parameter(params, path) for argument, path in node.parameters.items()}
    return Replay(config, node, inputs, parameters, known, params)


def _carried(
    value: np.ndarray,
    node: Node,
    chain: Sequence[Node],
    config: TransformerConfig,
    params: Mapping[str, Any],
    known: Arrays,
) -> np.ndarray | None:
    """What the last node of the chain becomes, if this one has that value; None where it doesn't depend on it, or can't
    be computed."""
    changed: dict[str, np.ndarray] = {node.name: value}
    for follower in chain:
        if not changed.keys().isdisjoint(follower.inputs.values()):
            try:
                changed[follower.name] = recompute(follower, config, {**known, **changed}, params)
            except ValueError:  # a value of another shape, such as the other side's mask
                return None
    last = chain[-1].name if chain else node.name
    return changed.get(last)


def distance(received: np.ndarray, expected: np.ndarray, where: np.ndarray | None = None) -> float:
    """The relative RMS; of masks the share that differs. Infinite where shapes differ, or what is not finite does; NaN
    for NaN is no difference, as a node that is fed NaN gives it.

    Args:
      where: boolean, broadcastable; inside and outside of it are compared apart, and the larger counts: next to the
        fill values of masked logits nothing else would.
    """
    try:
        shape = np.broadcast_shapes(received.shape, expected.shape)
    except ValueError:
        return np.inf
    if received.dtype == bool or expected.dtype == bool:
        return float(np.mean(received != expected))
    if shape != received.shape:
        return np.inf
    expected = np.broadcast_to(expected, received.shape)
    if where is None and np.isfinite(expected).all():
        error = relative_rms(received, expected) if received.size else 0.0
        return np.inf if np.isnan(error) else error
    inside = np.broadcast_to(True if where is None else where, received.shape)
    counts = np.isfinite(expected) | ~((received == expected) | (np.isnan(received) & np.isnan(expected)))
    errors = [relative_rms(received, expected, part) for part in (inside & counts, ~inside & counts) if part.any()]
    return max((np.inf if np.isnan(error) else error for error in errors), default=0.0)


def _attended(node: Node, known: Arrays) -> np.ndarray | None:
    return known[node.inputs["mask"]] if node.kind == "attention_logits" and "mask" in node.inputs else None


def with_ids(captured: Arrays, source_ids: np.ndarray, decoder_input_ids: np.ndarray) -> dict[str, np.ndarray]:
    """The trace with the model's inputs under their names."""
    return {**captured, **dict(zip(MODEL_INPUTS, (source_ids, decoder_input_ids), strict=True))}
