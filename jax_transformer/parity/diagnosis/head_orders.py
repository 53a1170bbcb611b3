"""Recognise an attention with its heads in another order throughout: the same function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.findings import Finding, Match
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.parity.diagnosis.explaining import Explained, Step
from jax_transformer.parity.diagnosis.judging import GATE, measure, rows_of, within
from jax_transformer.parity.oracle.graph import Node, nodes, recompute

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

QUERY, OUTPUT = "query", "output"


def permuted_heads(
    step: Step, config: TransformerConfig, params: Mapping[str, Any], captured: Arrays, masks: Mapping[str, str]
) -> Explained | None:
    """Returns the note on an attention whose queries are correct up to the order of heads; None unless all its captured
    activations have that order, and its output is correct.

    Args:
      captured: the side's whole trace.
      masks: the mask's name by the name of the attention's logits and weights.
    """
    prefix, _, role = step.node.name.rpartition(".")
    if role != QUERY or step.node.kind != "projection" or f"{prefix}.{OUTPUT}" not in captured:
        return None
    own = [node for node in nodes(config) if node.name.startswith(f"{prefix}.")]
    values: dict[str, np.ndarray] = {**step.known}
    for node in own:
        values[node.name] = recompute(node, config, values, params)
    order = _order(step.received, values[step.node.name])
    if not order:
        return None
    hidden: list[Node] = []
    residual = 0.0
    for node in own:
        if node.name not in captured:
            hidden.append(node)
            continue
        axis = _axis(node.name, values[node.name])
        if axis is not None and values[node.name].shape[axis] != len(order):
            return None
        expected = values[node.name] if axis is None else values[node.name].take(order, axis=axis)
        apart = measure(captured[node.name], expected, rows_of(node, values, hidden, masks))
        if apart.effect(step.gate) != "none":
            return None
        residual = max(residual, apart.seen)
    match = Match(f"heads in the order {', '.join(map(str, order))}", residual)
    finding = Finding(step.node.name, step.node.kind, step.error, (match,), None, effect="none", heads=order)
    names = {node.name for node in own}
    known = {name: values[name] for name in names} | {f"{prefix}.{OUTPUT}": captured[f"{prefix}.{OUTPUT}"]}
    return Explained(finding, known, frozenset(names))


def _order(received: np.ndarray, right: np.ndarray) -> tuple[int, ...]:
    """Returns the right number of each received head of [B, T, N, H]; () if they are no permutation, or in order."""
    if received.shape != right.shape or received.ndim != 4:
        return ()
    heads = range(right.shape[2])
    found = [
        [other for other in heads if within(received[:, :, head], right[:, :, other], np.True_) <= GATE]
        for head in heads
    ]
    order = tuple(one[0] for one in found if len(one) == 1)
    return order if sorted(order) == [*heads] != [*order] else ()


def _axis(name: str, array: np.ndarray) -> int | None:
    """Returns the axis of heads of an attention's activation; None if it has none."""
    role = name.rpartition(".")[2]
    if role == OUTPUT or array.ndim != 4:
        return None
    return 1 if role in ("logits", "weights", "position_bias") else 2


def inside_attention(config: TransformerConfig, query: str) -> set[str]:
    """Returns the names of an attention's activations before its output, from the name of its queries."""
    prefix = query.rpartition(".")[0]
    return {
        node.name for node in nodes(config) if node.name.startswith(f"{prefix}.") and node.name != f"{prefix}.{OUTPUT}"
    }


def in_order(arrays: Arrays, findings: Iterable[Finding]) -> Arrays:
    """Returns activations, or their gradients, with the heads of each attention in the model's own order.

    Args:
      findings: findings, including those of `permuted_heads`.
    """
    arranged = dict(arrays)
    for finding in findings:
        prefix = finding.node.rpartition(".")[0]
        for name in arrays if finding.heads else ():
            axis = _axis(name, arrays[name]) if name.startswith(f"{prefix}.") else None
            if axis is not None:
                arranged[name] = arrays[name].take(np.argsort(finding.heads), axis=axis)
    return arranged
