"""Sources: token ids, or feature vectors such as a log-mel spectrogram's, which a stem maps to the encoder's width."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Stem
from jax_transformer.model import initializers
from jax_transformer.model.activations import ACTIVATIONS
from jax_transformer.model.dtypes import compute_dtype
from jax_transformer.model.ids import Ids
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.sharding import constrain, gather
from jax_transformer.model.trace import Tap


class Features(NamedTuple):
    """Holds a batch of sources that are feature vectors.

    Example:
      >>> import numpy as np
      >>> from jax_transformer import Features
      >>> Features(np.zeros((2, 100, 80), np.float32), np.array([100, 60])).shape
      (2, 100, 80)
    """

    vectors: jax.Array | np.ndarray
    """[B, S, F] floating-point numbers."""
    lengths: jax.Array | np.ndarray | None = None
    """[B] integers: the vectors of each source; the rest of its row is padding. None: every row is full."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns (B, S, F)."""
        return tuple(self.vectors.shape)

    def is_real(self) -> jax.Array:
        """Returns which vectors are no padding, boolean [B, S]."""
        rows, length, _ = self.shape
        if self.lengths is None:
            return jnp.ones((rows, length), bool)
        return jnp.arange(length) < jnp.asarray(self.lengths)[:, None]


SourceInput = Ids | Features
"""Token ids [B, S], or the vectors that a config with a stem reads."""


def source_is_real(config: TransformerConfig, source: SourceInput) -> jax.Array:
    """Returns which of the encoder's positions are no padding, boolean [B, S].

    A position after a stem is real if the vector at its centre is.
    """
    if not isinstance(source, Features):
        return source != config.source.pad_id
    assert config.stem is not None  # as the arguments were checked
    return source.is_real()[:, :: config.stem.stride]


class Convolution(nnx.Module):
    """Convolves x [B, S, I] over time with a kernel [K, I, O] and adds a bias [O]; zeros stand before and after x."""

    def __init__(self, config: TransformerConfig, stem: Stem, inputs: int, stride: int, keys: KeyStream) -> None:
        self.config, self.stride = config, stride
        outputs = config.encoder.d_model
        fan_in, fan_out = stem.kernel * inputs, stem.kernel * outputs
        shape = (stem.kernel, inputs, outputs)
        self.kernel = nnx.Param(initializers.kernel(config, next(keys), shape, fan_in=fan_in, fan_out=fan_out))
        self.bias = nnx.Param(initializers.bias(config, next(keys), (outputs,), fan_in))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns [B, (S - 1) // stride + 1, O] in the compute dtype."""
        dtype = compute_dtype(self.config, self.kernel[...])
        kernel, bias = gather(self.kernel[...], None, None, "features"), gather(self.bias[...], "features")
        around = kernel.shape[0] // 2
        y = jax.lax.conv_general_dilated(
            x.astype(dtype),
            kernel.astype(dtype),
            window_strides=(self.stride,),
            padding=[(around, around)],
            dimension_numbers=("NWC", "WIO", "NWC"),
        )
        return y + bias.astype(dtype)


class ConvolutionStem(nnx.Module):
    """Maps feature vectors to the encoder's width by two convolutions (Radford et al. 2022, §2.2).

    If the encoder hides padding, padded vectors are zeros to each convolution, so that more of them change nothing.
    """

    def __init__(self, config: TransformerConfig, stem: Stem, keys: KeyStream) -> None:
        self.config, self.stem = config, stem
        self.first = Convolution(config, stem, stem.features, 1, keys)
        self.second = Convolution(config, stem, config.encoder.d_model, stem.stride, keys)

    def __call__(self, source: Features, tap: Tap) -> jax.Array:
        """Returns vectors [B, (S - 1) // stride + 1, D] of a batch of sources. `tap` records each convolution's output
        before its activation."""
        activation = ACTIVATIONS[self.stem.activation]
        hides = self.config.encoder.self_attention.padding in ("keys", "both")
        real = source.is_real()[..., None] if hides and source.lengths is not None else None
        x = jnp.asarray(source.vectors)
        for name, convolution in (("first", self.first), ("second", self.second)):
            x = x if real is None else jnp.where(real, x, 0)
            x = activation(tap(name, convolution(x)), 0.0)
        return constrain(x, "rows", None, None)
