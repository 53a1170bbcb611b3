"""Multi-head attention (Vaswani et al. 2017, §3.2)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx

from jax_transformer.config.model import StackConfig, TransformerConfig
from jax_transformer.model.dropout import DropoutKey, Site, dropout, fold
from jax_transformer.model.dtypes import at_least_float32
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.masks import Mask
from jax_transformer.model.positions import RelativeBias
from jax_transformer.model.projections import Projection, project_together
from jax_transformer.model.trace import Tap

Bias = jax.Array | None
"""What is added to attention logits, [1, N, Q, K]; None where nothing is."""


class Attention(nnx.Module):
    """Attention of x over y; self-attention where they are the same.

    Args:
      own_bias: whether it has biases by distance of its own.
    """

    def __init__(self, config: TransformerConfig, stack: StackConfig, keys: KeyStream, own_bias: bool = False) -> None:
        self.config = config
        features, heads = (config.d_model,), (stack.num_heads, stack.head_dim)
        self.query = Projection(config, features, heads, config.attention_bias, keys, "query_key_value")
        self.key = Projection(config, features, heads, config.attention_bias, keys, "query_key_value")
        self.value = Projection(config, features, heads, config.attention_bias, keys, "query_key_value")
        if config.attention_output:
            self.output = Projection(config, heads, features, config.attention_output_bias, keys)
        if own_bias:
            self.relative_bias = RelativeBias(config, stack, keys)

    def __call__(
        self, x: jax.Array, y: jax.Array, mask: Mask, bias: Bias, tap: Tap, dropout_key: DropoutKey, exists: Mask = None
    ) -> jax.Array:
        """x [B, Q, D], y [B, K, D] → [B, Q, D]; `exists` as of `reference_attention`."""
        if x is y:
            query, key, value = project_together([self.query, self.key, self.value], x)
        else:
            query, (key, value) = self.query(x), project_together([self.key, self.value], y)
        query, key, value = tap("query", query), tap("key", key), tap("value", value)
        return self.attend(query, key, value, mask, self._bias(bias, y.shape[1], tap), tap, dropout_key, exists)

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: Mask,
        bias: Bias,
        tap: Tap,
        dropout_key: DropoutKey,
        exists: Mask = None,
    ) -> jax.Array:
        """query [B, Q, N, H], key and value [B, K, N, H] → [B, Q, D]."""
        if self.config.attention_path == "reference" or exists is not None:
            context = reference_attention(self.config, query, key, value, mask, bias, tap, dropout_key, exists)
        else:
            context = fused_attention(self.config, query, key, value, mask, bias)
        return tap("output", self.merge_heads(tap("context", context)))

    def merge_heads(self, context: jax.Array) -> jax.Array:
        """context [B, Q, N, H] → [B, Q, D]."""
        return self.output(context) if self.config.attention_output else context.reshape(*context.shape[:2], -1)

    def _bias(self, bias: Bias, length: int, tap: Tap) -> Bias:
        """The attention's own where it has one, as `RelativeBias` gives it; else `bias`."""
        return tap("position_bias", self.relative_bias(length)) if hasattr(self, "relative_bias") else bias


def attention_scale(config: TransformerConfig, head_dim: int) -> float:
    return 1.0 / math.sqrt(head_dim) if config.attention_scale is None else config.attention_scale


def reference_attention(
    config: TransformerConfig,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Mask,
    bias: Bias,
    tap: Tap,
    dropout_key: DropoutKey,
    exists: Mask = None,
) -> jax.Array:
    """Softmax(query · key · scale + bias) · value, written out; logits and softmax in at least float32. Returns [B, Q,
    N, H].

    Masked logits are replaced by one finite value, so that a fully masked row attends to all keys alike: to all that
    exist, where `exists` (as a mask) says that the others are room for keys to come.
    """
    wide = at_least_float32(query.dtype)
    logits = jnp.einsum("BQNH,BKNH->BNQK", query, key, preferred_element_type=wide) * attention_scale(
        config, query.shape[-1]
    )
    weights = attention_weights(config, logits, mask, bias, exists, tap)
    weights = dropout(weights, attention_dropout_rate(config), fold(dropout_key, Site.WEIGHTS))
    return jnp.einsum("BNQK,BKNH->BQNH", weights.astype(value.dtype), value)


def attention_weights(
    config: TransformerConfig, logits: jax.Array, mask: Mask, bias: Bias, exists: Mask, tap: Tap | None = None
) -> jax.Array:
    """The softmax of scaled logits [B, N, Q, K], with bias and masks as `reference_attention` has them."""
    tap = tap or Tap()
    logits = logits if bias is None else logits + bias.astype(logits.dtype)
    if mask is not None:
        masked_value = jnp.finfo(logits.dtype).min if config.masked_value is None else config.masked_value
        logits = jnp.where(mask, logits, jnp.asarray(masked_value, logits.dtype))
    if exists is not None:
        logits = jnp.where(exists, logits, -jnp.inf)
    return tap("weights", jax.nn.softmax(tap("logits", logits), axis=-1))


def fused_attention(
    config: TransformerConfig, query: jax.Array, key: jax.Array, value: jax.Array, mask: Mask, bias: Bias
) -> jax.Array:
    """The same by `jax.nn.dot_product_attention`: no weights to look at, none dropped.

    Raises:
      ValueError: float64, which it would compute in float32.
    """
    if query.dtype == jnp.float64:
        raise ValueError(
            f"attention_path={config.attention_path!r} computes in float32; float64 needs attention_path='reference'"
        )
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias=None if bias is None else bias.astype(query.dtype),
        mask=mask,
        scale=attention_scale(config, query.shape[-1]),
        implementation="cudnn" if config.attention_path == "cudnn" else "xla",
    )


def attention_dropout_rate(config: TransformerConfig) -> float:
    return config.dropout_rate if config.attention_dropout_rate is None else config.attention_dropout_rate
