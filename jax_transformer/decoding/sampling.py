"""Drawing tokens by their probability, reproducibly."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding.search_params import Drawing


def draw(decoding: DecodingConfig, drawing: Drawing, column: jax.Array, logits: jax.Array) -> jax.Array:
    """A token for each hypothesis, [B, K], of logits [B, K, V]: a function of these, the sentence's key, the column and
    the row among K."""
    logits = filtered(decoding, drawing, logits)

    def of_sentence(key: jax.Array, logits: jax.Array) -> jax.Array:
        keys = jax.vmap(lambda k: jax.random.fold_in(jax.random.fold_in(key, column), k))(jnp.arange(len(logits)))
        return jax.vmap(jax.random.categorical)(keys, logits)

    return jax.vmap(of_sentence)(drawing.keys, logits)


def filtered(decoding: DecodingConfig, drawing: Drawing, logits: jax.Array) -> jax.Array:
    """Logits over the temperature, -inf where top_k, top_p or min_p leaves a token out; in this order, each of what the
    others left."""
    logits = logits / drawing.temperature
    if decoding.top_k:
        least = jax.lax.top_k(logits, min(decoding.top_k, logits.shape[-1]))[0][..., -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if decoding.top_p < 1:
        ordered = jnp.sort(logits, axis=-1, descending=True)
        before = jnp.cumsum(jax.nn.softmax(ordered, axis=-1), axis=-1) - jax.nn.softmax(ordered, axis=-1)
        least = jnp.min(jnp.where(before < drawing.top_p, ordered, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if decoding.min_p:
        logits = jnp.where(logits < jnp.max(logits, axis=-1, keepdims=True) + jnp.log(drawing.min_p), -jnp.inf, logits)
    return logits
