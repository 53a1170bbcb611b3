"""Linear maps of the last axes of an array, with their biases."""

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
    """x [..., *inputs] → [..., *outputs]; kernel [*inputs, *outputs], bias [*outputs].

    Args:
      role: what the initializer may treat apart (see initializers.kernel).
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
        (y,) = project_together([self], x)
        return y


def project_together(projections: Sequence[Projection], x: jax.Array) -> list[jax.Array]:
    """x [..., *inputs] → [..., *outputs] of each projection, computed as one product; all take the same inputs and
    agree about bias.

    The product is of two matrices, tokens by features, whatever the shapes: on a CPU, XLA computes the gradients of an
    einsum over three and more axes through transposed copies of the activations, which takes a fifth of a training
    step.
    """
    first = projections[0]
    inputs, dtype = first.inputs, compute_dtype(first.config, first.kernel[...])
    kernels = [projection.kernel[...].reshape(math.prod(inputs), -1).astype(dtype) for projection in projections]
    y = x.astype(dtype).reshape(-1, math.prod(inputs)) @ _concatenate(kernels)
    if first.use_bias:
        y = y + _concatenate([projection.bias[...].reshape(-1).astype(dtype) for projection in projections])

    return _apart(
        y, x.shape[: x.ndim - len(inputs)], [projection.kernel.shape[len(inputs) :] for projection in projections]
    )


class StepProjections(nnx.Module):
    """Projections of the same x as decoding computes them for a few tokens at a time: one product, with one kernel
    [outputs, inputs].

    A CPU's time then goes into reading the kernel. XLA reads it best as the left matrix of a product, by rows.
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
        """x [..., *inputs] → [..., *outputs] of the only projection."""
        (y,) = self.together(x)
        return y

    def together(self, x: jax.Array) -> list[jax.Array]:
        """x [..., *inputs] → [..., *outputs] of each projection."""
        dtype = compute_dtype(self.config, self.kernel[...])
        columns = x.astype(dtype).reshape(-1, math.prod(self.inputs)).T
        y = jax.lax.optimization_barrier(self.kernel[...].astype(dtype) @ columns).T  # or XLA turns the product around
        y = y + self.bias[...].astype(dtype) if self.use_bias else y
        return _apart(y, x.shape[: x.ndim - len(self.inputs)], self.shapes)


def _apart(y: jax.Array, leading: tuple[int, ...], shapes: Sequence[tuple[int, ...]]) -> list[jax.Array]:
    """y [tokens, features], the features being those of several arrays → these, [*leading, *shape] each."""
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
    return [
        part.reshape(*leading, *shape) for part, shape in zip(jnp.split(y, ends[:-1], axis=-1), shapes, strict=True)
    ]


def _concatenate(arrays: list[jax.Array]) -> jax.Array:
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis=-1)
