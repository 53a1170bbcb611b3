"""Layer normalisation (Ba et al. 2016) with the config's numerics, and RMSNorm (Zhang & Sennrich 2019)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.dtypes import at_least_float32
from jax_transformer.model.sharding import Axis, gather


class Norm(nnx.Module):
    """Computes scale · (x − mean) / deviation + bias over the last axis of x [..., D], in at least float32.

    The result has the dtype of x. RMSNorm subtracts no mean.

    Args:
      width: the size of the last axis; None: D, which a mesh of devices may divide where the parameters are stored.
    """

    def __init__(self, config: TransformerConfig, width: int | None = None) -> None:
        self.config = config
        self.stored: Axis = "features" if width is None else None
        width = config.d_model if width is None else width
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))
        if config.norm_bias:
            self.bias = nnx.Param(jnp.zeros(width, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(at_least_float32(x.dtype))
        if self.config.norm_kind == "layer_norm":
            # two passes: mean(x²) − mean(x)² would cancel if the mean is large
            wide = wide - wide.mean(axis=-1, keepdims=True)
        y = wide / self._deviation(wide) * gather(self.scale[...], self.stored).astype(wide.dtype)
        if self.config.norm_bias:
            y = y + gather(self.bias[...], self.stored).astype(wide.dtype)
        return y.astype(x.dtype)

    def _deviation(self, centred: jax.Array) -> jax.Array:
        count = centred.shape[-1] - self.config.norm_unbiased
        variance = jnp.square(centred).sum(axis=-1, keepdims=True) / count
        eps = self.config.norm_eps
        return _sqrt(variance) + eps if self.config.norm_eps_outside else jnp.sqrt(variance + eps)


def _sqrt(x: jax.Array) -> jax.Array:
    """Computes the square root, with gradient 0 at 0, as torch.std has it, instead of an infinite one."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)
