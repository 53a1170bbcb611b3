"""The decoder's layers while decoding: one token of each beam at a time, over cached keys and values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config.plan import SublayerName
from jax_transformer.model.attention import Attention, attention_weights, merge_heads, normed_together
from jax_transformer.model.decoder_state import DecoderState, LayerCache
from jax_transformer.model.dtypes import at_least_float32, product_dtype
from jax_transformer.model.layers import Call, DecoderLayer, Layer
from jax_transformer.model.masks import Mask, both
from jax_transformer.model.projections import Projection, StepProjections
from jax_transformer.model.rotary import Angles, rotate, rotates_cross_attention
from jax_transformer.model.scope import Scope
from jax_transformer.model.terms import AttentionTerms, layer_terms


class StepAttention(nnx.Module):
    """Attends from the tokens of K beams to cached keys and values; self- and cross-attention build on it."""

    def __init__(self, attention: Attention) -> None:
        self.how, self.part, self.rotary = attention.how, attention.part, attention.rotary
        if self.part.output:
            self.output = StepProjections([attention.output])
        if self.part.query_key_norm:
            self.query_norm, self.key_norm = attention.query_norm, attention.key_norm
        if self.part.head_scale:
            self.head_scale = attention.head_scale
        if hasattr(attention, "context_norm"):
            self.context_norm = attention.context_norm

    def attend(
        self, query: jax.Array, keys: jax.Array, values: jax.Array, terms: AttentionTerms, layout: str = "BGTH"
    ) -> jax.Array:
        """Returns the attention output [B, K, D] of query [B, K, N, H] over keys and values [B, G, T, W].

        Query heads that share a key count as further queries of that key's head.

        Args:
          layout: the axes of the keys.
        """
        query = jnp.swapaxes(query, 1, 2)  # [B, N, K, H]
        by_head = query.shape[:-1]  # [B, N, K]
        dtype = query.dtype
        query = query.reshape(query.shape[0], keys.shape[1], -1, query.shape[-1])  # [B, G, N / G K, H]
        query, wide = query.astype(keys.dtype), at_least_float32(dtype)
        logits = jnp.einsum(f"BGQH,{layout}->BGQT", query, keys, preferred_element_type=wide)
        logits = logits.reshape(*by_head, -1)  # [B, N, K, T]
        if terms.vectors is not None:
            products = jnp.einsum("BGQH,TH->BGQT", query, terms.vectors.keys[0], preferred_element_type=wide)
            logits = logits + products.reshape(logits.shape)
        weights = attention_weights(self.part, logits * self.how.scale(query.shape[-1]), terms)
        weights = weights.reshape(*query.shape[:-1], -1).astype(values.dtype)
        context = jnp.einsum("BGQT,BGTW->BGQW", weights, values)
        if terms.vectors is not None and terms.vectors.values is not None:
            context = context + jnp.einsum("BGQT,TH->BGQH", weights, terms.vectors.values[0])
        context = jnp.swapaxes(context.astype(dtype).reshape(*by_head, -1), 1, 2)  # [B, K, N, W]
        context = self.head_scale(context) if self.part.head_scale else context
        context = normed_together(self.context_norm, context) if hasattr(self, "context_norm") else context
        return self.output(context) if self.part.output else merge_heads(context)

    def placed_query(self, query: jax.Array, angles: Angles | None) -> jax.Array:
        """Returns queries [B, K, N, H] normed and rotated, as configured."""
        query = self.query_norm(query) if self.part.query_key_norm else query
        return query if angles is None or self.rotary is None else rotate(self.rotary, query, angles)

    def placed_key(self, key: jax.Array, angles: Angles | None) -> jax.Array:
        """Returns keys [B, T, G, H] normed and rotated, as configured."""
        key = self.key_norm(key) if self.part.query_key_norm else key
        return key if angles is None or self.rotary is None else rotate(self.rotary, key, angles)


class StepSelfAttention(StepAttention):
    """Attends from each token to itself and the tokens before it."""

    def __init__(self, attention: Attention) -> None:
        super().__init__(attention)
        self.query_key_value = StepProjections([attention.query, attention.key, attention.value])
        for name in ("relative_bias", "relative_vectors"):
            if hasattr(attention, name):
                setattr(self, name, getattr(attention, name))

    def __call__(
        self, x: jax.Array, cache: LayerCache, state: DecoderState, terms: AttentionTerms, scope: Scope
    ) -> tuple[jax.Array, LayerCache]:
        """Returns the attention output [B, K, D] of the beams' tokens x [B, K, D] at `state.position`, and their cache.

        Each token attends to itself and to its own beam's tokens. The cache returned holds their keys and values too.
        """
        query, key, value = self.query_key_value.together(x)  # [B, K, N, H], [B, K, G, H], [B, K, G, W]
        angles = None if terms.rotation is None else terms.rotation.query
        query, key = self.placed_query(query, angles), self.placed_key(key, angles)
        first = state.position * state.num_beams
        layout = state.key_layout
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(cached, new.astype(cached.dtype), first, axis)
            for cached, new, axis in (
                (cache.self_keys, jnp.einsum(f"BTGH->{layout}", key), layout.index("T")),
                (cache.self_values, jnp.swapaxes(value, 1, 2), 2),
            )
        )
        mask = state.key_is_real.reshape(x.shape[0], 1, 1, -1)  # [B, 1, 1, T K]
        terms = layer_terms(self, terms, key.dtype, scope).for_beams(state.num_beams)
        terms = terms._replace(mask=both(terms.mask, mask), exists=state.exists())
        return self.attend(query, keys, values, terms, layout), cache._replace(self_keys=keys, self_values=values)


class StepCrossAttention(StepAttention):
    """Attends from each token to the encoder's output."""

    def __init__(self, attention: Attention) -> None:
        super().__init__(attention)
        self.query = StepProjections([attention.query])
        self.key_value = StepProjections([attention.key, attention.value])

    def __call__(self, x: jax.Array, cache: LayerCache, mask: Mask, angles: Angles | None) -> jax.Array:
        """Returns the attention output [B, K, D] of x [B, K, D] over the cached source, with mask [B, 1, 1, S].

        Args:
          angles: rotation angles of queries; None: no rotation.
        """
        query = self.placed_query(self.query(x), angles)
        return self.attend(query, cache.cross_keys, cache.cross_values, AttentionTerms(mask))

    def keys_and_values(self, encoder_output: jax.Array, angles: Angles | None) -> tuple[jax.Array, jax.Array]:
        """Returns the keys [B, G, S, H] and the values [B, G, S, W] of encoder_output [B, S, D]: heads before tokens.

        On a CPU, caches are float32 for bfloat16 too: a single query is multiplied in float32, for which XLA would
        convert all of a cache at every step.

        Args:
          angles: rotation angles of keys; None: no rotation.
        """
        keys, values = self.key_value.together(encoder_output, few=False)  # [B, S, G, H] and [B, S, G, W]
        keys = self.placed_key(keys, angles)
        wide = product_dtype(values.dtype)
        return jnp.swapaxes(keys, 1, 2).astype(wide), jnp.swapaxes(values, 1, 2).astype(wide)


class StepLayer(Layer):
    """Rearranges a DecoderLayer's parameters for decoding; the DecoderLayer can't be used afterwards."""

    def __init__(self, layer: DecoderLayer) -> None:
        self.stack = layer.stack
        for name, part in vars(layer).items():
            if name.endswith(("_norm", "_scale")):
                setattr(self, name, part)
        self.self_attention = StepSelfAttention(layer.self_attention)
        self.cross_attention = StepCrossAttention(layer.cross_attention)
        if self.stack.feed_forward is not None:
            self.feed_forward = layer.feed_forward
            for name, part in list(vars(self.feed_forward).items()):
                if isinstance(part, Projection):
                    setattr(self.feed_forward, name, StepProjections([part]))

    def __call__(
        self, x: jax.Array, cache: LayerCache, state: DecoderState, terms: AttentionTerms, layer: int
    ) -> tuple[jax.Array, LayerCache]:
        """Returns the layer's output [B, K, D] for the K beams' tokens x [B, K, D] at `state.position`, and the cache.

        Args:
          cache: the keys and values of the tokens before; the one returned holds these tokens' too.
          state: already counts these tokens in (`DecoderState.written`).
          terms: what positions add to self-attention (`terms.stack_terms`).
          layer: the layer's number, from 0.
        """
        angles = terms.rotation.query if terms.rotation and rotates_cross_attention(self.stack) else None
        written = cache

        def attend_self(h: jax.Array, scope: Scope) -> jax.Array:
            nonlocal written
            y, written = self.self_attention(h, cache, state, terms, scope)
            return y

        calls: dict[SublayerName, Call] = {
            "self_attention": attend_self,
            "cross_attention": lambda h, _: self.cross_attention(h, cache, state.cross_mask, angles),
        }
        if self.stack.feed_forward is not None:
            calls["feed_forward"] = self.feed_forward
        return self.apply(x, calls, Scope(layer=layer)), written
