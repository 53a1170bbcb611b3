"""The decoder's layers as decoding runs them: one token of each beam at a time, over cached keys and values."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.model.attention import Attention, Bias, attention_scale, attention_weights
from jax_transformer.model.decoder_state import DecoderState, LayerCache
from jax_transformer.model.dropout import Site
from jax_transformer.model.dtypes import at_least_float32
from jax_transformer.model.layers import DecoderLayer, Layer
from jax_transformer.model.masks import Mask
from jax_transformer.model.projections import Projection, StepProjections
from jax_transformer.model.trace import Tap


class StepAttention(nnx.Module):
    """What self- and cross-attention share; K is the number of beams."""

    def __init__(self, attention: Attention) -> None:
        self.config = attention.config
        if attention.config.attention_output:
            self.output = StepProjections([attention.output])

    def attend(
        self, query: jax.Array, keys: jax.Array, values: jax.Array, mask: Mask, bias: Bias = None, exists: Mask = None
    ) -> jax.Array:
        """`Attention.attend` to a cache: query [B, K, N, H], keys and values [B, N, T, H] → [B, K, D].

        On a CPU few queries are multiplied and added up elementwise, which XLA fuses and spreads over the cores; its
        batched products of small matrices take twice as long, but for one query.
        """
        query = jnp.swapaxes(query, 1, 2)
        wide = at_least_float32(query.dtype)
        logits = jax.lax.platform_dependent(
            query, keys, cpu=partial(_logits_of_few, wide=wide), default=partial(_logits, wide=wide)
        )
        weights = attention_weights(
            self.config, logits * attention_scale(self.config, query.shape[-1]), mask, bias, exists
        )
        context = jax.lax.platform_dependent(
            weights.astype(values.dtype), values, cpu=_contexts_of_few, default=_contexts
        )
        context = jnp.swapaxes(context, 1, 2)
        return self.output(context) if self.config.attention_output else context.reshape(*context.shape[:2], -1)


class StepSelfAttention(StepAttention):
    """Each token over itself and those before it."""

    def __init__(self, attention: Attention) -> None:
        super().__init__(attention)
        self.query_key_value = StepProjections([attention.query, attention.key, attention.value])
        if hasattr(attention, "relative_bias"):
            self.relative_bias = attention.relative_bias

    def __call__(
        self, x: jax.Array, keys: jax.Array, values: jax.Array, state: DecoderState, bias: Bias
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The beams' tokens at state.position, x [B, K, D], each over itself and its own in the cache [B, N, T K, H].

        Returns the output [B, K, D] and the cache with these tokens' keys and values written in.
        """
        query, key, value = self.query_key_value.together(x)
        first = state.position * state.num_beams
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(cache, jnp.swapaxes(new, 1, 2).astype(cache.dtype), first, axis=2)
            for cache, new in ((keys, key), (values, value))
        )
        bias = self.relative_bias(state.length, state.position) if hasattr(self, "relative_bias") else bias
        bias = bias if bias is None else jnp.repeat(bias, state.num_beams, axis=-1)
        mask = state.key_is_real.reshape(len(x), 1, 1, -1)
        return self.attend(query, keys, values, mask, bias, state.exists()), keys, values


class StepCrossAttention(StepAttention):
    """Each token over the encoder's output."""

    def __init__(self, attention: Attention) -> None:
        super().__init__(attention)
        self.query = StepProjections([attention.query])
        self.key_value = StepProjections([attention.key, attention.value])

    def __call__(self, x: jax.Array, keys: jax.Array, values: jax.Array, mask: Mask) -> jax.Array:
        """x [B, K, D], keys and values [B, N, S, H], mask [B, 1, 1, S] → [B, K, D]."""
        return self.attend(self.query(x), keys, values, mask)

    def keys_and_values(self, encoder_output: jax.Array) -> tuple[jax.Array, jax.Array]:
        """encoder_output [B, S, D] → two arrays [B, N, S, H]: heads before tokens."""
        keys, values = self.key_value.together(encoder_output)
        return jnp.swapaxes(keys, 1, 2), jnp.swapaxes(values, 1, 2)


class StepLayer(Layer):
    """A DecoderLayer of the same parameters; the one given can't be used afterwards."""

    def __init__(self, layer: DecoderLayer) -> None:
        self.config = layer.config
        for name, part in vars(layer).items():
            if name.endswith("_norm"):
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
        """`DecoderLayer` of the K beams' tokens x [B, K, D] at state.position, the tokens before them being in the
        cache.

        Args:
          state: with these tokens counted in.
          bias: of the stack, for the T columns, [1, N, 1, T].
        """
        tap = Tap()
        h = self.before(Site.SELF_ATTENTION, x, tap)
        y, keys, values = self.self_attention(h, cache.self_keys, cache.self_values, state, bias)
        x = self.after(Site.SELF_ATTENTION, x, y, tap, None)

        h = self.before(Site.CROSS_ATTENTION, x, tap)
        y = self.cross_attention(h, cache.cross_keys, cache.cross_values, state.cross_mask)
        x = self.after(Site.CROSS_ATTENTION, x, y, tap, None)
        return self.transform(x, tap, None), cache._replace(self_keys=keys, self_values=values)


def _logits(query: jax.Array, keys: jax.Array, wide: jnp.dtype) -> jax.Array:
    return jnp.einsum("BNQH,BNKH->BNQK", query, keys, preferred_element_type=wide)


def _logits_of_few(query: jax.Array, keys: jax.Array, wide: jnp.dtype) -> jax.Array:
    if query.shape[2] == 1:
        return _logits(query, keys, wide)
    return jnp.sum(query[..., None, :].astype(wide) * keys[:, :, None].astype(wide), axis=-1)


def _contexts(weights: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.einsum("BNQK,BNKH->BNQH", weights, values)


def _contexts_of_few(weights: jax.Array, values: jax.Array) -> jax.Array:
    if weights.shape[2] == 1:
        return _contexts(weights, values)
    return jnp.sum(weights[..., None] * values[:, :, None], axis=-2)
