"""Named policies for initial weights.

xavier_uniform, kaiming_uniform: every matrix, embeddings included, and PyTorch's default for the rest, which is what
  `for p in model.parameters(): if p.dim() > 1: init(p)` gives (Glorot & Bengio 2010; He et al. 2015).
torch: the defaults of nn.Linear and nn.Embedding.
fairseq: embeddings and head N(0, 1/D) with a zero pad row, Xavier uniform elsewhere (gain 1/sqrt(2) for query, key and
  value), zero biases.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jax_transformer.config.model import TransformerConfig


class KeyStream:
    """One key after the other, each a function of the first and of how many came before it. (nnx.Rngs counts in traced
    arrays, which took half the time of tracing a model.)
    """

    def __init__(self, key: jax.Array) -> None:
        self._key, self._count = key, 0

    def __next__(self) -> jax.Array:
        self._count += 1
        return jax.random.fold_in(self._key, self._count)


def kernel(
    config: TransformerConfig, key: jax.Array, shape: tuple[int, ...], *, fan_in: int, fan_out: int, role: str = ""
) -> jax.Array:
    """A projection's weights; role is "query_key_value", "head" or nothing."""
    if config.initializer == "fairseq" and role == "head":
        return jax.random.normal(key, shape, jnp.float32) / math.sqrt(fan_in)
    xavier = math.sqrt(6.0 / (fan_in + fan_out))
    bound = {
        "xavier_uniform": xavier,
        "torch": 1.0 / math.sqrt(fan_in),
        "kaiming_uniform": math.sqrt(6.0 / fan_in),
        "fairseq": xavier / math.sqrt(2.0) if role == "query_key_value" else xavier,
    }[config.initializer]
    return jax.random.uniform(key, shape, jnp.float32, minval=-bound, maxval=bound)


def bias(config: TransformerConfig, key: jax.Array, shape: tuple[int, ...], fan_in: int) -> jax.Array:
    """A projection's bias."""
    if config.initializer == "fairseq":
        return jnp.zeros(shape, jnp.float32)
    bound = 1.0 / math.sqrt(fan_in)
    return jax.random.uniform(key, shape, jnp.float32, minval=-bound, maxval=bound)


def embedding(config: TransformerConfig, key: jax.Array, rows: int, pad_id: int | None) -> jax.Array:
    """An embedding [rows, D]; the pad row, where the policy zeroes it, is pad_id."""
    width = config.d_model
    if config.initializer == "torch":
        return jax.random.normal(key, (rows, width), jnp.float32)
    if config.initializer == "fairseq":
        table = jax.random.normal(key, (rows, width), jnp.float32) / math.sqrt(width)
        return table if pad_id is None else table.at[pad_id].set(0.0)
    # as torch computes fans for a matrix [rows, D]: in = D, out = rows
    return kernel(config, key, (rows, width), fan_in=width, fan_out=rows)


def relative_bias(config: TransformerConfig, key: jax.Array, heads: int) -> jax.Array:
    """The biases [P, N] of attention by distance; N(0, 1/D), as T5's, by any policy."""
    return jax.random.normal(key, (config.relative_buckets, heads), jnp.float32) / math.sqrt(config.d_model)
