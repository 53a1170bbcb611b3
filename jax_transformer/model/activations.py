"""Activations of the feed-forward's hidden units, by the names that `TransformerConfig.activation` has for them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

Slope = jax.Array | float
"""Slope at negative inputs, which only leaky_relu and prelu read."""

SOFTPLUS_LINEAR_FROM = 20.0
"""Input above which softplus returns it unchanged, as PyTorch's does: the rest is below 2.1e-9."""


def leaky_relu(x: jax.Array, slope: Slope) -> jax.Array:
    """Computes x, or slope · x where x is negative (Maas et al. 2013)."""
    return jnp.where(x >= 0, x, slope * x)


def softplus(x: jax.Array) -> jax.Array:
    """Computes log(1 + exp(x)), and x itself above 20."""
    return jnp.where(x > SOFTPLUS_LINEAR_FROM, x, jax.nn.softplus(x))


ACTIVATIONS: dict[str, Callable[[jax.Array, Slope], jax.Array]] = {
    "relu": lambda x, slope: jax.nn.relu(x),
    "gelu": lambda x, slope: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x, slope: jax.nn.gelu(x, approximate=True),
    "silu": lambda x, slope: jax.nn.silu(x),
    "none": lambda x, slope: x,
    "leaky_relu": leaky_relu,
    "prelu": leaky_relu,
    "elu": lambda x, slope: jax.nn.elu(x),
    "selu": lambda x, slope: jax.nn.selu(x),
    "mish": lambda x, slope: jax.nn.mish(x),
    "quick_gelu": lambda x, slope: x * jax.nn.sigmoid(1.702 * x),
    "relu_squared": lambda x, slope: jnp.square(jax.nn.relu(x)),
    "tanh": lambda x, slope: jnp.tanh(x),
    "sigmoid": lambda x, slope: jax.nn.sigmoid(x),
    "softplus": lambda x, slope: softplus(x),
}
"""(x of any shape, slope) → the activated values, of the same shape and dtype."""
