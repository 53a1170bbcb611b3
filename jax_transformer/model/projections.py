"""Linear maps of the last axes of an array, with biases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import initializers
from jax_transformer.model.dtypes import compute_dtype
from jax_transformer.model.initializers import KeyStream


class Projection(nnx.Module):
    """Maps x [..., *inputs] to [..., *outputs] with a kernel [*inputs, *outputs] and a bias [*outputs].

    Args:
      role: the kernel's role, which some initializers treat differently (see `initializers.kernel`).
    """

    def __init__(
        self,
        config: TransformerConfig,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        keys: KeyStream,
        *,
        use_bias: bool,
        role: str = "",
    ) -> None:
        self.config, self.inputs, self.use_bias = config, inputs, use_bias
        fan_in, fan_out = math.prod(inputs), math.prod(outputs)
        shape = (*inputs, *outputs)
        self.kernel = nnx.Param(
            initializers.kernel(config, next(keys), shape, fan_in=fan_in, fan_out=fan_out, role=role)
        )
        if use_bias:
            self.bias = nnx.Param(initializers.bias(config, next(keys), outputs, fan_in))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns x [..., *inputs] mapped to [..., *outputs], in the compute dtype."""
        (y,) = project_together([self], x)
        return y


def project_together(projections: Sequence[Projection], x: jax.Array) -> list[jax.Array]:
    """Applies several projections to x [..., *inputs] in one product; returns [..., *outputs] of each.

    All projections have the same inputs, and either all or none have a bias. The product is always of two matrices,
    tokens by features: on a CPU, XLA computes the gradients of an einsum over three or more axes through transposed
    copies of the activations, which takes a fifth of a training step.
    """
    first = projections[0]
    inputs, dtype = first.inputs, compute_dtype(first.config, first.kernel[...])
    kernels = [projection.kernel[...].reshape(math.prod(inputs), -1).astype(dtype) for projection in projections]
    y = x.astype(dtype).reshape(-1, math.prod(inputs)) @ _concatenate(kernels)
    if first.use_bias:
        y = y + _concatenate([projection.bias[...].reshape(-1).astype(dtype) for projection in projections])

    return _split(
        y, x.shape[: x.ndim - len(inputs)], [projection.kernel.shape[len(inputs) :] for projection in projections]
    )


class StepProjections(nnx.Module):
    """Applies several projections to a few tokens at a time, in one product with one kernel [outputs, inputs].

    With few tokens, a CPU spends its time on reading the kernel. XLA reads it fastest by rows, as the left matrix of
    the product.
    """

    def __init__(self, projections: Sequence[Projection]) -> None:
        first = projections[0]
        self.config, self.inputs, self.use_bias = first.config, first.inputs, first.use_bias
        self.shapes = tuple(projection.kernel.shape[len(first.inputs) :] for projection in projections)
        kernels = [projection.kernel[...].reshape(math.prod(first.inputs), -1) for projection in projections]
        self.kernel = nnx.Param(_concatenate(kernels).T)
        if first.use_bias:
            self.bias = nnx.Param(_concatenate([projection.bias[...].reshape(-1) for projection in projections]))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns x [..., *inputs] mapped to [..., *outputs] by the only projection."""
        (y,) = self.together(x)
        return y

    def together(self, x: jax.Array) -> list[jax.Array]:
        """Returns x [..., *inputs] mapped to [..., *outputs] by each projection."""
        dtype = compute_dtype(self.config, self.kernel[...])
        columns = x.astype(dtype).reshape(-1, math.prod(self.inputs)).T
        y = jax.lax.optimization_barrier(self.kernel[...].astype(dtype) @ columns).T  # or XLA turns the product around
        y = y + self.bias[...].astype(dtype) if self.use_bias else y
        return _split(y, x.shape[: x.ndim - len(self.inputs)], self.shapes)


def _split(y: jax.Array, leading: tuple[int, ...], shapes: Sequence[tuple[int, ...]]) -> list[jax.Array]:
    """Splits y [tokens, features], which holds several arrays side by side, into arrays [*leading, *shape]."""
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
    return [
        part.reshape(*leading, *shape) for part, shape in zip(jnp.split(y, ends[:-1], axis=-1), shapes, strict=True)
    ]


def _concatenate(arrays: list[jax.Array]) -> jax.Array:
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis=-1)
