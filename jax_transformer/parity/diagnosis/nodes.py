"""Find the nodes that compute something else than they should, and their causes, by replaying each on its own inputs.

The walk follows the graph of the truth in execution order. It compares each captured node with the right value for the
captured values before it, and then goes on from the captured value. Later nodes are thus judged by their own inputs,
and every fault is found whatever the others do. Nodes that weren't captured are computed; a fault among them shows at
the next captured node, and every variant of each of them is tried.
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
    """Holds a captured node that the walk has reached."""

    node: Node
    error: float
    """The distance between the captured value and the right one for the captured values before it."""
    hidden: tuple[Node, ...]
    """The nodes leading here that weren't captured, in execution order."""
    known: Arrays
    """All values before it by name, captured or computed."""
    fits: bool = True
    """Whether the captured value has a usable shape; if not, the walk goes on from the computed one."""


def diagnose(config: TransformerConfig, params: Mapping[str, Any], captured: Arrays) -> list[Finding]:
    """Returns all faulty nodes in execution order, each judged by its own inputs.

    Args:
      params: the parameters that the model should have.
      captured: its ids, and its known masks and activations, by name.
    """
    return [explain(step, config, params, captured) for step in walk(config, params, captured) if not passes(step)]


def passes(step: Step) -> bool:
    return step.error <= tolerances.FLOAT64_RELATIVE_RMS


def walk(config: TransformerConfig, params: Mapping[str, Any], captured: Arrays) -> Iterator[Step]:
    """Yields every captured node in execution order with its local error.

    All steps share `known`, which grows while the walk goes on.
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
    """Returns whether later nodes can be computed from it: masks must broadcast with the expected ones, and expected
    numbers to the received."""
    try:
        shape = np.broadcast_shapes(received.shape, expected.shape)
    except ValueError:
        return False
    is_mask = expected.dtype == bool
    return (received.dtype == bool) == is_mask and (is_mask or shape == received.shape)


def _named(graph: Sequence[Node], names: set[str]) -> tuple[Node, ...]:
    return tuple(node for node in graph if node.name in names) if names else ()


def explain(step: Step, config: TransformerConfig, params: Mapping[str, Any], captured: Arrays) -> Finding:
    """Tries all variants of the node, and of the uncaptured ones before it, and ranks them by distance."""
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
    return Finding(place.name, place.kind, step.error, _with_places(within, place), others[0] if others else None)


def _with_places(within: Sequence[tuple[Node, Match]], place: Node) -> tuple[Match, ...]:
    """Returns the matches; those at another node than the first say where."""
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
    """Returns the value of the chain's last node if this one has that value; None if it doesn't depend on it, or can't
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
    """Returns the relative RMS of the difference; for masks, the share of values that differ.

    It is infinite if shapes or non-finite values differ. NaN equals NaN, as a node with NaN inputs returns it.

    Args:
      where: boolean, broadcastable; values inside and outside it are compared separately, and the larger distance
        counts, as beside the fill values of masked logits no other logit would.
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
    """Returns the trace with the model's inputs added under their names."""
    return {**captured, **dict(zip(MODEL_INPUTS, (source_ids, decoder_input_ids), strict=True))}
