"""Multi-head attention (Vaswani et al. 2017, §3.2)."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config import positions, specs
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Stack
from jax_transformer.model import flash
from jax_transformer.model.distances import RelativeBias, RelativeVectors
from jax_transformer.model.dropout import Site, fold
from jax_transformer.model.dtypes import at_least_float32, product_dtype
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.masks import Mask, both
from jax_transformer.model.norms import Norm
from jax_transformer.model.projections import Projection, project_together
from jax_transformer.model.rotary import Rotation, rotate
from jax_transformer.model.scope import Scope
from jax_transformer.model.sharding import platform
from jax_transformer.model.terms import AttentionTerms, Bias, layer_terms


class Heads(NamedTuple):
    """Holds the inputs of attention, split into heads; G divides N."""

    query: jax.Array  # [B, Q, N, H]
    key: jax.Array  # [B, K, G, H]
    value: jax.Array  # [B, K, G, W]

    def for_all_queries(self) -> Heads:
        """Returns the heads with keys [B, K, N, H] and values [B, K, N, W], repeated for the query heads that share
        them."""
        shared = self.query.shape[2] // self.key.shape[2]
        if shared == 1:
            return self
        return Heads(self.query, *(jnp.repeat(array, shared, axis=2) for array in (self.key, self.value)))

    def padded_to_one_width(self) -> Heads:
        """Pads features with zeros to the larger of H and W. Zeros add nothing to logits, and give zeros in
        contexts."""
        width = max(self.query.shape[-1], self.value.shape[-1])
        if self.query.shape[-1] == self.value.shape[-1]:
            return self
        more = ((0, 0), (0, 0), (0, 0))
        return Heads(*(jnp.pad(array, (*more, (0, width - array.shape[-1]))) for array in self))


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
      name: self_attention or cross_attention. Only self-attention may have its own relative-position biases or vectors,
        which replace the stack's.
    """

    def __init__(
        self, config: TransformerConfig, stack: Stack, part: specs.Attention, keys: KeyStream, name: str
    ) -> None:
        self.part, self.rotary = part, _rotary_of(stack)
        self.how = Computation.of(config, stack, part)
        shape, features, use_bias = part.shape(stack.d_model), (stack.d_model,), part.bias
        heads, contexts = (shape.num_heads, shape.head_dim), (shape.num_heads, shape.value_dim)
        groups, values = (shape.num_kv_heads, shape.head_dim), (shape.num_kv_heads, shape.value_dim)
        self.query = Projection(config, features, heads, keys, use_bias=use_bias, role="query_key_value")
        self.key = Projection(config, features, groups, keys, use_bias=part.has_key_bias, role="query_key_value")
        self.value = Projection(config, features, values, keys, use_bias=use_bias, role="query_key_value")
        if part.output:
            self.output = Projection(config, contexts, features, keys, use_bias=part.output_bias, wide="inputs")
        if part.query_key_norm:
            self.query_norm, self.key_norm = Norm(stack, shape.head_dim), Norm(stack, shape.head_dim)
        if part.head_scale:
            self.head_scale = HeadScale(shape.num_heads)
        if part.context_norm:
            self.context_norm = Norm(stack, shape.num_heads * shape.value_dim, "width")
        kind = stack.positions if name == "self_attention" else None
        if isinstance(kind, positions.RelativeBias) and kind.per_layer:
            self.relative_bias = RelativeBias(kind, stack, keys)
        if isinstance(kind, positions.RelativeVectors) and kind.per_layer:
            self.relative_vectors = RelativeVectors(kind, stack, keys)

    def __call__(self, x: jax.Array, y: jax.Array, terms: AttentionTerms, scope: Scope) -> jax.Array:
        """Returns the attention output [B, Q, D] of x [B, Q, D] over y [B, K, D]."""
        if x is y:
            heads = Heads(*project_together([self.query, self.key, self.value], x))
        else:
            heads = Heads(self.query(x), *project_together([self.key, self.value], y))
        heads = Heads(*(scope.tap(name, array) for name, array in heads._asdict().items()))
        heads = self._placed(heads, terms.rotation, scope)
        terms = layer_terms(self, terms, heads.key.dtype, scope)

        context = scope.tap("context", attend(self.how, heads, terms, scope))  # [B, Q, N, W]
        if self.part.head_scale:
            context = scope.tap("scaled_context", self.head_scale(context))
        if hasattr(self, "context_norm"):
            context = scope.tap("normed_context", normed_together(self.context_norm, context))
        return scope.tap("output", self.output(context) if self.part.output else merge_heads(context))

    def _placed(self, heads: Heads, rotation: Rotation | None, scope: Scope) -> Heads:
        """Returns the heads with queries and keys normed and rotated, as configured."""
        query, key, value = heads
        if self.part.query_key_norm:
            query = scope.tap("normed_query", self.query_norm(query))
            key = scope.tap("normed_key", self.key_norm(key))
        if rotation is not None and self.rotary is not None:
            query = scope.tap("rotated_query", rotate(self.rotary, query, rotation.query))
            key = scope.tap("rotated_key", rotate(self.rotary, key, rotation.key))
        return Heads(query, key, value)


def normed_together(norm: Norm, context: jax.Array) -> jax.Array:
    """Returns context [B, Q, N, W] normed over all heads together."""
    return norm(merge_heads(context)).reshape(context.shape)


def merge_heads(context: jax.Array) -> jax.Array:
    """Returns context [B, Q, N, W] as [B, Q, N W]."""
    return context.reshape(*context.shape[:2], -1)


def _rotary_of(stack: Stack) -> positions.Rotary | None:
    return stack.positions if isinstance(stack.positions, positions.Rotary) else None


class Dropout(Protocol):
    """Drops a share of attention weights; without dropout, none."""

    def __call__(self, weights: jax.Array, /) -> jax.Array:
        """Returns the weights, of any shape, with a share of them 0 and the others scaled up."""


class AttentionFunction(Protocol):
    """Computes attention in place of softmax(query · key · scale + bias) · value: a function of a user's."""

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        *,
        mask: Mask,
        bias: Bias,
        scale: float,
        dropout: Dropout,
    ) -> jax.Array:
        """Returns the contexts [B, Q, N, W] of query [B, Q, N, H] over key [B, K, N, H] and value [B, K, N, W], in the
        values' dtype.

        Args:
          mask: [B, N or 1, Q, K] or broadcastable to it; True: may attend. None: every query may attend to every key.
          bias: what positions add to the scaled logits, [1, N, Q, K] or broadcastable to it. None: nothing.
          scale: the factor of the logits.
          dropout: the model's dropout on attention weights.
        """


class Computation(NamedTuple):
    """Holds how attention is computed."""

    part: specs.Attention
    path: specs.AttentionPath = "reference"
    dropout_rate: float = 0.0
    """Rate on attention weights."""
    own: AttentionFunction | None = None
    """A user's function, in place of all paths."""

    @classmethod
    def of(cls, config: TransformerConfig, stack: Stack, part: specs.Attention) -> Computation:
        """Returns the computation of an attention in one of a model's stacks."""
        return cls(part, config.compute.attention, stack.dropout.at("attention"))

    def scale(self, head_dim: int) -> float:
        """Returns the factor of the logits: the config's, or 1/sqrt(head_dim)."""
        return 1.0 / math.sqrt(head_dim) if self.part.scale is None else self.part.scale


def attend(how: Computation, heads: Heads, terms: AttentionTerms, scope: Scope) -> jax.Array:
    """Returns the context [B, Q, N, W], computed on the path that the config names."""
    if how.own is not None:
        return own_attention(how, how.own, heads.for_all_queries(), terms, scope)
    path = how.path
    if terms.vectors is not None or how.part.path_obstacle:
        path = "reference"
    elif path == "auto":
        is_watched = scope.tap.record or scope.tap.intervenes
        path = "flash" if not is_watched and flash.is_better(heads.query, heads.key, terms.mask) else "reference"
    if path == "reference" or terms.exists is not None:
        return reference_attention(how, heads.for_all_queries(), terms, scope)
    if path == "flash":
        return flash_path(how, heads.for_all_queries(), terms, scope)
    return fused_attention(how, heads, terms)  # which knows heads for several queries


def own_attention(
    how: Computation, function: AttentionFunction, heads: Heads, terms: AttentionTerms, scope: Scope
) -> jax.Array:
    """Returns the context [B, Q, N, W] that a user's function computes.

    Raises:
      ValueError: it returns another shape or dtype.
    """
    context = function(
        *heads,
        mask=both(terms.mask, terms.exists),
        bias=terms.bias,
        scale=how.scale(heads.query.shape[-1]),
        dropout=lambda weights: scope.dropout(weights, how.dropout_rate, Site.WEIGHTS),
    )
    shape = (*heads.query.shape[:-1], heads.value.shape[-1])
    check_own("attention", "contexts [B, Q, N, W]", context, shape, heads.value.dtype)
    return context


def check_own(name: str, what: str, array: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> None:
    """Raises ValueError unless an array that a user's function returns has this shape and dtype."""
    received = getattr(array, "shape", None), getattr(array, "dtype", None)
    if received != (shape, dtype):
        is_array = None not in received
        shown = f"{received[0]} of {received[1]}" if is_array else type(array).__name__
        raise ValueError(f"{name}: expected {what}, {shape} of {dtype}; received {shown}")


def reference_attention(how: Computation, heads: Heads, terms: AttentionTerms, scope: Scope) -> jax.Array:
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
    logits = logits * how.scale(heads.query.shape[-1])
    weights = attention_weights(how.part, logits, terms, scope)
    weights = scope.dropout(weights, how.dropout_rate, Site.WEIGHTS).astype(heads.value.dtype)
    wide = product_dtype(heads.value.dtype)
    by_head = jnp.swapaxes(heads.value, 1, 2)  # else, XLA's CPU compiler transposes the weights, which are more
    context = jnp.einsum("BNQK,BNKH->BNQH", weights, by_head, preferred_element_type=wide)
    context = jnp.swapaxes(context, 1, 2).astype(heads.value.dtype)
    if terms.vectors is None or terms.vectors.values is None:
        return context
    return context + jnp.einsum("BNQK,QKH->BQNH", weights, terms.vectors.values)


def capped(logits: jax.Array, cap: float | None) -> jax.Array:
    """Returns cap · tanh(logits / cap), of the same shape; without a cap, the logits."""
    return logits if cap is None else cap * jnp.tanh(logits / cap)


def attention_weights(
    part: specs.Attention, logits: jax.Array, terms: AttentionTerms, scope: Scope | None = None
) -> jax.Array:
    """Returns the softmax over the keys of scaled logits [B, N, Q, K], after their cap, bias and masks."""
    tap = (scope or Scope()).tap
    logits = capped(logits, part.logits_cap)
    logits = logits if terms.bias is None else logits + terms.bias.astype(logits.dtype)
    if terms.mask is not None:
        masked_value = jnp.finfo(logits.dtype).min if part.masked_value is None else part.masked_value
        logits = jnp.where(terms.mask, logits, jnp.asarray(masked_value, logits.dtype))
    if terms.exists is not None:
        logits = jnp.where(terms.exists, logits, -jnp.inf)
    return tap("weights", jax.nn.softmax(tap("logits", logits), axis=-1))


def flash_path(how: Computation, heads: Heads, terms: AttentionTerms, scope: Scope) -> jax.Array:
    """Computes the same context [B, Q, N, W] in blocks, with the same weights dropped."""
    context = flash.flash_attention(
        *heads.padded_to_one_width(),
        mask=terms.mask,
        bias=terms.bias,
        scale=how.scale(heads.query.shape[-1]),
        masked_value=how.part.masked_value,
        dropout_rate=how.dropout_rate,
        dropout_key=fold(scope.dropout_key, Site.WEIGHTS),
    )
    return context[..., : heads.value.shape[-1]]


def fused_attention(how: Computation, heads: Heads, terms: AttentionTerms) -> jax.Array:
    """Computes the same context [B, Q, N, W] with `jax.nn.dot_product_attention`, which can't drop attention weights.

    Raises:
      ValueError: float64, which it would compute in float32; cuDNN without a GPU, or in float32.
    """
    if heads.query.dtype == jnp.float64:
        raise ValueError(f"attention_path={how.path!r} computes in float32; float64 needs attention_path='reference'")
    if how.path == "cudnn" and (platform() != "gpu" or heads.query.dtype == jnp.float32):
        raise ValueError(
            "attention_path='cudnn': expected an NVIDIA GPU and compute_dtype='bfloat16'; received "
            f"{heads.query.dtype} on a {platform()}; leave it to attention_path='auto'"
        )
    context = jax.nn.dot_product_attention(
        *heads.padded_to_one_width(),
        bias=None if terms.bias is None else terms.bias.astype(heads.query.dtype),
        mask=terms.mask,
        scale=how.scale(heads.query.shape[-1]),
        implementation="cudnn" if how.path == "cudnn" else "xla",
    )
    return context[..., : heads.value.shape[-1]]
