"""Run the whole graph, or one node on the values in another model's trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.parity.oracle.graph import MODEL_INPUTS, Node, nodes

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig


def forward(
    config: TransformerConfig,
    params: Mapping[str, Any],
    source_ids: np.ndarray,
    decoder_input_ids: np.ndarray,
    *,
    replace: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Returns the trace of the whole model in float64, in execution order, without dropout.

    Args:
      params: the nested dict of `functional.apply`, its leaves of any dtype.
      source_ids, decoder_input_ids: [B, S] and [B, T], integers.
      replace: arrays by name that replace activations or masks; later nodes are computed from them.

    Raises:
      ValueError: a parameter is missing; an id or a position has no row in its table; `replace` has an unknown
        name, or another shape.
    """
    replace, graph = replace or {}, nodes(config)
    unknown = sorted(replace.keys() - {node.name for node in graph})
    if unknown:
        raise ValueError(f"replace: expected names of this model's activations; received {', '.join(unknown)}")
    arrays = dict(zip(MODEL_INPUTS, (np.asarray(source_ids), np.asarray(decoder_input_ids)), strict=True))
    for node in graph:
        array = recompute(node, config, arrays, params)
        if node.name in replace:
            array = _in_place_of(array, _exact(replace[node.name]), node.name)
        arrays[node.name] = array
    return {node.name: arrays[node.name] for node in graph}


def recompute(
    node: Node, config: TransformerConfig, captured: Mapping[str, np.ndarray], params: Mapping[str, Any]
) -> np.ndarray:
    """Returns one node in float64, computed from its parameters and captured ids, masks and activations.

    Non-finite values are valid results.

    Raises:
      ValueError: an input wasn't captured, or a parameter is missing; an id or position has no row in its table.
    """
    missing = [name for name in node.inputs.values() if name not in captured]
    if missing:
        raise ValueError(f"{node.name} is computed from {', '.join(missing)}, which the trace doesn't have")
    inputs = {argument: _exact(captured[name]) for argument, name in node.inputs.items()}
    parameters = {argument: parameter(params, path) for argument, path in node.parameters.items()}
    with np.errstate(all="ignore"):
        return node.compute(config, inputs, parameters)


def parameter(params: Mapping[str, Any], path: str) -> np.ndarray:
    """Returns a parameter or constant in float64; a layer's is named like
    `encoder/layers/self_attention/query/kernel[0]`.

    Raises:
      ValueError: the parameter doesn't exist.
    """
    names, _, index = path.removesuffix("]").partition("[")
    leaf: Any = params
    try:
        for name in names.split("/"):
            leaf = leaf[name]
        return _exact(np.asarray(leaf)[int(index)] if index else leaf)
    except (KeyError, IndexError):
        raise ValueError(f"{path} is not among the parameters, but the config asks for it") from None


def _exact(array: Any) -> np.ndarray:
    """Converts floating-point arrays to float64; returns integers and booleans unchanged."""
    array = np.asarray(array)
    return array if array.dtype.kind in "biu" else array.astype(np.float64, copy=False)


def _in_place_of(array: np.ndarray, given: np.ndarray, name: str) -> np.ndarray:
    if given.shape != array.shape:
        raise ValueError(f"replace: {name}: expected shape {array.shape}, received {given.shape}")
    return given.astype(array.dtype)
