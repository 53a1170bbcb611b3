"""Multi-head attention (Vaswani et al. 2017, §3.2)."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Stack as StackConfig
from jax_transformer.model import flash
from jax_transformer.model.distances import RelativeBias, RelativeVectors, Vectors
from jax_transformer.model.dropout import Site, fold
from jax_transformer.model.dtypes import at_least_float32
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.masks import Mask
from jax_transformer.model.norms import Norm
from jax_transformer.model.projections import Projection, project_together
from jax_transformer.model.rotary import Rotation, rotate
from jax_transformer.model.scope import Scope
from jax_transformer.model.sharding import platform

Bias = jax.Array | None
"""An array added to attention logits, [1, N, Q, K] or broadcastable; None adds nothing."""


class Heads(NamedTuple):
    """Holds the inputs of attention, split into heads; G divides N."""

    query: jax.Array  # [B, Q, N, H]
    key: jax.Array  # [B, K, G, H]
    value: jax.Array  # [B, K, G, W]

    def for_all_queries(self) -> Heads:
        """Returns the heads with keys [B, K, N, H] and values [B, K, N, W]: neighbouring query heads have the same."""
        shared = self.query.shape[2] // self.key.shape[2]
        if shared == 1:
            return self
        return Heads(self.query, *(jnp.repeat(array, shared, axis=2) for array in (self.key, self.value)))

    def of_one_width(self) -> Heads:
        """Returns the heads with zeros after the features of those that are narrower, which adds nothing to logits, and
        to contexts features that are zero."""
        width = max(self.query.shape[-1], self.value.shape[-1])
        if self.query.shape[-1] == self.value.shape[-1]:
            return self
        more = ((0, 0), (0, 0), (0, 0))
        return Heads(*(jnp.pad(array, (*more, (0, width - array.shape[-1]))) for array in self))


class AttentionTerms(NamedTuple):
    """Holds everything that enters attention logits besides query · key."""

    mask: Mask = None
    """Boolean, True = may attend. Masked logits become one finite value, so a fully masked row attends to all keys
    alike."""
    bias: Bias = None
    """Added to the scaled logits."""
    exists: Mask = None
    """Boolean, False = an empty slot of a cache or buffer. Such keys get a weight of exactly zero, even in fully masked
    rows."""
    rotation: Rotation | None = None
    """The angles by which positions rotate queries and keys; None rotates nothing."""
    vectors: Vectors | None = None
    """What distances add to keys and values; None adds nothing."""


class HeadScale(nnx.Module):
    """Multiplies each head by a learned factor (NormFormer, Shleifer et al. 2021, §2)."""

    def __init__(self, heads: int) -> None:
        self.scale = nnx.Param(jnp.ones(heads, jnp.float32))  # [N]

    def __call__(self, context: jax.Array) -> jax.Array:
        """Returns context [B, Q, N, W] scaled, in its dtype."""
        return context * self.scale[...].astype(context.dtype)[:, None]


class Attention(nnx.Module):
    """Attends from x over y; x and y are the same array in self-attention.

    Args:
      name: self_attention or cross_attention. Some options are of the former alone, such as relative-position biases
        or vectors of its own, which replace the stack's.
    """

    def __init__(self, config: TransformerConfig, stack: StackConfig, keys: KeyStream, name: str) -> None:
        self.config = config
        features, heads, use_bias = (config.d_model,), (stack.num_heads, stack.head_dim), config.attention_bias
        groups, values = (stack.num_kv_heads, stack.head_dim), (stack.num_kv_heads, stack.value_dim)
        self.query = Projection(config, features, heads, keys, use_bias=use_bias, role="query_key_value")
        self.key = Projection(config, features, groups, keys, use_bias=use_bias, role="query_key_value")
        self.value = Projection(config, features, values, keys, use_bias=use_bias, role="query_key_value")
        if config.attention_output:
            contexts = stack.num_heads, stack.value_dim
            self.output = Projection(
                config, contexts, features, keys, use_bias=config.attention_output_bias, wide="inputs"
            )
        if config.query_key_norm:
            self.query_norm, self.key_norm = Norm(config, stack.head_dim), Norm(config, stack.head_dim)
        if config.head_scale:
            self.head_scale = HeadScale(stack.num_heads)
        if name in config.normed_contexts:
            self.context_norm = Norm(config, stack.num_heads * stack.value_dim, "width")
        own_distances = config.relative_bias_per_layer and name == "self_attention"
        if own_distances and stack.position_kind == "relative_bias":
            self.relative_bias = RelativeBias(config, stack, keys)
        if own_distances and stack.position_kind == "relative_vectors":
            self.relative_vectors = RelativeVectors(config, stack, keys)

    def __call__(self, x: jax.Array, y: jax.Array, terms: AttentionTerms, scope: Scope) -> jax.Array:
        """Returns the attention output [B, Q, D] of x [B, Q, D] over y [B, K, D]."""
        if x is y:
            heads = Heads(*project_together([self.query, self.key, self.value], x))
        else:
            heads = Heads(self.query(x), *project_together([self.key, self.value], y))
        heads = Heads(*(scope.tap(name, array) for name, array in heads._asdict().items()))
        heads = self._placed(heads, terms.rotation, scope)
        if hasattr(self, "relative_bias"):
            terms = terms._replace(bias=scope.tap("position_bias", self.relative_bias(y.shape[1])))  # [1, N, Q, K]
        if hasattr(self, "relative_vectors"):
            terms = terms._replace(vectors=self.relative_vectors(y.shape[1], None, heads.key.dtype))

        context = scope.tap("context", attend(self.config, heads, terms, scope))  # [B, Q, N, W]
        if self.config.head_scale:
            context = scope.tap("scaled_context", self.head_scale(context))
        if hasattr(self, "context_norm"):
            context = scope.tap("normed_context", normed_together(self.context_norm, context))
        return scope.tap("output", self.output(context) if self.config.attention_output else merge_heads(context))

    def _placed(self, heads: Heads, rotation: Rotation | None, scope: Scope) -> Heads:
        """Returns the heads with queries and keys normed and rotated, if the config says so."""
        query, key, value = heads
        if self.config.query_key_norm:
            query = scope.tap("normed_query", self.query_norm(query))
            key = scope.tap("normed_key", self.key_norm(key))
        if rotation is not None:
            query = scope.tap("rotated_query", rotate(self.config, query, rotation.query))
            key = scope.tap("rotated_key", rotate(self.config, key, rotation.key))
        return Heads(query, key, value)


def normed_together(norm: Norm, context: jax.Array) -> jax.Array:
    """Returns context [B, Q, N, W] normed over all heads together."""
    return norm(merge_heads(context)).reshape(context.shape)


def merge_heads(context: jax.Array) -> jax.Array:
    """Returns context [B, Q, N, W] as [B, Q, N W]."""
    return context.reshape(*context.shape[:2], -1)


def attend(config: TransformerConfig, heads: Heads, terms: AttentionTerms, scope: Scope) -> jax.Array:
    """Returns the context [B, Q, N, W], computed on the path that the config names."""
    path = config.attention_path
    if terms.vectors is not None:
        path = "reference"
    elif path == "auto":
        is_watched = scope.tap.record or scope.tap.intervenes
        path = "flash" if not is_watched and flash.is_better(heads.query, heads.key, terms.mask) else "reference"
    if path == "reference" or terms.exists is not None:
        return reference_attention(config, heads.for_all_queries(), terms, scope)
    if path == "flash":
        return flash_path(config, heads.for_all_queries(), terms, scope)
    return fused_attention(config, heads, terms)  # which knows heads for several queries


def reference_attention(config: TransformerConfig, heads: Heads, terms: AttentionTerms, scope: Scope) -> jax.Array:
    """Computes softmax(query · key · scale + bias) · value step by step, with logits and softmax in at least float32.

    Vectors of distances are added to the key, and to the value, of each query on its own.

    Returns:
      The context [B, Q, N, W], in the values' dtype.
    """
    wide = at_least_float32(heads.query.dtype)
    logits = jnp.einsum("BQNH,BKNH->BNQK", heads.query, heads.key, preferred_element_type=wide)
    if terms.vectors is not None:
        by_distance = terms.vectors.keys
        logits = logits + jnp.einsum("BQNH,QKH->BNQK", heads.query, by_distance, preferred_element_type=wide)
    logits = logits * attention_scale(config, heads.query.shape[-1])
    weights = attention_weights(config, logits, terms, scope)
    weights = scope.dropout(weights, attention_dropout_rate(config), Site.WEIGHTS).astype(heads.value.dtype)
    context = jnp.einsum("BNQK,BKNH->BQNH", weights, heads.value)
    if terms.vectors is None or terms.vectors.values is None:
        return context
    return context + jnp.einsum("BNQK,QKH->BQNH", weights, terms.vectors.values)


def attention_weights(
    config: TransformerConfig, logits: jax.Array, terms: AttentionTerms, scope: Scope | None = None
) -> jax.Array:
    """Returns the softmax over the keys of scaled logits [B, N, Q, K], after bias and masks."""
    tap = (scope or Scope()).tap
    logits = logits if terms.bias is None else logits + terms.bias.astype(logits.dtype)
    if terms.mask is not None:
        masked_value = jnp.finfo(logits.dtype).min if config.masked_value is None else config.masked_value
        logits = jnp.where(terms.mask, logits, jnp.asarray(masked_value, logits.dtype))
    if terms.exists is not None:
        logits = jnp.where(terms.exists, logits, -jnp.inf)
    return tap("weights", jax.nn.softmax(tap("logits", logits), axis=-1))


def flash_path(config: TransformerConfig, heads: Heads, terms: AttentionTerms, scope: Scope) -> jax.Array:
    """Computes the same context [B, Q, N, W] in blocks, with the same weights dropped."""
    context = flash.flash_attention(
        *heads.of_one_width(),
        mask=terms.mask,
        bias=terms.bias,
        scale=attention_scale(config, heads.query.shape[-1]),
        masked_value=config.masked_value,
        dropout_rate=attention_dropout_rate(config),
        dropout_key=fold(scope.dropout_key, Site.WEIGHTS),
    )
    return context[..., : heads.value.shape[-1]]


def fused_attention(config: TransformerConfig, heads: Heads, terms: AttentionTerms) -> jax.Array:
    """Computes the same context [B, Q, N, W] with `jax.nn.dot_product_attention`, which has no dropout on the weights.

    Raises:
      ValueError: the dtype is float64, which would be computed in float32; cuDNN without a GPU, or in float32.
    """
    if heads.query.dtype == jnp.float64:
        raise ValueError(
            f"attention_path={config.attention_path!r} computes in float32; float64 needs attention_path='reference'"
        )
    if config.attention_path == "cudnn" and (platform() != "gpu" or heads.query.dtype == jnp.float32):
        raise ValueError(
            "attention_path='cudnn': expected an NVIDIA GPU and compute_dtype='bfloat16'; received "
            f"{heads.query.dtype} on a {platform()}; leave it to attention_path='auto'"
        )
    context = jax.nn.dot_product_attention(
        *heads.of_one_width(),
        bias=None if terms.bias is None else terms.bias.astype(heads.query.dtype),
        mask=terms.mask,
        scale=attention_scale(config, heads.query.shape[-1]),
        implementation="cudnn" if config.attention_path == "cudnn" else "xla",
    )
    return context[..., : heads.value.shape[-1]]


def attention_scale(config: TransformerConfig, head_dim: int) -> float:
    """Returns the factor of the logits: the config's, or 1/sqrt(head_dim)."""
    return 1.0 / math.sqrt(head_dim) if config.attention_scale is None else config.attention_scale


def attention_dropout_rate(config: TransformerConfig) -> float:
    """Returns the dropout rate of attention weights: its own if set, else the config's general rate."""
    return config.dropout_rate if config.attention_dropout_rate is None else config.attention_dropout_rate
