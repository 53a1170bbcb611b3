"""Token embeddings, and the arrays that are saved with the parameters but never trained."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Stack as StackConfig
from jax_transformer.model import initializers, positions
from jax_transformer.model.dtypes import at_least_float32, compute_dtype
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.sharding import constrain, divisor, width_shards


class Embedding(nnx.Module):
    """Holds a table [V, D]; with tied weights it is the head's kernel too."""

    def __init__(self, config: TransformerConfig, rows: int, pad_id: int | None, keys: KeyStream) -> None:
        self.config, self.pad_id = config, pad_id
        self.embedding = nnx.Param(initializers.embedding(config, next(keys), rows, pad_id))  # [V, D]

    def __call__(self, ids: jax.Array, factor: float) -> jax.Array:
        """Returns the vectors [B, T, D] of ids [B, T], times the factor of the stack that reads them."""
        table = self.embedding[...]
        dtype = compute_dtype(self.config, table)
        vectors = constrain(_rows(table, ids).astype(dtype), "rows", None, None)  # [B, T, D]
        if self.pad_id is not None and not self.config.trains_pad_embedding:
            is_pad = jnp.equal(ids, self.pad_id)[..., None]  # [B, T, 1]
            vectors = jnp.where(is_pad, jax.lax.stop_gradient(vectors), vectors)
        if factor == 1.0:
            return vectors
        # in bfloat16, the factor itself would be rounded: sqrt(768) by 0.13 %
        return (vectors.astype(at_least_float32(dtype)) * factor).astype(dtype)


def _rows(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Returns the rows [B, T, D] of a table [V, D]. A mesh divides the vocabulary or, if it can't, the features.

    Each device looks up its features of the rows that its group needs. The group then exchanges the rows, which are
    fewer than those of the table.
    """
    if len(table) % width_shards():
        return constrain(table, None, divisor(table.shape[1]))[ids]
    return constrain(constrain(table, "width", "features")[ids], "groups", None, "features")


class Constant(nnx.Variable[jax.Array]):
    """Holds an array that is saved with the parameters and never trained."""


class Constants(nnx.Module):
    """Holds the sinusoidal position tables [rows, D] and, if it is a buffer, the bias of the logits [V]."""

    def __init__(self, config: TransformerConfig) -> None:
        if config.encoder.position_kind == "sinusoidal":
            self.encoder_positions = _position_table(config, config.encoder)
        if config.decoder.position_kind == "sinusoidal":
            self.decoder_positions = _position_table(config, config.decoder)
        if config.head_bias == "buffer":
            self.head_bias = Constant(jnp.zeros(config.target_vocab_size, jnp.float32))


def _position_table(config: TransformerConfig, stack: StackConfig) -> Constant:
    return Constant(jnp.asarray(positions.sinusoid_table(config, stack), jnp.float32))
