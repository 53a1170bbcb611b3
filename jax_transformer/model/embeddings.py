"""Token embeddings, and the arrays that are saved with the parameters but never trained."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Sinusoidal
from jax_transformer.config.specs import Stack, Tokens
from jax_transformer.model import initializers, positions
from jax_transformer.model.dtypes import at_least_float32, compute_dtype
from jax_transformer.model.ids import Ids
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.sharding import constrain, divisor, width_shards


class Embedding(nnx.Module):
    """Holds a table [V, D]; with tied weights it is the head's kernel too."""

    def __init__(self, config: TransformerConfig, tokens: Tokens, width: int, keys: KeyStream) -> None:
        self.config, self.tokens = config, tokens
        table = initializers.embedding(config, next(keys), (tokens.vocab_size, width), tokens.pad_id)
        self.embedding = nnx.Param(table)  # [V, D]

    def __call__(self, ids: Ids, factor: float) -> jax.Array:
        """Returns the vectors [B, T, D] of ids [B, T], times the factor of the stack that reads them."""
        table = self.embedding[...]
        dtype = compute_dtype(self.config, table)
        vectors = constrain(_rows(table, ids).astype(dtype), "rows", None, None)  # [B, T, D]
        if not self.tokens.trains_pad:
            is_pad = jnp.equal(ids, self.tokens.pad_id)[..., None]  # [B, T, 1]
            vectors = jnp.where(is_pad, jax.lax.stop_gradient(vectors), vectors)
        return scaled(vectors, factor)


def scaled(vectors: jax.Array, factor: float) -> jax.Array:
    """Returns vectors times the factor of the stack that reads them, in their dtype."""
    if factor == 1.0:
        return vectors
    # in bfloat16, the factor itself would be rounded: sqrt(768) by 0.13 %
    return (vectors.astype(at_least_float32(vectors.dtype)) * factor).astype(vectors.dtype)


def _rows(table: jax.Array, ids: Ids) -> jax.Array:
    """Looks up rows [B, T, D] of a table [V, D], whose vocabulary or, if it doesn't divide, features a mesh shards.

    Each device looks up its features of the rows that its group needs. The group then exchanges these rows, which are
    fewer than the table's.
    """
    if len(table) % width_shards():
        return constrain(table, None, divisor(table.shape[1]))[ids]
    return constrain(constrain(table, "width", "features")[ids], "groups", None, "features")


class TokenTypes(nnx.Module):
    """Holds a trained table of token types [rows, D]."""

    def __init__(self, config: TransformerConfig, stack: Stack, keys: KeyStream) -> None:
        shape = (stack.token_types, stack.d_model)
        self.embedding = nnx.Param(initializers.embedding(config, next(keys), shape, None))


class PositionTable(nnx.Module):
    """Holds a trained table of positions [rows, D]."""

    def __init__(self, config: TransformerConfig, shape: tuple[int, int], keys: KeyStream) -> None:
        self.embedding = nnx.Param(initializers.embedding(config, next(keys), shape, None))


class Constant(nnx.Variable[jax.Array]):
    """Holds an array that is saved with the parameters and never trained."""


class Constants(nnx.Module):
    """Holds the sinusoidal position tables [rows, D] and, if it is a buffer, the bias of the logits [V]."""

    def __init__(self, config: TransformerConfig) -> None:
        if isinstance(config.encoder.positions, Sinusoidal):
            self.encoder_positions = _position_table(config.encoder)
        if isinstance(config.decoder.positions, Sinusoidal):
            self.decoder_positions = _position_table(config.decoder)
        if config.head.bias == "buffer":
            self.head_bias = Constant(jnp.zeros(config.target.vocab_size, jnp.float32))


def _position_table(stack: Stack) -> Constant:
    return Constant(jnp.asarray(positions.sinusoid_table(stack), jnp.float32))
