"""The JAX model's trace, operation by operation, and what the truth in NumPy has to agree in with it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.parity.oracle import forward, nodes, recompute
from jax_transformer.parity.oracle.graph import model_inputs

SIZES: dict[str, Any] = {
    "source_vocab_size": 13, "target_vocab_size": 11, "d_model": 12, "num_heads": 3, "d_ff": 7, "num_encoder_layers": 1,
    "num_decoder_layers": 2, "max_length": 9, "source_pad_id": 1, "target_pad_id": 2, "dropout_rate": 0.0,
}  # fmt: skip


def jax_trace(config: TransformerConfig, params: Any, ids: Any) -> dict[str, np.ndarray]:
    """Computed operation by operation: compiled as a whole, each config would take longer by far."""
    with jax.disable_jit():
        _, trace = functional.apply(config, params, ids.source, ids.target, return_trace=True)
    return {name: np.asarray(array) for name, array in trace.items()}


def assert_same(received: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Shape and dtype, masks and the lowest of numbers exactly, everything else to the gate."""
    assert (received.shape, received.dtype) == (expected.shape, expected.dtype), name
    if expected.dtype == bool:
        np.testing.assert_array_equal(received, expected, err_msg=name)
        return
    is_lowest = expected == np.finfo(np.float64).min
    np.testing.assert_array_equal(received == np.finfo(np.float64).min, is_lowest, err_msg=name)
    result = compare(received, expected, None if is_lowest.all() else ~is_lowest)
    assert result.within(FLOAT64_RELATIVE_RMS), f"{name}: {result}"


def assert_is_the_models(config: TransformerConfig, params: Any, ids: Any) -> None:
    """The whole trace, and every node by itself from what the JAX model fed it."""
    expected = jax_trace(config, params, ids)
    received = forward(config, params, ids.source, ids.target)
    assert list(received) == list(expected)
    given = expected | model_inputs(config, *ids)
    for node in nodes(config):
        assert_same(received[node.name], expected[node.name], node.name)
        assert_same(recompute(node, config, given, params), expected[node.name], node.name)
