"""Options of positions, heads, norms and residuals together: models train, decode with a cache, and are what the oracle
of parity computes."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS, has_zero_gradient
from jax_transformer.config.model import TransformerConfig
from jax_transformer.data.batching import Batch
from jax_transformer.model import functional
from jax_transformer.parity.oracle import forward
from jax_transformer.runtime.trees import flatten
from jax_transformer.training.state import all_params, init_state
from jax_transformer.training.step import make_train_step

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

PARALLEL = {"norm_placement": "pre", "parallel_residual": True}
GROUPED = {"num_heads": 4, "decoder_num_heads": 4, "num_kv_heads": 2}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "sublayers side by side, rotary, grouped heads": {
        **PARALLEL,
        **GROUPED,
        "share_norms": True,
        "position_kind": "rotary",
        "position_layout": "halves",
        "rotary_dim": 2,
        "rotary_cross_attention": True,
        "position_index": "non_pad_count",
        "query_key_norm": True,
        "head_scale": True,
        "value_dim": 3,
        "context_norm": "self_attention",
        "sublayer_factor": 0.7,
        "decoder_embedding_factor": 0.5,
    },
    "shared layers, own relative vectors": {
        "share_layers": True,
        "position_kind": "relative_vectors",
        "relative_max_distance": 2,
        "relative_bias_per_layer": True,
        "decoder_value_dim": 7,
        "output_norm": "all",
        "learned_residual_scale": "all",
        "head_scale": True,
        "tie_head": True,
        "embedding_factor": 1.5,
    },
    "norms without scales, of queries and keys too": {
        **GROUPED,
        "norm_scale": False,
        "norm_bias": False,
        "query_key_norm": True,
        "feed_forward_hidden_norm": True,
        "position_kind": "rotary",
        "rotary_base": 50.0,
        "rotary_dim": 4,
        "decoder_norm_placement": "pre",
        "learned_sublayer_scale": "channel",
        "decoder_residual_factor": 1.4,
        "activation": "prelu",
        "decoder_activation": "tanh",
        "decoder_position_kind": "learned",
        "learned_position_scale": True,
    },
    "shared layers, side by side, scaled biases": {
        **PARALLEL,
        "share_layers": True,
        "output_norm": "attention",
        "position_kind": "relative_bias",
        "relative_buckets": 6,
        "relative_max_distance": 5,
        "relative_bias_per_layer": True,
        "relative_bias_factor": 2.0,
        "query_key_norm": True,
        "num_kv_heads": 1,
        "learned_sublayer_scale": "scalar",
        "activation": "relu_squared",
    },
    "residual factors, ALiBi": {
        "position_kind": "alibi",
        "decoder_num_heads": 6,
        "decoder_num_kv_heads": 3,
        "share_norms": True,
        "norm_scale_offset": 1.0,
        "logits_factor": 0.5,
        "residual_factor": 1.3,
        "head_scale": True,
        "activation": "mish",
    },
}
STEPS = 6
OPTIMIZER = optax.sgd(0.02)
"""Of all, it takes the least time to compile."""


class Trained(NamedTuple):
    losses: list[float]
    params: dict[str, Any]


def train(config: TransformerConfig, params: Any, ids: Any) -> Trained:
    """Takes STEPS steps on one batch, whose labels are the decoder's next inputs."""
    labels = np.roll(ids.target, -1, axis=1)
    labels[:, -1] = config.target_pad_id
    state, losses = init_state(config, optimizer=OPTIMIZER, params=params), []
    step = make_train_step(config, optimizer=OPTIMIZER)
    for _ in range(STEPS):
        state, metrics = step(state, Batch(ids.source, ids.target, labels))
        losses.append(float(metrics["loss"]))
    return Trained(losses, jax.device_get(all_params(state)))


def same(received: Any, expected: Any) -> bool:
    return compare(np.asarray(received), np.asarray(expected)).within(FLOAT64_RELATIVE_RMS)


def step_by_step(config: TransformerConfig, params: Any, ids: Any, encoder_output: Any) -> np.ndarray:
    """Logits [B, T, V] of the target ids, fed one by one to a cache longer than they are."""
    state = functional.start_decoding(config, params, encoder_output, ids.source, length=9)
    step = jax.jit(lambda state, tokens: functional.decode_step(config, params, state, tokens))
    columns = []
    for column in range(ids.target.shape[1]):
        logits, state = step(state, ids.target[:, column])
        columns.append(np.asarray(logits))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_options_work_together(config: TransformerConfig, ids: Any, random_params: Any, name: str) -> None:
    """Scanned and unrolled layers learn alike; then the trace is the oracle's, and cached logits are the prefix's."""
    target = ids.target.copy()
    target[1, :2] = 4  # a decoder's input doesn't begin with padding
    ids = ids._replace(target=target)
    config = dataclasses.replace(config, layer_loop="scan", remat="none", **COMBINATIONS[name])
    unrolled = dataclasses.replace(config, layer_loop="unrolled")

    scanned, other = (train(loop, random_params(config), ids) for loop in (config, unrolled))
    np.testing.assert_allclose(scanned.losses, other.losses, rtol=1e-9)
    assert scanned.losses[-1] < 0.97 * scanned.losses[0]
    before = flatten(random_params(config))
    for path, leaf in flatten(scanned.params).items():
        if not (path.startswith("constants/") or has_zero_gradient(path)):
            assert not np.array_equal(leaf, before[path]), path

    params = scanned.params
    logits, trace = functional.apply(config, params, ids.source, ids.target, return_trace=True)
    expected = forward(config, params, ids.source, ids.target)
    assert list(trace) == list(expected)
    for activation, array in expected.items():
        where = array != np.finfo(np.float64).min
        assert compare(np.asarray(trace[activation]), array, where).within(FLOAT64_RELATIVE_RMS), activation
    assert same(functional.apply(unrolled, params, ids.source, ids.target), logits)

    encoder_output = functional.encode(config, params, ids.source)
    assert same(step_by_step(config, params, ids, encoder_output), logits)
