"""The decoder's layers while decoding: one token of each beam at a time, over cached keys and values."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.model.attention import (
    Attention,
    AttentionTerms,
    Bias,
    attention_scale,
    attention_weights,
    merge_heads,
)
from jax_transformer.model.decoder_state import DecoderState, LayerCache
from jax_transformer.model.dropout import Site
from jax_transformer.model.dtypes import at_least_float32
from jax_transformer.model.layers import DecoderLayer, Layer, Sublayer
from jax_transformer.model.masks import Mask
from jax_transformer.model.projections import Projection, StepProjections
from jax_transformer.model.scope import Scope


class StepAttention(nnx.Module):
    """Attends from the tokens of K beams to cached keys and values; self- and cross-attention build on it."""

    def __init__(self, attention: Attention) -> None:
        self.config = attention.config
        if attention.config.attention_output:
            self.output = StepProjections([attention.output])

    def attend(self, query: jax.Array, keys: jax.Array, values: jax.Array, terms: AttentionTerms) -> jax.Array:
        """Returns the attention output [B, K, D] of query [B, K, N, H] over keys and values [B, N, T, H].

        On a CPU, few queries are multiplied and summed elementwise, which XLA fuses and spreads over the cores. Its
        batched products of small matrices take twice as long, except for a single query.
        """
        query = jnp.swapaxes(query, 1, 2)  # [B, N, K, H]
        wide = at_least_float32(query.dtype)
        logits = jax.lax.platform_dependent(
            query, keys, cpu=partial(_logits_of_few, wide=wide), default=partial(_logits, wide=wide)
        )  # [B, N, K, T]
        weights = attention_weights(self.config, logits * attention_scale(self.config, query.shape[-1]), terms)
        context = jax.lax.platform_dependent(
            weights.astype(values.dtype), values, cpu=_contexts_of_few, default=_contexts
        )
        context = jnp.swapaxes(context, 1, 2)  # [B, K, N, H]
        return self.output(context) if self.config.attention_output else merge_heads(context)


class StepSelfAttention(StepAttention):
    """Attends from each token to itself and the tokens before it."""

    def __init__(self, attention: Attention) -> None:
        super().__init__(attention)
        self.query_key_value = StepProjections([attention.query, attention.key, attention.value])
        if hasattr(attention, "relative_bias"):
            self.relative_bias = attention.relative_bias

    def __call__(
        self, x: jax.Array, cache: LayerCache, state: DecoderState, bias: Bias
    ) -> tuple[jax.Array, LayerCache]:
        """Returns the attention output [B, K, D] of the beams' tokens x [B, K, D] at `state.position`, and their cache.

        Each token attends to itself and to its own beam's tokens. The cache returned holds their keys and values too.
        """
        query, key, value = self.query_key_value.together(x)  # [B, K, N, H] each
        first = state.position * state.num_beams
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(cached, jnp.swapaxes(new, 1, 2).astype(cached.dtype), first, axis=2)
            for cached, new in ((cache.self_keys, key), (cache.self_values, value))
        )  # [B, N, T K, H] each
        bias = self.relative_bias(state.length, state.position) if hasattr(self, "relative_bias") else bias
        bias = bias if bias is None else jnp.repeat(bias, state.num_beams, axis=-1)  # [1, N, 1, T K]
        mask = state.key_is_real.reshape(len(x), 1, 1, -1)  # [B, 1, 1, T K]
        output = self.attend(query, keys, values, AttentionTerms(mask, bias, state.exists()))
        return output, cache._replace(self_keys=keys, self_values=values)


class StepCrossAttention(StepAttention):
    """Attends from each token to the encoder's output."""

    def __init__(self, attention: Attention) -> None:
        super().__init__(attention)
        self.query = StepProjections([attention.query])
        self.key_value = StepProjections([attention.key, attention.value])

    def __call__(self, x: jax.Array, cache: LayerCache, mask: Mask) -> jax.Array:
        """Returns the attention output [B, K, D] of x [B, K, D] over the cached source, with mask [B, 1, 1, S]."""
        return self.attend(self.query(x), cache.cross_keys, cache.cross_values, AttentionTerms(mask))

    def keys_and_values(self, encoder_output: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the keys and the values [B, N, S, H] of encoder_output [B, S, D]: heads before tokens."""
        keys, values = self.key_value.together(encoder_output)  # [B, S, N, H] each
        return jnp.swapaxes(keys, 1, 2), jnp.swapaxes(values, 1, 2)


class StepLayer(Layer):
    """Rearranges a DecoderLayer's parameters for decoding; the DecoderLayer can't be used afterwards."""

    def __init__(self, layer: DecoderLayer) -> None:
        self.config, self.stack = layer.config, layer.stack
        for name, part in vars(layer).items():
            if name.endswith(("_norm", "_scale")):
                setattr(self, name, part)
        self.self_attention = StepSelfAttention(layer.self_attention)
        self.cross_attention = StepCrossAttention(layer.cross_attention)
        if self.config.feed_forward:
            self.feed_forward = layer.feed_forward
            for name, part in list(vars(self.feed_forward).items()):
                if isinstance(part, Projection):
                    setattr(self.feed_forward, name, StepProjections([part]))

    def __call__(
        self, x: jax.Array, cache: LayerCache, state: DecoderState, bias: Bias
    ) -> tuple[jax.Array, LayerCache]:
        """Returns the layer's output [B, K, D] for the K beams' tokens x [B, K, D] at `state.position`, and the cache.

        Args:
          cache: the keys and values of the tokens before; the one returned holds these tokens' too.
          state: already counts these tokens in (`DecoderState.written`).
          bias: the stack's relative-position bias for the T columns, [1, N, 1, T].
        """
        written = cache

        def attend_self(h: jax.Array, _: Scope) -> jax.Array:
            nonlocal written
            y, written = self.self_attention(h, cache, state, bias)
            return y

        sublayers: dict[Site, Sublayer] = {
            Site.SELF_ATTENTION: attend_self,
            Site.CROSS_ATTENTION: lambda h, _: self.cross_attention(h, cache, state.cross_mask),
        }
        if self.config.feed_forward:
            sublayers[Site.FEED_FORWARD] = self.feed_forward
        return self.apply(x, sublayers, Scope()), written


def _logits(query: jax.Array, keys: jax.Array, wide: jnp.dtype) -> jax.Array:
    """Computes query [B, N, Q, H] · keys [B, N, K, H] → [B, N, Q, K]."""
    return jnp.einsum("BNQH,BNKH->BNQK", query, keys, preferred_element_type=wide)


def _logits_of_few(query: jax.Array, keys: jax.Array, wide: jnp.dtype) -> jax.Array:
    if query.shape[2] == 1:
        return _logits(query, keys, wide)
    return jnp.sum(query[..., None, :].astype(wide) * keys[:, :, None].astype(wide), axis=-1)


def _contexts(weights: jax.Array, values: jax.Array) -> jax.Array:
    """weights [B, N, Q, K], values [B, N, K, H] → [B, N, Q, H]."""
    return jnp.einsum("BNQK,BNKH->BNQH", weights, values)


def _contexts_of_few(weights: jax.Array, values: jax.Array) -> jax.Array:
    if weights.shape[2] == 1:
        return _contexts(weights, values)
    return jnp.sum(weights[..., None] * values[:, :, None], axis=-2)
