"""Explain a wrong node: try every variant of it and of the hidden nodes before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jax_transformer.comparison.findings import Effect, Finding, Match
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.parity.diagnosis.judging import GATE, NO_ROWS, Apart, Rows, measure
from jax_transformer.parity.diagnosis.mixed_precision import is_near, narrow_dtype, with_narrow_norm, with_precision
from jax_transformer.parity.faults import Replay, Variant, catalogue, outcomes, rotary
from jax_transformer.parity.faults.masks import fill_names
from jax_transformer.parity.faults.positions import read_from_sum
from jax_transformer.parity.oracle.graph import Node, parameter, recompute

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

BLIND = "fully masked rows have non-uniform weights"
FILL = "masked logits have different values"


class Step(NamedTuple):
    """Holds a captured node that the walk has reached."""

    node: Node
    apart: Apart
    """The distance between the captured value and the right one for the captured values before it."""
    hidden: tuple[Node, ...]
    """The uncaptured nodes leading here, in execution order."""
    known: Arrays
    """All values before it by name, captured or computed."""
    rows: Rows = NO_ROWS
    """The masks that the value depends on."""
    received: np.ndarray = np.zeros(())
    fits: bool = True
    """Whether the captured value has a usable shape; if not, the walk goes on from the computed one."""
    gate: float = GATE
    """The largest distance that passes: larger than GATE if rounding alone explains it."""

    @property
    def effect(self) -> Effect:
        return self.apart.effect(self.gate)

    @property
    def error(self) -> float:
        """Returns the distance that decides."""
        return self.apart.blind if self.effect == "fully masked rows" else self.apart.seen

    @property
    def passes(self) -> bool:
        return self.fits and self.effect == "none"


class Explained(NamedTuple):
    """Holds the explanation of a step, and the values that the walk may take as known after it."""

    finding: Finding | None
    values: Mapping[str, np.ndarray] = {}
    """Values of hidden nodes by name, with the fault that one of them has."""
    done: frozenset[str] = frozenset()
    """Nodes that the explanation covers."""


class Trial(NamedTuple):
    """Holds the result of a step if one node of its chain has one fault."""

    node: Node
    match: Match
    fits_all: bool
    """Whether it fits beyond the deciding values: in fully masked rows, or in the logits that leave the weights
    there."""
    values: Mapping[str, np.ndarray]
    """The values of the chain's nodes, by name; none for a variant that doesn't fit."""


def explain(step: Step, config: TransformerConfig, params: Mapping[str, Any]) -> Explained:
    """Tries all variants of the node, and of the uncaptured ones before it, and ranks them by distance."""
    node, effect, chain = step.node, step.effect, (*step.hidden, step.node)
    found: list[Trial] = []
    for number, one in enumerate(chain):
        for name, value in outcomes(replay_of(one, step, config, params), recognised=effect == "function"):
            values = _carried(value, one, chain[number + 1 :], config, params, step.known)
            last = values.get(node.name)
            apart = Apart(np.inf) if last is None else measure(step.received, last, step.rows)
            residual = apart.under(effect, step.gate)
            fits = residual <= GATE
            fits_all = fits and _fits_elsewhere(apart, effect)
            found.append(Trial(one, Match(name, residual), fits_all, values if fits else {}))
    found.sort(key=lambda trial: trial.match.residual)
    within = [trial for trial in found if trial.match.residual <= GATE]
    within = [trial for trial in within if trial.fits_all] or within
    here = {trial.match.variant for trial in within if trial.node is node}
    within = [trial for trial in within if trial.node is node or trial.match.variant not in here]
    if not within and effect == "function":
        within = _together(step, config, params) or _with_another_base(step, config, params)
    within.sort(key=lambda trial: trial.match.variant.count(", "))  # names of combined changes have commas
    place = within[0].node if within else node
    matches, precision = _with_places(within, place), ""
    if not matches:
        matches, precision = _beyond_the_catalogue(step, config, params)
    rejected = [trial.match for trial in found if trial.match.residual > GATE and np.isfinite(trial.match.residual)]
    rival = rejected[0] if rejected else None
    finding = Finding(place.name, place.kind, step.error, matches, rival, effect=effect, precision=precision)
    values = dict(within[0].values) if within and place is not node else {}
    values.pop(node.name, None)
    return Explained(finding, values)


def _together(step: Step, config: TransformerConfig, params: Mapping[str, Any]) -> list[Trial]:
    """Returns the explanations by one fault of all nodes in the chain: queries and keys rotated by another base, or a
    layer with the weights of another."""
    chain = (*step.hidden, step.node)
    if not 1 < len(chain) <= LONGEST_CHAIN:
        return []
    found = []
    exact = [variant for variant in catalogue(config) if not variant.recognises]
    by_name: dict[str, list[Variant]] = {}
    for variant in exact:
        by_name.setdefault(variant.name, []).append(variant)
    for name, variants in by_name.items():
        if sum(any(one.kind in variant.kinds for variant in variants) for one in chain) < 2:
            continue
        values, nodes = _all_with(variants, step, config, params)
        last = values.get(step.node.name)
        if last is None or len(nodes) < 2:
            continue
        residual = measure(step.received, last, step.rows).under("function", step.gate)
        if residual <= GATE:
            found.append(Trial(nodes[0], Match(f"{name} ({_further_nodes(nodes[1:])})", residual), True, values))
    return found


def _with_another_base(step: Step, config: TransformerConfig, params: Mapping[str, Any]) -> list[Trial]:
    """Returns the explanation by another base of all rotations in the chain: one measured in a captured rotation, or
    one searched for after hidden ones."""
    chain = (*step.hidden, step.node)
    if not any(node.kind in rotary.KINDS for node in chain) or len(chain) > LONGEST_CHAIN:
        return []
    is_seen = step.node.kind in rotary.KINDS
    if not is_seen and step.received.size > LARGEST_SEARCHED:
        return []
    spec = next(node.parts_of(config)["spec"] for node in chain if node.kind in rotary.KINDS)
    for layout in sorted(rotary.LAYOUTS, key=lambda layout: layout != spec.layout):

        def trial(base: float, layout: str = layout) -> Trial | None:
            variant = rotary.with_base(spec, layout, base)
            values, nodes = _all_with([variant], step, config, params)
            last = values.get(step.node.name)
            if last is None:
                return None
            name = f"{variant.name} ({_further_nodes(nodes[1:])})" if len(nodes) > 1 else variant.name
            residual = measure(step.received, last, step.rows).under("function", step.gate)
            return Trial(nodes[0], Match(name, residual), True, values)

        def residual(base: float, trial: Callable[[float], Trial | None] = trial) -> float:
            found = trial(base)
            return np.inf if found is None else found.match.residual

        if is_seen:
            measured = rotary.measured_base(replay_of(step.node, step, config, params), layout)
            bases: Iterable[float] = [] if measured is None else [measured]
        else:
            bases = rotary.searched_bases(residual)
        for base in (number for one in bases for number in rotary.round_numbers(one)):
            found = trial(base) if base != spec.base else None
            if found is not None and found.match.residual <= GATE:
                return [found]
    return []


LARGEST_SEARCHED = 200_000
"""Size of the largest array for which a base is searched, which takes some thousand evaluations."""


def _further_nodes(nodes: Sequence[Node]) -> str:
    more = f" and {len(nodes) - MOST_NODES} more" if len(nodes) > MOST_NODES else ""
    return f"with {', '.join(node.name for node in nodes[:MOST_NODES])}{more}"


MOST_NODES = 3
"""Maximum number of nodes named besides the first faulty one."""
LONGEST_CHAIN = 40
"""Maximum number of consecutive uncaptured nodes that may share one fault."""


def _all_with(
    variants: Sequence[Variant], step: Step, config: TransformerConfig, params: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], list[Node]]:
    """Returns the values of the step's chain if each node has the first of these faults that applies to it, and the
    nodes with one."""
    values: dict[str, np.ndarray] = {}
    faulty = []
    for node in (*step.hidden, step.node):
        own = step._replace(known={**step.known, **values})
        replay = replay_of(node, own, config, params)
        for variant in variants:
            if node.kind in variant.kinds:
                try:
                    with np.errstate(all="ignore"):
                        values[node.name] = variant.compute(replay)
                except (ValueError, LookupError):
                    continue
                faulty.append(node)
                break
        else:
            if not values.keys().isdisjoint(node.inputs.values()):
                try:
                    values[node.name] = recompute(node, config, own.known, params)
                except ValueError:
                    return {}, []
    return values, faulty


def _fits_elsewhere(apart: Apart, effect: Effect) -> bool:
    return (apart.blind_as_given if effect == "fully masked rows" else apart.blind_residual) <= GATE


def _beyond_the_catalogue(
    step: Step, config: TransformerConfig, params: Mapping[str, Any]
) -> tuple[tuple[Match, ...], str]:
    """Returns causes that no single variant describes (fills of any value, fully masked rows, faults in lower
    precision), or the dtype in which the node was computed besides an unknown fault."""
    node, effect = step.node, step.effect
    if effect == "function":
        replay = replay_of(node, step, config, params)
        dtype = narrow_dtype(replay)
        matches = with_precision(replay, dtype) if dtype else with_narrow_norm(replay)
        return matches, dtype if dtype and (matches or is_near(replay, dtype)) else ""
    names = fill_names(replay_of(node, step, config, params)) if node.kind == "attention_logits" else ()
    names = names or ((FILL,) if effect == "none" else (BLIND,))
    return tuple(Match(name, 0.0) for name in names), ""


def _with_places(within: Sequence[Trial], place: Node) -> tuple[Match, ...]:
    """Returns the matches; matches at another node than `place` name it."""
    return tuple(
        match if node is place else match._replace(variant=f"{match.variant} (at {node.name})")
        for node, match, _, _ in within
    )


def replay_of(node: Node, step: Step, config: TransformerConfig, params: Mapping[str, Any]) -> Replay:
    """Returns a node of the step's chain to replay; the received value of a hidden one is inferred if it can be."""
    known = {**step.known, step.node.name: step.received}
    if node.kind == "positions" and step.node.kind == "embedding" and node is not step.node:
        known |= {node.name: read_from_sum(step.node, step.received, step.known)}
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
) -> dict[str, np.ndarray]:
    """Returns the values of the nodes of the chain that depend on this node, given its value; none if one can't be
    computed."""
    changed: dict[str, np.ndarray] = {node.name: value}
    for follower in chain:
        if not changed.keys().isdisjoint(follower.inputs.values()):
            try:
                changed[follower.name] = recompute(follower, config, {**known, **changed}, params)
            except ValueError:  # a value of a wrong shape, such as the other side's mask
                return {}
    return changed
