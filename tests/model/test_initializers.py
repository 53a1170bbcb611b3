"""Initial weights: bounds and statistics of each policy, alone and in a model."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional, initializers
from jax_transformer.runtime.trees import flatten

pytestmark = pytest.mark.usefixtures("quick_compilation")

FAN_IN, FAN_OUT = 300, 200
FANS = {"fan_in": FAN_IN, "fan_out": FAN_OUT}
SIGMAS = 5
POLICIES = ("xavier_uniform", "torch", "kaiming_uniform", "fairseq")
XAVIER = math.sqrt(6 / (FAN_IN + FAN_OUT))


def config_of(policy: str, width: int = FAN_IN) -> TransformerConfig:
    return TransformerConfig(d_model=width, num_heads=2, initializer=policy)  # type: ignore[arg-type]


def assert_uniform(values: Any, bound: float) -> None:
    """Within ±bound, near it at both ends, and with a uniform distribution's mean and variance."""
    values = np.asarray(values, np.float64).ravel()
    assert np.abs(values).max() <= bound * (1 + 1e-6)
    assert min(values.max(), -values.min()) > bound * (1 - 20 / values.size)
    assert abs(values.mean()) < SIGMAS * bound / math.sqrt(3 * values.size)
    assert abs(values.var() / (bound**2 / 3) - 1) < SIGMAS * math.sqrt(
        0.8 / values.size
    )  # Var[u²] = 4/45, (1/3)² · 0.8


def assert_normal(values: Any, deviation: float) -> None:
    values = np.asarray(values, np.float64).ravel() / deviation
    assert abs(values.mean()) < SIGMAS / math.sqrt(values.size)
    assert abs(values.var() - 1) < SIGMAS * math.sqrt(2 / values.size)
    assert abs((np.abs(values) > 1).mean() - 0.3173) < SIGMAS * math.sqrt(0.3173 * 0.6827 / values.size)


@pytest.mark.parametrize(
    ("policy", "role", "bound"),
    [
        ("xavier_uniform", "", XAVIER),
        ("xavier_uniform", "query_key_value", XAVIER),
        ("xavier_uniform", "head", XAVIER),
        ("torch", "", 1 / math.sqrt(FAN_IN)),
        ("torch", "head", 1 / math.sqrt(FAN_IN)),
        ("kaiming_uniform", "", math.sqrt(6 / FAN_IN)),
        ("kaiming_uniform", "query_key_value", math.sqrt(6 / FAN_IN)),
        ("fairseq", "", XAVIER),
        ("fairseq", "query_key_value", XAVIER / math.sqrt(2)),
    ],
)
def test_kernels_are_uniform_within_the_policys_bound(policy: str, role: str, bound: float) -> None:
    assert_uniform(
        initializers.kernel(config_of(policy), jax.random.key(0), (FAN_IN, FAN_OUT), **FANS, role=role), bound
    )


def test_fairseqs_head_is_normal() -> None:
    assert_normal(
        initializers.kernel(config_of("fairseq"), jax.random.key(0), (FAN_IN, FAN_OUT), **FANS, role="head"),
        FAN_IN**-0.5,
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_biases(policy: str) -> None:
    bias = initializers.bias(config_of(policy), jax.random.key(0), (20_000,), FAN_IN)
    if policy == "fairseq":
        assert not np.any(bias)
    else:
        assert_uniform(bias, 1 / math.sqrt(FAN_IN))


def test_embeddings() -> None:
    rows, key = 170, jax.random.key(1)
    tables = {
        policy: np.asarray(initializers.embedding(config_of(policy), key, (rows, FAN_IN), 7)) for policy in POLICIES
    }
    assert_uniform(tables["xavier_uniform"], math.sqrt(6 / (FAN_IN + rows)))
    assert_uniform(tables["kaiming_uniform"], math.sqrt(6 / FAN_IN))
    assert_normal(tables["torch"], 1.0)
    assert all(tables[policy][7].any() for policy in ("xavier_uniform", "kaiming_uniform", "torch"))  # the pad row too
    assert not tables["fairseq"][7].any()
    assert_normal(np.delete(tables["fairseq"], 7, axis=0), FAN_IN**-0.5)
    assert initializers.embedding(config_of("fairseq"), key, (rows, FAN_IN), None).any(axis=1).all()


# --- in a model


def options(policy: str) -> dict[str, Any]:
    return {
        "source_vocab_size": 90,
        "target_vocab_size": 70,
        "d_model": 60,
        "num_heads": 3,
        "head_dim": 25,
        "d_ff": 110,
        "max_length": 5,
        "num_encoder_layers": 2,
        "num_decoder_layers": 1,
        "source_pad_id": 3,
        "target_pad_id": 4,
        "initializer": policy,
        "attention_output_bias": False,
    }


@pytest.mark.parametrize("policy", ["xavier_uniform", "fairseq"])
def test_every_matrix_has_its_own_fans(policy: str) -> None:
    """A projection into or out of heads counts all of them: query is 60 → 75, output 75 → 60."""
    params = functional.init_params(TransformerConfig(**options(policy)), jax.random.key(0))
    gain = 1 / math.sqrt(2) if policy == "fairseq" else 1.0
    layers = params["encoder"]["layers"]
    for name in ("query", "key", "value"):
        assert_uniform(layers["self_attention"][name]["kernel"], gain * math.sqrt(6 / (60 + 75)))
    assert_uniform(layers["self_attention"]["output"]["kernel"], math.sqrt(6 / (75 + 60)))
    assert_uniform(layers["feed_forward"]["hidden"]["kernel"], math.sqrt(6 / (60 + 110)))
    assert_uniform(layers["feed_forward"]["output"]["kernel"], math.sqrt(6 / (110 + 60)))
    assert "bias" not in layers["self_attention"]["output"]
    source, target = params["source_embedding"]["embedding"], params["target_embedding"]["embedding"]
    if policy == "xavier_uniform":
        assert_uniform(params["head"]["kernel"], math.sqrt(6 / (60 + 70)))
        assert_uniform(source, math.sqrt(6 / (90 + 60)))
        assert np.abs(layers["feed_forward"]["output"]["bias"]).max() <= 1 / math.sqrt(110)
        assert np.abs(layers["feed_forward"]["hidden"]["bias"]).max() > 1 / math.sqrt(110)
    else:
        assert_normal(params["head"]["kernel"], 60**-0.5)
        assert not source[3].any()
        assert not target[4].any()
        assert source[4].any()
        assert target[3].any()
        assert not any(
            leaf.any() for path, leaf in jax.tree_util.tree_leaves_with_path(params) if path[-1].key == "bias"
        )
    assert all(
        (leaf == 1).all() for path, leaf in jax.tree_util.tree_leaves_with_path(params) if path[-1].key == "scale"
    )

    # no two draws are the same: layers, sublayers, stacks
    kernels = [
        row
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if path[-1].key == "kernel"
        for row in unstack(path, leaf)
    ]
    assert len({np.asarray(kernel).tobytes() for kernel in kernels}) == len(kernels) == 2 * 6 + 10 + 1
    scaled = [np.asarray(kernel).ravel()[:20] / np.abs(kernel).max() for kernel in kernels]
    assert not any(np.allclose(a, b, atol=1e-3) for i, a in enumerate(scaled) for b in scaled[:i])


def unstack(path: Any, leaf: Any) -> list[Any]:
    return list(leaf) if path[1].key == "layers" else [leaf]


def test_the_key_decides() -> None:
    config = TransformerConfig(**options("fairseq"))
    first, same, other = (flatten(functional.init_params(config, jax.random.key(seed))) for seed in (0, 0, 1))
    for path, leaf in first.items():
        np.testing.assert_array_equal(leaf, same[path])
        assert np.array_equal(leaf, other[path]) == (not path.endswith(("kernel", "embedding"))), path


@pytest.mark.parametrize("x64", [False, True])
def test_fresh_parameters_are_float32(config: TransformerConfig, x64: bool) -> None:
    with jax.enable_x64(x64):
        dtypes = {
            str(leaf.dtype)
            for leaf in jax.tree.leaves(functional.abstract_params(dataclasses.replace(config, tie_head=True)))
        }
    assert dtypes == {"float32"}
