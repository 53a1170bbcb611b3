"""Activations against the formulas of the truth, near zero, far from it and on either side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.model.activations import ACTIVATIONS
from jax_transformer.parity.oracle import activations

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

X = np.concatenate([[-800.0, -37.0, -1e-8, 0.0, 1e-8, 19.9, 20.1, 700.0], np.linspace(-6.0, 6.0, 41)])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_its_formula(name: Any) -> None:
    slope = 0.3 if name == "leaky_relu" else 0.01
    config = TransformerConfig(activation=name, activation_slope=slope)
    expected = activations.activation(config.encoder.feed_forward, X, np.array([0.3]))
    received = ACTIVATIONS[name](jnp.asarray(X), 0.3)
    np.testing.assert_allclose(received, expected, rtol=1e-14, atol=1e-15)
    np.testing.assert_array_equal(np.isfinite(jax.vmap(jax.grad(ACTIVATIONS[name]), (0, None))(X, 0.3)), True)


def test_no_two_are_the_same() -> None:
    values = [np.asarray(ACTIVATIONS[name](jnp.asarray(X), 0.3)) for name in ACTIVATIONS if name != "prelu"]
    assert all(np.abs(a - b).max() > 1e-4 for i, a in enumerate(values) for b in values[:i])


@pytest.mark.parametrize("name", ["silu", "leaky_relu", "quick_gelu"])
def test_the_dtype_stays(name: str) -> None:
    assert ACTIVATIONS[name](jnp.ones(2, jnp.bfloat16), 0.3).dtype == jnp.bfloat16


def test_the_slope_of_a_prelu_begins_at_a_quarter_and_is_trained(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    config = dataclasses.replace(config, activation="prelu")
    first = functional.init_params(config, jax.random.key(0))
    assert first["decoder"]["layers"]["feed_forward"]["slope"].tolist() == [[0.25], [0.25]]
    gradients = jax.grad(lambda params: functional.apply(config, params, *ids).sum())(random_params(config))
    assert (np.abs(gradients["decoder"]["layers"]["feed_forward"]["slope"]) > 1e-3).all()
