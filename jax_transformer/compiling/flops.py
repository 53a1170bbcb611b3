"""Counts the floating-point operations that a model needs, from its config: those of its matrix products.

A product of [m, k] and [k, n] has 2 m k n. A backward pass has twice the products of its forward pass. Masked positions
count like others. This is how the FLOPs of a model are counted for its utilization (Chowdhery et al. 2022, PaLM, B).
"""

from __future__ import annotations

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Stack as StackConfig


def forward_flops(config: TransformerConfig, rows: int, source: int, target: int) -> float:
    """Returns the FLOPs of a forward pass over source [rows, source] and target [rows, target]."""
    return rows * (
        _encoder(config, source)
        + _source_keys_and_values(config, source)
        + config.decoder.num_layers * _decoder_layer(config, target, source, keys=target)
        + _head(config, target)
    )


def train_flops(config: TransformerConfig, rows: int, source: int, target: int) -> float:
    """Returns the FLOPs of a training step, without what rematerialisation computes again."""
    return 3 * forward_flops(config, rows, source, target)


def decode_flops(config: TransformerConfig, rows: int, source: int, target: int, beams: int) -> float:
    """Returns the FLOPs of decoding `target` tokens for each of `rows` sentences, with keys and values cached."""
    layers = config.decoder.num_layers * _decoder_layer(config, target, source, keys=(target + 1) / 2)
    source_side = _encoder(config, source) + _source_keys_and_values(config, source)
    return rows * (source_side + beams * (layers + _head(config, target)))


def _encoder(config: TransformerConfig, source: int) -> float:
    stack = config.encoder
    attention = _queries(config, stack, source) + _keys_and_values(config, stack, source)
    products = _products(stack, source, source) + _relative_products(config, stack, source, source)
    each = attention + products + _feed_forward(config, stack, source)
    return stack.num_layers * each


def _source_keys_and_values(config: TransformerConfig, source: int) -> float:
    """The keys and values of all cross-attentions; layers that share their parameters have the same ones."""
    count = 1 if config.share_layers else config.decoder.num_layers
    return count * _keys_and_values(config, config.decoder, source)


def _decoder_layer(config: TransformerConfig, target: int, source: int, keys: float) -> float:
    """A layer without the keys and values of its cross-attention."""
    stack = config.decoder
    own = _queries(config, stack, target) + _keys_and_values(config, stack, target)
    own += _products(stack, target, keys) + _relative_products(config, stack, target, keys)
    cross = _queries(config, stack, target) + _products(stack, target, source)
    return own + cross + _feed_forward(config, stack, target)


def _queries(config: TransformerConfig, stack: StackConfig, tokens: int) -> float:
    """The projections to queries and of the output."""
    width = stack.head_dim + (stack.value_dim if config.attention_output else 0)
    return 2.0 * tokens * config.d_model * stack.num_heads * width


def _keys_and_values(config: TransformerConfig, stack: StackConfig, tokens: int) -> float:
    return 2.0 * tokens * config.d_model * stack.num_kv_heads * (stack.head_dim + stack.value_dim)


def _products(stack: StackConfig, queries: int, keys: float) -> float:
    """The attention logits, and the weighted sum of the values."""
    return 2.0 * queries * keys * stack.num_heads * (stack.head_dim + stack.value_dim)


def _relative_products(config: TransformerConfig, stack: StackConfig, queries: int, keys: float) -> float:
    """The products of self-attention with vectors by distance: of the keys, and of the values if they have some."""
    if stack.position_kind != "relative_vectors":
        return 0.0
    width = stack.head_dim + (stack.value_dim if config.relative_value_vectors else 0)
    return 2.0 * queries * keys * stack.num_heads * width


def _feed_forward(config: TransformerConfig, stack: StackConfig, tokens: int) -> float:
    if not config.feed_forward:
        return 0.0
    return 2.0 * (3 if config.feed_forward_gated else 2) * tokens * config.d_model * stack.d_ff


def _head(config: TransformerConfig, tokens: int) -> float:
    return 2.0 * tokens * config.d_model * config.target_vocab_size
