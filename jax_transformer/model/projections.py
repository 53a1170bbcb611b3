"""A linear map written as an einsum, with its bias."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config import TransformerConfig
from jax_transformer.model import initializers
from jax_transformer.model.dtypes import compute_dtype
from jax_transformer.model.initializers import KeyStream


class Projection(nnx.Module):
    """`jnp.einsum(equation, x, kernel) + bias`, the bias over the axes that the kernel brings in.

    Args:
      equation: such as "BTD,DNH->BTNH"; the kernel's axes that x shares are its fan-in.
      shape: the kernel's shape, in the equation's order.
      role: what the initializer may treat apart (see initializers.kernel).
    """

    def __init__(
        self, config: TransformerConfig, equation: str, shape: tuple[int, ...], use_bias: bool, keys: KeyStream, role: str = ""
    ) -> None:
        self.config, self.equation, self.use_bias = config, equation, use_bias
        x_axes, kernel_axes = equation.split("->")[0].split(",")
        outputs = tuple(size for axis, size in zip(kernel_axes, shape, strict=True) if axis not in x_axes)
        fan_in, fan_out = math.prod(shape) // math.prod(outputs), math.prod(outputs)
        self.kernel = nnx.Param(initializers.kernel(config, next(keys), shape, fan_in, fan_out, role))
        if use_bias:
            self.bias = nnx.Param(initializers.bias(config, next(keys), outputs, fan_in))

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.kernel[...]
        dtype = compute_dtype(self.config, kernel)
        y = jnp.einsum(self.equation, x.astype(dtype), kernel.astype(dtype))
        return y + self.bias[...].astype(dtype) if self.use_bias else y


def project_together(projections: Sequence[Projection], x: jax.Array) -> list[jax.Array]:
    """What each of the projections into heads (all "BTD,DNH->BTNH") gives for x, computed as one product."""
    first = projections[0].kernel[...]
    dtype = compute_dtype(projections[0].config, first)
    kernel = jnp.concatenate([projection.kernel[...].reshape(first.shape[0], -1) for projection in projections], axis=1)
    y = jnp.einsum("BTD,DF->BTF", x.astype(dtype), kernel.astype(dtype))
    if projections[0].use_bias:
        y = y + jnp.concatenate([projection.bias[...].reshape(-1) for projection in projections]).astype(dtype)
    return [part.reshape(*x.shape[:2], *first.shape[1:]) for part in jnp.split(y, len(projections), axis=-1)]
