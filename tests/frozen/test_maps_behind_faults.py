"""Behind a wrong ε, the map between weights is still found, and quickly."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import ports
import pytest

from jax_transformer.matching import find_map
from jax_transformer.matching.search import Search

IDS = {"input_ids": np.random.default_rng(0).integers(0, 101, (2, 8))}
NAMES = {
    "first_norm": "input_layernorm",
    "second_norm": "post_attention_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
LAYERS = range(ports.SIZES["layers"])


def tensors() -> dict[str, np.ndarray]:
    """Returns the weights as the original has them: layer by layer, kernels [out, in]."""
    stacked = ports.zeros()["layers"]
    of_layers = {f"layers.{i}.{name}": stacked[ours][i].T for i in LAYERS for ours, name in NAMES.items()}
    zeros = ports.zeros()
    return {"embed": zeros["words"], **of_layers, "norm": zeros["norm"], "lm_head": zeros["head"].T}


def original(weights: Any, inputs: Any) -> Any:
    layers = {ours: jnp.stack([weights[f"layers.{i}.{name}"].T for i in LAYERS]) for ours, name in NAMES.items()}
    params = {"words": weights["embed"], "layers": layers, "norm": weights["norm"], "head": weights["lm_head"].T}
    return ports.llama(params, inputs)


def with_another_epsilon(params: Any, inputs: Any) -> Any:
    return ports.llama(params, inputs, 1e-5)


def test_each_norm_has_its_partner_behind_a_wrong_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, own = list[int](), Search.after

    def after(search: Search, state: Any, node: int, guess: Any) -> Any:
        tried.append(node)
        return own(search, state, node, guess)

    monkeypatch.setattr(Search, "after", after)
    zeros = ports.zeros()
    found = find_map(with_another_epsilon, original, IDS, candidate_params=zeros, reference_params=tensors())
    assert found.verdict == "refuted"
    start, expected = 0, dict[str, np.ndarray]()
    for name, shape in found.tensors.items():
        expected[name] = np.arange(start, start := start + math.prod(shape)).reshape(shape)
    for ours, name in NAMES.items():
        for i in LAYERS:
            places = expected[f"layers.{i}.{name}"].T
            np.testing.assert_array_equal(found.partners[f"layers/{ours}"][i], places, err_msg=f"{ours} of layer {i}")
    assert len(tried) < 600  # orders of features bring no ε back
