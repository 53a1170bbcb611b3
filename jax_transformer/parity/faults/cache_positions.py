"""Replays the decoder's nodes with every token but the first one position off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.decoding import Captured
from jax_transformer.parity.oracle.graph import Node, nodes, parameter

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig
    from jax_transformer.config.positions import RelativeVectors


def at_other_positions(
    config: TransformerConfig, params: Mapping[str, Any], by: int
) -> dict[str, Callable[[Captured], np.ndarray]]:
    """Returns the nodes that depend on the targets' positions, by name, as functions with positions `by` off."""
    return {
        node.name: partial(SHIFTED[node.kind], config=config, params=params, node=node, by=by)
        for node in nodes(config.while_decoding())
        if node.name.startswith("decoder.") and _depends_on_positions(node)
    }


def _depends_on_positions(node: Node) -> bool:
    """Returns whether a node of the decoder computes with the positions of targets."""
    if node.kind in ("attention_logits", "context"):
        return bool(node.parameters)
    return node.kind in SHIFTED and "source_ids" not in node.inputs.values()


def _shifted_positions(
    captured: Captured, *, config: TransformerConfig, params: Mapping[str, Any], node: Node, by: int
) -> np.ndarray:
    numbers = _shifted_numbers(captured, config, node, by)
    return formulas.rows(parameter(params, node.parameters["table"]), numbers)


def _shifted_numbers(captured: Captured, config: TransformerConfig, node: Node, by: int) -> np.ndarray:
    parts = node.parts_of(config)
    numbers = formulas.position_numbers(parts["spec"], parts["tokens"], captured["decoder_input_ids"]).copy()
    numbers[:, 1:] += by
    return numbers


def _shifted_bias(
    captured: Captured, *, config: TransformerConfig, params: Mapping[str, Any], node: Node, by: int
) -> np.ndarray:
    """Returns the bias for queries that are one off and keys that aren't."""
    length = captured["decoder_input_ids"].shape[1]
    parameters = {role: parameter(params, path) for role, path in node.parameters.items()}
    bias = node.compute(config, {"ids": np.zeros((1, length + 1), int)}, parameters)
    return bias[:, :, _shifted_queries(length, by), :length]


def _shifted_queries(length: int, by: int) -> np.ndarray:
    queries = np.arange(length)
    return np.where(queries > 0, queries + by, 0)


def _shifted_logits(
    captured: Captured, *, config: TransformerConfig, params: Mapping[str, Any], node: Node, by: int
) -> np.ndarray:
    """Returns logits with the vectors of distances from queries that are one off."""
    inputs = {role: captured[name] for role, name in node.inputs.items()}
    query, table = inputs["query"], parameter(params, node.parameters["relative_keys"])
    parts = node.parts_of(config)
    products = formulas.relative_products(query, table, _shifted_rows(parts["vectors"], query.shape[1], by))
    bias = formulas.attention_scale(parts["spec"], query) * products
    return node.compute(config, {**inputs, "position_bias": bias}, {})


def _shifted_context(
    captured: Captured, *, config: TransformerConfig, params: Mapping[str, Any], node: Node, by: int
) -> np.ndarray:
    """Returns the context with the vectors of distances from queries that are one off."""
    inputs = {role: captured[name] for role, name in node.inputs.items()}
    context = node.compute(config, inputs, {})
    vectors = node.parts_of(config)["vectors"]
    weights, table = inputs["weights"], parameter(params, node.parameters["relative_values"])
    return context + formulas.relative_context(weights, table, _shifted_rows(vectors, weights.shape[2], by))


def _shifted_rows(vectors: RelativeVectors, length: int, by: int) -> np.ndarray:
    return formulas.relative_rows(vectors, length + 1)[_shifted_queries(length, by), :length]


def _shifted_rotation(
    captured: Captured, *, config: TransformerConfig, params: Mapping[str, Any], node: Node, by: int
) -> np.ndarray:
    spec, numbers = node.parts_of(config)["spec"], _shifted_numbers(captured, config, node, by)
    x = captured[node.inputs["x"]]
    angles = numbers[:, :, None, None] * formulas.rotary_frequencies(spec, x.shape[-1])
    return formulas.rotated(spec, x, np.cos(angles), np.sin(angles))


SHIFTED: dict[str, Callable[..., np.ndarray]] = {
    "positions": _shifted_positions,
    "position_bias": _shifted_bias,
    "rotation": _shifted_rotation,
    "attention_logits": _shifted_logits,
    "context": _shifted_context,
}
