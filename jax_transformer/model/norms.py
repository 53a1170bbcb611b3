"""Layer normalisation (Ba et al. 2016) with the config's numerics, RMSNorm (Zhang & Sennrich 2019), and trained
scales."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.dtypes import at_least_float32
from jax_transformer.model.sharding import Axis, gather


class Norm(nnx.Module):
    """Computes (offset + scale) · (x − mean) / deviation + bias over the last axis of x [..., D], in at least float32.

    The result has the dtype of x. RMSNorm subtracts no mean. The config may leave out scale and bias.

    Args:
      size: the size of the last axis; None: D, which a mesh of devices may divide where the parameters are stored.
      axis: what divides an axis of another size there.
    """

    def __init__(self, config: TransformerConfig, size: int | None = None, axis: Axis = None) -> None:
        self.config = config
        self.axis: Axis = "features" if size is None else axis
        size = config.d_model if size is None else size
        if config.norm_scale:
            self.scale = nnx.Param(jnp.full(size, 1.0 - config.norm_scale_offset, jnp.float32))  # [D]
        if config.norm_bias:
            self.bias = nnx.Param(jnp.zeros(size, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(at_least_float32(x.dtype))
        if self.config.norm_kind == "layer_norm":
            # two passes: mean(x²) − mean(x)² would cancel if the mean is large
            wide = wide - wide.mean(axis=-1, keepdims=True)
        y = wide / self._deviation(wide)
        if self.config.norm_scale:
            y = y * self._whole_scale(wide.dtype)
        if self.config.norm_bias:
            y = y + gather(self.bias[...], self.axis).astype(wide.dtype)
        return y.astype(x.dtype)

    def _whole_scale(self, dtype: jnp.dtype) -> jax.Array:
        """Returns the scale [D]: the stored one plus the config's offset."""
        scale, offset = gather(self.scale[...], self.axis).astype(dtype), self.config.norm_scale_offset
        return scale if offset == 0.0 else scale + offset

    def _deviation(self, centred: jax.Array) -> jax.Array:
        count = centred.shape[-1] - self.config.norm_unbiased
        variance = jnp.square(centred).sum(axis=-1, keepdims=True) / count
        eps = self.config.norm_eps
        return _sqrt(variance) + eps if self.config.norm_eps_outside else jnp.sqrt(variance + eps)


class Scale(nnx.Module):
    """Multiplies x [..., D] by a trained scale of each feature [D], which begins at `first`."""

    def __init__(self, config: TransformerConfig, first: float) -> None:
        self.scale = nnx.Param(jnp.full(config.d_model, first, jnp.float32))  # [D]

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * gather(self.scale[...], "features").astype(x.dtype)


class Factor(nnx.Module):
    """Multiplies x by one trained number, [1], which begins at `first`."""

    def __init__(self, first: float) -> None:
        self.factor = nnx.Param(jnp.full(1, first, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * self.factor[...].astype(x.dtype)


def sublayer_scale(config: TransformerConfig) -> Scale | Factor:
    """Returns what scales a sublayer's output: LayerScale (Touvron et al. 2021) or ReZero (Bachlechner et al. 2020)."""
    first = config.sublayer_scale_init
    if config.learned_sublayer_scale == "channel":
        return Scale(config, 0.1 if first is None else first)
    return Factor(0.0 if first is None else first)


def _sqrt(x: jax.Array) -> jax.Array:
    """Computes the square root, with gradient 0 at 0, as torch.std has it, instead of an infinite one."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)
