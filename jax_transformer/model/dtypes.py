"""The precision policy: wide parameters, products in the compute dtype, norms and softmax in at least float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_transformer.config.model import TransformerConfig


def at_least_float32(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the wider of `dtype` and float32."""
    return jnp.promote_types(dtype, jnp.float32)


def compute_dtype(config: TransformerConfig, parameter: jax.Array) -> jnp.dtype:
    """Returns the dtype in which this parameter is multiplied: the config's, or the parameter's own."""
    return jnp.dtype(config.compute_dtype or parameter.dtype)
