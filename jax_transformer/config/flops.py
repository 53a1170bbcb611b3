"""Counts the floating-point operations that a model needs, from its config: those of its matrix products.

A product of [m, k] and [k, n] has 2 m k n. A backward pass has twice the products of its forward pass. Masked positions
count, too. Model FLOPs utilization is defined by this count (Chowdhery et al. 2022, PaLM, B).
"""

from __future__ import annotations

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.plan import plan
from jax_transformer.config.positions import RelativeVectors
from jax_transformer.config.specs import Attention, FeedForward, Stack


def forward_flops(config: TransformerConfig, rows: int, source: int, target: int) -> float:
    """Returns the FLOPs of a forward pass over source [rows, source] and target [rows, target]."""
    stem, source = _stem(config, source), _positions(config, source)
    return rows * (
        stem
        + _encoder(config, source)
        + _source_keys_and_values(config, source)
        + config.decoder.num_layers * _decoder_layer(config, target, source, keys=target)
        + _head(config, target)
    )


def train_flops(config: TransformerConfig, rows: int, source: int, target: int) -> float:
    """Returns the FLOPs of a training step, without recomputation by rematerialisation."""
    return 3 * forward_flops(config, rows, source, target)


def decode_flops(config: TransformerConfig, rows: int, source: int, target: int, beams: int) -> float:
    """Returns the FLOPs of decoding `target` tokens for each of `rows` sentences, with keys and values cached."""
    layers = config.decoder.num_layers * _decoder_layer(config, target, source, keys=(target + 1) / 2)
    stem, source = _stem(config, source), _positions(config, source)
    source_side = stem + _encoder(config, source) + _source_keys_and_values(config, source)
    return rows * (source_side + beams * (layers + _head(config, target)))


def _encoder(config: TransformerConfig, source: int) -> float:
    return config.encoder.num_layers * _layer(config.encoder, source, source, source)


def _positions(config: TransformerConfig, source: int) -> int:
    """Returns the encoder's positions for so many tokens or feature vectors."""
    return source if config.stem is None else config.stem.positions(source)


def _stem(config: TransformerConfig, source: int) -> float:
    """Counts the convolutions over so many feature vectors."""
    stem, width = config.stem, config.encoder.d_model
    if stem is None:
        return 0.0
    return 2.0 * stem.kernel * width * (stem.features * source + width * stem.positions(source))


def _source_keys_and_values(config: TransformerConfig, source: int) -> float:
    """Counts the keys and values of all cross-attentions, once for layers that share their parameters."""
    stack, cross = config.decoder, config.decoder.cross_attention
    count = 1 if stack.share_layers else stack.num_layers
    return 0.0 if cross is None else count * _keys_and_values(stack, cross, source)


def _decoder_layer(config: TransformerConfig, target: int, source: int, keys: float) -> float:
    """Counts a layer without the keys and values of its cross-attention."""
    return _layer(config.decoder, target, keys, source)


def _layer(stack: Stack, tokens: int, keys: float, source: int) -> float:
    """Counts a layer's sublayers, for `tokens` queries over `keys` positions of the stack and `source` of the
    encoder."""
    total = 0.0
    for sublayer in plan(stack):
        part = sublayer.part
        if isinstance(part, FeedForward):
            total += _feed_forward(stack, part, tokens)
        elif sublayer.name == "cross_attention":
            total += _queries(stack, part, tokens) + _products(stack, part, tokens, source)
        else:
            total += _queries(stack, part, tokens) + _keys_and_values(stack, part, tokens)
            total += _products(stack, part, tokens, keys) + _relative_products(stack, part, tokens, keys)
    return total


def _queries(stack: Stack, part: Attention, tokens: int) -> float:
    """Counts the query and output projections."""
    shape = part.shape(stack.d_model)
    width = shape.head_dim + (shape.value_dim if part.output else 0)
    return 2.0 * tokens * stack.d_model * shape.num_heads * width


def _keys_and_values(stack: Stack, part: Attention, tokens: int) -> float:
    shape = part.shape(stack.d_model)
    return 2.0 * tokens * stack.d_model * shape.num_kv_heads * (shape.head_dim + shape.value_dim)


def _products(stack: Stack, part: Attention, queries: int, keys: float) -> float:
    """Counts the attention logits, and the weighted sum of the values."""
    shape = part.shape(stack.d_model)
    return 2.0 * queries * keys * shape.num_heads * (shape.head_dim + shape.value_dim)


def _relative_products(stack: Stack, part: Attention, queries: int, keys: float) -> float:
    """Counts the products of self-attention with relative-position vectors of keys and, if any, of values."""
    if not isinstance(stack.positions, RelativeVectors):
        return 0.0
    shape = part.shape(stack.d_model)
    width = shape.head_dim + (shape.value_dim if stack.positions.values else 0)
    return 2.0 * queries * keys * shape.num_heads * width


def _feed_forward(stack: Stack, part: FeedForward, tokens: int) -> float:
    return 2.0 * (3 if part.gated else 2) * tokens * stack.d_model * part.width


def _head(config: TransformerConfig, tokens: int) -> float:
    width = config.decoder.d_model
    outputs = config.target.vocab_size + (0 if config.head.transform is None else width)
    return 2.0 * tokens * width * outputs
