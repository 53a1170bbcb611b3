"""The precision policy: wide parameters, products in the compute dtype, norms and softmax in at least float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.sharding import feature_shards, platform


def at_least_float32(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the wider of `dtype` and float32."""
    return jnp.promote_types(dtype, jnp.float32)


def compute_dtype(config: TransformerConfig, parameter: jax.Array) -> jnp.dtype:
    """Returns the dtype in which this parameter is multiplied: the config's, or the parameter's own."""
    return jnp.dtype(config.compute.dtype or parameter.dtype)


def product_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the dtype in which XLA leaves products of arrays of `dtype`, before they are rounded to it.

    All devices sum products in at least float32, and round a sum once. XLA's CPU compiler multiplies bfloat16 by the
    processor's own instructions only if the result is float32; else it converts both operands to float32 first.
    """
    return at_least_float32(dtype) if platform() == "cpu" else dtype


def product(rows: jax.Array, kernel: jax.Array, axis: int = 0) -> jax.Array:
    """Returns rows [R, I] times a kernel, [R, O], in their dtype.

    Args:
      kernel: [I, O].
      axis: the kernel's axis of inputs; 1 for a kernel [O, I]. A transposed kernel would be multiplied in float32.
    """
    axes = ((1,), (axis,)), ((), ())
    wide = product_dtype(rows.dtype)
    if rows.shape[0] == 1 and wide != rows.dtype:  # for a single row, a CPU would convert the kernel to float32
        return product(jnp.pad(rows, ((0, 1), (0, 0))), kernel, axis)[:1]
    return jax.lax.dot_general(rows, kernel, axes, preferred_element_type=wide).astype(rows.dtype)


def keep_wide(parameter: jax.Array) -> jax.Array:
    """Returns a parameter that, on a TPU, is converted to a narrower dtype only on use, layer by layer.

    XLA's compiler for TPUs narrows an array if all its readers take narrow values, even through loops and barriers. It
    would convert the parameters of all layers before the loop over them, and keep both copies. It doesn't narrow
    arrays of bits. If features are sharded, each device keeps its part of the copy, and the devices exchange narrow
    values.
    """
    return _as_bits(parameter) if platform() == "tpu" and feature_shards() == 1 else parameter


@jax.custom_jvp
def _as_bits(parameter: jax.Array) -> jax.Array:
    bits = jax.lax.bitcast_convert_type(parameter, jnp.dtype(f"uint{8 * parameter.dtype.itemsize}"))
    return jax.lax.bitcast_convert_type(jax.lax.optimization_barrier(bits), parameter.dtype)


_as_bits.defjvps(lambda tangent, result, parameter: tangent)
