"""Find out which activations of a module can be compared: what it shows of its attentions when it runs.

A map of names promises the logits and weights of every softmax. A module may compute its weights without one, as
exp(s − logsumexp(s)), or apply the mask after it. Nothing is then seen there, or other logits than attention's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.parity.diagnosis.nodes import diagnose, with_ids
from jax_transformer.parity.oracle.graph import Node, nodes
from jax_transformer.parity.oracle.replay import recompute

if TYPE_CHECKING:
    from jax_transformer.comparison.gates.arrays import Arrays
    from jax_transformer.config.model import TransformerConfig
    from jax_transformer.parity.problems import Problem

OF_ATTENTION = ("mask", "attention_logits", "attention_weights")


def unseen(config: TransformerConfig, problem: Problem, trace: Arrays) -> frozenset[str]:
    """Returns the masks, and the logits and weights of attentions, that a module doesn't show on a problem.

    Args:
      trace: what it shows; masks as they are inferred from logits.
    """
    graph = nodes(config)
    internal = [node for node in graph if node.kind in OF_ATTENTION]
    missing = {node.name for node in internal if node.name not in trace}
    trace = with_shared_masks(config, problem, trace)
    masks = right_masks(config, problem.params, with_ids(trace, *problem.ids))
    wrong = {name for name, mask in masks.items() if name in trace and not _same(mask, trace[name])}
    if not wrong:
        return frozenset(missing)
    of_wrong = {node.name for node in internal if _mask_of(node, graph) in wrong}
    without = {name: array for name, array in trace.items() if name not in of_wrong}
    found = diagnose(config, problem.params, with_ids(without, *problem.ids))
    fits = not any(finding.effect == "function" for finding in found)
    return frozenset(missing | (of_wrong if fits else set()))


def with_shared_masks(config: TransformerConfig, problem: Problem, trace: Arrays) -> dict[str, np.ndarray]:
    """Returns the trace with the right mask in place of an inferred one if an attention applies it.

    A mask is read from the logits of one attention, by their size. That attention may be the one at fault, or masked
    logits may be larger than usual.
    """
    masks = right_masks(config, problem.params, with_ids(trace, *problem.ids))
    shared = dict(trace)
    for node in nodes(config):
        name = node.inputs.get("mask", "")
        is_wrong = name in shared and node.name in trace and not _same(masks[name], shared[name])
        if is_wrong and _applies(trace[node.name], masks[name]):
            shared[name] = masks[name]
    return shared


def right_masks(config: TransformerConfig, params: Mapping[str, Any], known: Arrays) -> dict[str, np.ndarray]:
    """Returns the model's masks for the ids in `known`, by name."""
    return {node.name: recompute(node, config, known, params) for node in nodes(config) if node.kind == "mask"}


def _mask_of(node: Node, graph: tuple[Node, ...]) -> str:
    """Returns the name of the mask that a node is, or that an attention's logits or weights have; "" for none."""
    if node.kind == "mask":
        return node.name
    logits = node if node.kind == "attention_logits" else _named(graph, node.inputs["logits"])
    return logits.inputs.get("mask", "")


def _named(graph: tuple[Node, ...], name: str) -> Node:
    return next(node for node in graph if node.name == name)


def _same(mask: np.ndarray, other: np.ndarray) -> bool:
    try:
        return bool((mask == other).all())
    except ValueError:  # of other shapes
        return False


def _applies(logits: np.ndarray, mask: np.ndarray) -> bool:
    """Returns whether logits have this mask: all that are masked are very low, or have one value.

    Scores of trained models may be as low as fills. They are of many values, where another mask's fill is one.
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
