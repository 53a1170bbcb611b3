"""Named policies for initial weights.

xavier_uniform, kaiming_uniform: these for every matrix, embeddings included, and PyTorch's defaults for the rest; the
  result of `for p in model.parameters(): if p.dim() > 1: init(p)` (Glorot & Bengio 2010; He et al. 2015).
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
    """Yields keys one by one; each depends only on the first key and on its place in the sequence.

    (nnx.Rngs counts in traced arrays, which took half the time of tracing a model.)
    """

    def __init__(self, key: jax.Array) -> None:
        self._key, self._count = key, 0

    def __next__(self) -> jax.Array:
        self._count += 1
        return jax.random.fold_in(self._key, self._count)


def kernel(
    config: TransformerConfig, key: jax.Array, shape: tuple[int, ...], *, fan_in: int, fan_out: int, role: str = ""
) -> jax.Array:
    """Draws a projection's kernel in float32; `role` is "query_key_value", "head" or empty."""
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
    """Draws a projection's bias in float32."""
    if config.initializer == "fairseq":
        return jnp.zeros(shape, jnp.float32)
    bound = 1.0 / math.sqrt(fan_in)
    return jax.random.uniform(key, shape, jnp.float32, minval=-bound, maxval=bound)


def embedding(config: TransformerConfig, key: jax.Array, shape: tuple[int, int], pad_id: int | None) -> jax.Array:
    """Draws an embedding [rows, D] in float32; row pad_id is zero under policies that zero the pad row."""
    rows, width = shape
    if config.initializer == "torch":
        return jax.random.normal(key, shape, jnp.float32)
    if config.initializer == "fairseq":
        table = jax.random.normal(key, shape, jnp.float32) / math.sqrt(width)
        return table if pad_id is None else table.at[pad_id].set(0.0)
    # torch computes the fans of a matrix [rows, D] as in = D, out = rows
    return kernel(config, key, shape, fan_in=width, fan_out=rows)


def relative_vectors(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Draws relative-position vectors [2 M + 1, H] as one matrix, from Xavier's uniform distribution under every policy
    (as tensor2tensor does)."""
    bound = math.sqrt(6.0 / sum(shape))
    return jax.random.uniform(key, shape, jnp.float32, minval=-bound, maxval=bound)


def relative_bias(key: jax.Array, shape: tuple[int, int], d_model: int) -> jax.Array:
    """Draws relative-position biases [P, N] from N(0, 1/D), as T5 does, under every policy."""
    return jax.random.normal(key, shape, jnp.float32) / math.sqrt(d_model)
