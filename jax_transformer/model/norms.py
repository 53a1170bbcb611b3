"""Layer normalisation (Ba et al. 2016) with the numerics of its stack, RMSNorm (Zhang & Sennrich 2019), and trained
scales."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config import specs
from jax_transformer.config.specs import Stack
from jax_transformer.model.dtypes import at_least_float32
from jax_transformer.model.sharding import Axis, gather


class Norm(nnx.Module):
    """Computes (offset + scale) · (x − mean) / deviation + bias over the last axis of x [..., D], in at least float32.

    The result has the dtype of x. RMSNorm subtracts no mean. The stack may leave out scale and bias.

    Args:
      size: the size of the last axis; None: D, over which a mesh may shard the stored parameters.
      axis: the mesh axis that shards an axis of another size.
    """

    def __init__(self, stack: Stack, size: int | None = None, axis: Axis = None) -> None:
        if stack.norm is None:
            raise ValueError("norm: expected a stack that has norms; received one without")
        self.norm: specs.Norm = stack.norm
        self.axis: Axis = "features" if size is None else axis
        size = stack.d_model if size is None else size
        if self.norm.scale:
            self.scale = nnx.Param(jnp.full(size, 1.0 - self.norm.scale_offset, jnp.float32))  # [D]
        if self.norm.bias:
            self.bias = nnx.Param(jnp.zeros(size, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(at_least_float32(x.dtype))
        if isinstance(self.norm, specs.LayerNorm):
            # two passes: mean(x²) − mean(x)² would cancel if the mean is large
            wide = wide - wide.mean(axis=-1, keepdims=True)
        y = wide / self._deviation(wide)
        if self.norm.scale:
            y = y * self._whole_scale(wide.dtype)
        if self.norm.bias:
            y = y + gather(self.bias[...], self.axis).astype(wide.dtype)
        return y.astype(x.dtype)

    def _whole_scale(self, dtype: jnp.dtype) -> jax.Array:
        """Returns the scale [D]: the stored one plus the norm's offset."""
        scale, offset = gather(self.scale[...], self.axis).astype(dtype), self.norm.scale_offset
        return scale if offset == 0.0 else scale + offset

    def _deviation(self, centred: jax.Array) -> jax.Array:
        count = centred.shape[-1] - self.norm.unbiased
        variance = jnp.square(centred).sum(axis=-1, keepdims=True) / count
        eps = self.norm.eps
        return _sqrt(variance) + eps if self.norm.eps_outside else jnp.sqrt(variance + eps)


class Scale(nnx.Module):
    """Multiplies x [..., D] by a trained scale of each feature [D], which begins at `first`."""

    def __init__(self, stack: Stack, first: float) -> None:
        self.scale = nnx.Param(jnp.full(stack.d_model, first, jnp.float32))  # [D]

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * gather(self.scale[...], "features").astype(x.dtype)


class Factor(nnx.Module):
    """Multiplies x by one trained number, [1], which begins at `first`."""

    def __init__(self, first: float) -> None:
        self.factor = nnx.Param(jnp.full(1, first, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * self.factor[...].astype(x.dtype)


def output_scale(stack: Stack) -> Scale | Factor:
    """Returns the scale of a sublayer's output: LayerScale (Touvron et al. 2021) or ReZero (Bachlechner et al.
    2020)."""
    first = stack.residual.output_scale_init
    if stack.residual.output_scale == "channel":
        return Scale(stack, 0.1 if first is None else first)
    return Factor(0.0 if first is None else first)


def _sqrt(x: jax.Array) -> jax.Array:
    """Computes the square root, with gradient 0 at 0, as torch.std has it, instead of an infinite one."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)
