"""Linear maps of the last axes of an array, with biases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import initializers
from jax_transformer.model.dtypes import at_least_float32, compute_dtype, keep_wide, product
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.sharding import Axis, gather, width_shards


class Projection(nnx.Module):
    """Maps x [..., *inputs] to [..., *outputs] with a kernel [*inputs, *outputs] and a bias [*outputs].

    Args:
      role: the kernel's role, which some initializers treat differently (see `initializers.kernel`).
      wide: the end, input or output, that is heads, feed-forward units or vocabulary. A mesh may shard it.
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
        wide: Literal["inputs", "outputs"] = "outputs",
    ) -> None:
        self.config, self.inputs, self.use_bias, self.wide = config, inputs, use_bias, wide
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

    def matrix(self, dtype: jnp.dtype) -> jax.Array:
        """Returns the kernel [inputs, outputs] in `dtype`."""
        kernel = keep_wide(self.kernel[...]).astype(dtype)
        count = len(self.inputs)
        axes = *self._stored(kernel.shape[:count], "inputs"), *self._stored(kernel.shape[count:], "outputs")
        return gather(kernel, *axes).reshape(math.prod(self.inputs), -1)

    def vector(self, dtype: jnp.dtype) -> jax.Array:
        """Returns the bias [outputs] in `dtype`; zeros without one."""
        if not self.use_bias:
            return jnp.zeros(math.prod(self.kernel.shape[len(self.inputs) :]), dtype)
        bias = self.bias[...].astype(dtype)
        return gather(bias, *self._stored(bias.shape, "outputs")).reshape(-1)

    def _stored(self, shape: tuple[int, ...], end: str) -> tuple[Axis, ...]:
        """Returns the mesh axes that shard the axes of one end: the first axis of the wide end, and the features."""
        return ("width" if self.wide == end else "features", *[None] * (len(shape) - 1))


class SquareMap(nnx.Module):
    """Maps x [..., D] to [..., D] with a kernel [D, D] and a bias [D]; a mesh may shard the outputs as features."""

    def __init__(self, config: TransformerConfig, width: int, keys: KeyStream) -> None:
        self.config = config
        self.kernel = nnx.Param(initializers.kernel(config, next(keys), (width, width), fan_in=width, fan_out=width))
        self.bias = nnx.Param(initializers.bias(config, next(keys), (width,), width))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns x mapped to [..., D], in the compute dtype."""
        dtype = compute_dtype(self.config, self.kernel[...])
        kernel = gather(keep_wide(self.kernel[...]).astype(dtype), None, "features")
        y = product(x.astype(dtype).reshape(-1, kernel.shape[0]), kernel)
        return y.reshape(x.shape) + gather(self.bias[...].astype(dtype), "features")


def project_together(projections: Sequence[Projection], x: jax.Array) -> list[jax.Array]:
    """Applies several projections to x [..., *inputs] in one product; returns [..., *outputs] of each.

    All projections have the same inputs. The product is always a matrix product,
    tokens by features: on a CPU, XLA computes the gradients of an einsum over three or more axes through transposed
    copies of the activations, which takes a fifth of a training step. On a mesh that shards the outputs, it makes the
    gradient of x one all-reduce instead of one per projection.
    """
    first = projections[0]
    inputs, dtype = first.inputs, compute_dtype(first.config, first.kernel[...])
    rows = x.astype(dtype).reshape(-1, math.prod(inputs))
    y = product(rows, _side_by_side([one.matrix(dtype) for one in projections]))
    if any(one.use_bias for one in projections):
        y = y + _side_by_side([one.vector(dtype) for one in projections])
    shapes = [one.kernel.shape[len(inputs) :] for one in projections]
    return _apart(y, x.shape[: x.ndim - len(inputs)], shapes)


class StepProjections(nnx.Module):
    """Applies several projections to a few tokens at a time, in one product with one kernel [outputs, inputs].

    With few tokens, a CPU spends its time on reading the kernel. XLA reads it fastest by rows, as the left matrix of
    the product. The kernels lie side by side within each head of keys and values, with all query heads that share it,
    so that a mesh of devices may divide the heads.
    """

    def __init__(self, projections: Sequence[Projection]) -> None:
        first = projections[0]
        self.config, self.inputs, self.wide = first.config, first.inputs, first.wide
        self.use_bias = any(projection.use_bias for projection in projections)
        self.shapes = tuple(projection.kernel.shape[len(first.inputs) :] for projection in projections)
        self.groups = min(shape[0] for shape in self.shapes)
        self.kernel = nnx.Param(self._grouped([projection.kernel[...] for projection in projections], first.inputs).T)
        if self.use_bias:
            biases = [
                one.bias[...] if one.use_bias else jnp.zeros(shape, first.kernel.dtype)
                for one, shape in zip(projections, self.shapes, strict=True)
            ]
            self.bias = nnx.Param(self._grouped(biases, ()).reshape(-1))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns x [..., *inputs] mapped to [..., *outputs] by the only projection."""
        (y,) = self.together(x)
        return y

    def together(self, x: jax.Array, *, few: bool = True) -> list[jax.Array]:
        """Returns x [..., *inputs] mapped to [..., *outputs] by each projection.

        Args:
          few: whether x holds few tokens. Of many, the outputs lie token by token, which saves a slow transposition.
        """
        dtype = compute_dtype(self.config, self.kernel[...])
        kernel, rows = self.kernel[...].astype(dtype), x.astype(dtype).reshape(-1, math.prod(self.inputs))
        if few and dtype == at_least_float32(dtype):
            y = jax.lax.optimization_barrier(kernel @ rows.T).T  # without the barrier, XLA turns the product around
        else:
            y = product(rows, kernel, axis=1)
        y = y + self.bias[...].astype(dtype) if self.use_bias else y
        ends = list(itertools.accumulate(math.prod(shape) // self.groups for shape in self.shapes))
        leading = x.shape[: x.ndim - len(self.inputs)]
        parts = jnp.split(y.reshape(*leading, self.groups, ends[-1]), ends[:-1], axis=-1)
        return [part.reshape(*leading, *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _grouped(self, arrays: list[jax.Array], inputs: tuple[int, ...]) -> jax.Array:
        """Returns arrays [*inputs, *outputs] as one [inputs, all outputs], group by group."""
        grouped = [array.reshape(math.prod(inputs), self.groups, -1) for array in arrays]
        return (grouped[0] if len(grouped) == 1 else jnp.concatenate(grouped, axis=-1)).reshape(math.prod(inputs), -1)


def map_each(projections: Sequence[Projection | StepProjections], x: jax.Array) -> list[jax.Array]:
    """Applies several projections to x [..., *inputs]: together if a mesh divides the outputs, else one by one, since
    wide kernels take long to lay side by side."""
    together = [one for one in projections if isinstance(one, Projection)]
    if width_shards() > 1 and len(together) == len(projections):
        return project_together(together, x)
    return [one(x) for one in projections]


def _side_by_side(arrays: list[jax.Array]) -> jax.Array:
    """Returns arrays [..., outputs] as one [..., all outputs]: the first share of each for the devices that have the
    first share of the width, then the second of each, so that none of it moves between devices."""
    if len(arrays) == 1:
        return arrays[0]
    shares = width_shards()
    if shares == 1:  # the same, but an axis of size 1 makes a TPU's compiler keep another copy
        return jnp.concatenate(arrays, axis=-1)
    divided = [array.reshape(*array.shape[:-1], shares, -1) for array in arrays]
    return jnp.concatenate(divided, axis=-1).reshape(*arrays[0].shape[:-1], -1)


def _apart(y: jax.Array, leading: tuple[int, ...], shapes: Sequence[tuple[int, ...]]) -> list[jax.Array]:
    """Returns y [tokens, all outputs], arrays `_side_by_side`, as arrays [*leading, *shape]."""
    if len(shapes) == 1:
        return [y.reshape(*leading, *shapes[0])]
    shares = width_shards()
    ends = list(itertools.accumulate(math.prod(shape) // shares for shape in shapes))
    parts = jnp.split(y if shares == 1 else y.reshape(-1, shares, ends[-1]), ends[:-1], axis=-1)
    return [part.reshape(*leading, *shape) for part, shape in zip(parts, shapes, strict=True)]
