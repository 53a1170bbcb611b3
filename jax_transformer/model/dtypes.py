"""The precision policy: parameters are kept wide, products use the compute dtype, norms and softmax at least
float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_transformer.config.model import TransformerConfig


def at_least_float32(dtype: jnp.dtype) -> jnp.dtype:
    return jnp.promote_types(dtype, jnp.float32)


def compute_dtype(config: TransformerConfig, parameter: jax.Array) -> jnp.dtype:
    """The dtype in which this parameter is multiplied: the config's, or its own."""
    return jnp.dtype(config.compute_dtype or parameter.dtype)
