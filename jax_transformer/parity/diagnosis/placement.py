"""Recognise a layer with misplaced norms: pre-norm in a post-norm model, or the reverse.

Nearly every node of such a layer differs from the model's graph, and hooks capture the residual stream under the names
of the other placement. So the layer is replayed as a whole with the other placement: if every captured value then fits,
that is the single cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.findings import Finding, Match
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.parity.diagnosis.explaining import Explained, Step
from jax_transformer.parity.diagnosis.judging import measure, rows_of
from jax_transformer.parity.oracle.graph import Node, nodes, place, placement_of, recompute

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

NAMES = {"pre": "norms after the sublayers of this layer (post-norm)", "post": "norms before its sublayers (pre-norm)"}
"""The cause by the model's own placement."""
LEAST = 3
"""The least number of nodes that must fit."""


def misplaced_norms(
    step: Step, config: TransformerConfig, params: Mapping[str, Any], captured: Arrays, masks: Mapping[str, str]
) -> Explained | None:
    """Explains a step by its whole layer with the other placement of norms; returns None if it doesn't fit.

    Args:
      captured: the side's whole trace.
      masks: the mask's name by the name of the attention's logits and weights.
    """
    stack, layer, _ = place(step.node.name)
    if layer is None or stack is None or step.effect != "function":
        return None
    own_stack = getattr(config, stack)
    placement = placement_of(own_stack)
    if placement == "none":
        return None
    turned = replace(own_stack, norm_placement="post" if placement == "pre" else "pre")
    try:
        other = replace(config, **{stack: turned})
    except ValueError:  # the layers' further parts need their own placement
        return None
    own = [node for node in nodes(config) if place(node.name)[:2] == (stack, layer)]
    replayed = [node for node in nodes(other) if place(node.name)[:2] == (stack, layer)]
    values: dict[str, np.ndarray] = {**step.known}
    hidden: list[Node] = []
    residuals = {}
    for node in replayed:
        computed = recompute(node, other, values, params)
        if node.name not in captured or _is_stream(node):
            hidden.append(node)
            values[node.name] = computed
            continue
        apart = measure(captured[node.name], computed, rows_of(node, values, hidden, masks))
        if apart.effect(step.gate) != "none":
            return None
        residuals[node.name] = apart.seen
        values[node.name] = captured[node.name]
    if len(residuals) < LEAST or not _is_covered(step, own, residuals):
        return None
    end = f"{stack}.output"
    done = {node.name for node in own} | {
        node.name for node in nodes(config) if node.name == end and node.kind == "same" and _reads(node, own)
    }
    values |= dict.fromkeys(done - values.keys(), values[own[-1].name])
    first = next(node for node in replayed if place(node.name).path[-1].endswith("_norm"))
    match = Match(NAMES[placement], max(residuals.values()))
    finding = Finding(first.name, first.kind, step.error, (match,), None)
    return Explained(finding, {name: values[name] for name in done}, frozenset(done))


def _is_covered(step: Step, own: list[Node], residuals: Mapping[str, float]) -> bool:
    """Returns whether the faulty node fits, or has another name under the other placement."""
    return step.node.name in residuals or (_is_stream(step.node) and step.node in own)


def _is_stream(node: Node) -> bool:
    """Returns whether a node is the residual stream, which hooks capture under the other placement's name."""
    return node.kind in ("residual", "same")


def _reads(node: Node, layer: list[Node]) -> bool:
    return not {one.name for one in layer}.isdisjoint(node.inputs.values())
