"""Recognise a side that zeroes positions of padding that no counted position reads: the same function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.findings import Finding, Match
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.parity.diagnosis.explaining import Explained, Step
from jax_transformer.parity.diagnosis.judging import GATE, stack_of, within
from jax_transformer.parity.oracle.graph import MODEL_INPUTS, Kind, forward, given_inputs, nodes, recompute

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

ZERO = "positions of padding are zero"
"""The variant of a note; arrays are then compared without these positions."""
NOT_OF_POSITIONS: frozenset[Kind] = frozenset(
    {"mask", "positions", "token_embedding", "position_bias", "attention_logits", "attention_weights"}
)
"""Kinds without features at each position, and kinds whose zeros are faults with names."""


def zeroed_padding(
    step: Step, computed: np.ndarray, config: TransformerConfig, params: Mapping[str, Any]
) -> Explained | None:
    """Returns the note on a step with zeros exactly at padding, in its value or in an uncaptured input; None if there
    is another difference, or if a counted position reads the padding.

    Args:
      computed: the correct value for the captured values before it.
    """
    if step.effect != "function" or step.node.kind in NOT_OF_POSITIONS:
        return None
    pads = ~_is_real(config, step.known)[stack_of(step.node)]
    if step.received.shape[:2] != pads.shape or not pads.any():
        return None
    at = pads.reshape(*pads.shape, *[1] * (step.received.ndim - 2))
    elsewhere = ~at if step.rows.blind is None else ~at & ~step.rows.blind
    if within(step.received, computed, elsewhere) > step.gate:
        return None
    is_zero = not np.any(np.where(at, step.received, 0.0))
    if not (is_zero or _follows_from_zeros(step, config, params)) or _is_read(step, at, config, params):
        return None
    finding = Finding(step.node.name, step.node.kind, step.error, (Match(ZERO, 0.0),), None, effect="none")
    return Explained(finding)


def _follows_from_zeros(step: Step, config: TransformerConfig, params: Mapping[str, Any]) -> bool:
    """Returns whether the value is the right one if one of its inputs, or a hidden node before it, is zero at pads."""
    chain = (*step.hidden, step.node)
    real = _is_real(config, step.known)
    graph = {node.name: node for node in nodes(config)}
    for name in dict.fromkeys(name for node in chain for name in node.inputs.values() if name in graph):
        where = real[stack_of(graph[name])]
        if graph[name].kind in NOT_OF_POSITIONS or step.known[name].shape[:2] != where.shape:
            continue
        zeroed = np.where(where.reshape(*where.shape, *[1] * (step.known[name].ndim - 2)), step.known[name], 0.0)
        values = {**step.known, name: zeroed}
        for node in chain:
            if node.name != name:
                values[node.name] = recompute(node, config, values, params)
        if within(step.received, values[step.node.name], np.True_) <= GATE:
            return True
    return False


def _is_read(step: Step, at: np.ndarray, config: TransformerConfig, params: Mapping[str, Any]) -> bool:
    """Returns whether the value at padding changes the logits of a position that counts."""
    inputs = given_inputs(config, step.known)
    right = forward(config, params, *inputs)
    replaced = {step.node.name: np.where(at, step.received, right[step.node.name])}
    logits = forward(config, params, *inputs, replace=replaced)["logits"]
    counts = counting(config, *(step.known[name] for name in MODEL_INPUTS))
    return within(logits, right["logits"], counts[..., None]) > GATE


def counting(config: TransformerConfig, source_ids: np.ndarray, decoder_input_ids: np.ndarray) -> np.ndarray:
    """Returns the target positions [B, T] whose logits count: tokens, and a first pad that may start the decoder, in
    sentences with a source."""
    counts = decoder_input_ids != config.target.pad_id
    counts[:, 0] |= config.decoder.self_attention.padding == "none"
    return counts & (source_ids != config.source.pad_id).any(axis=1, keepdims=True)


def with_padding(config: TransformerConfig, name: str) -> set[str]:
    """Returns the names of the activations at the positions of a stack, without the logits."""
    graph = {node.name: node for node in nodes(config)}
    own = stack_of(graph[name])
    return {other for other, node in graph.items() if stack_of(node) == own and other != "logits"}


def where_not_padding(
    config: TransformerConfig, ids: tuple[np.ndarray, np.ndarray], arrays: Arrays
) -> dict[str, np.ndarray]:
    """Returns masks, broadcastable to the arrays, of values at positions that aren't padding, by name."""
    source, target = ids
    real = {"encoder": source != config.source.pad_id, "decoder": counting(config, source, target)}
    found = {}
    for node in nodes(config):
        array, where = arrays.get(node.name), real[stack_of(node)]
        if array is None or node.kind in ("mask", "positions", "position_bias") or array.shape[0] != len(where):
            continue
        if node.kind in ("attention_logits", "attention_weights"):
            keys = real["encoder" if "cross_attention" in node.name else stack_of(node)]
            found[node.name] = where[:, None, :, None] & keys[:, None, None, :]  # [B, 1, Q, K]
        else:
            found[node.name] = where.reshape(*where.shape, *[1] * (array.ndim - 2))
    return found


def _is_real(config: TransformerConfig, known: Arrays) -> dict[str, np.ndarray]:
    """Returns a mask of each stack's positions [B, T] that aren't padding."""
    source, target = (known[name] for name in MODEL_INPUTS)
    return {"encoder": source != config.source.pad_id, "decoder": target != config.target.pad_id}
