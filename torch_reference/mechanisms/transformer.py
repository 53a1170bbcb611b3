"""An encoder-decoder Transformer whose attention has the mechanisms of this package, each by an option.

Everything else is plain: norms before the sublayers and at the end of both stacks, ReLU, embeddings times √d_model,
padding masked on the keys of all three attentions. Axes: B batch, S source, T target, Q/K query/key length, D model, F
feed-forward, N heads, G heads of keys and values, H head_dim, W value_dim, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from torch_reference.mechanisms import alibi
from torch_reference.mechanisms.grouped_query import for_all_queries
from torch_reference.mechanisms.head_scale import HeadScale
from torch_reference.mechanisms.relative_bias import RelativeBias
from torch_reference.mechanisms.relative_vectors import RelativeVectors
from torch_reference.mechanisms.rotary import rotate
from torch_reference.trace import Tap, Trace


@dataclass(frozen=True)
class AttentionOptions:
    """Holds what distinguishes one attention from another."""

    num_kv_heads: int | None = None
    """Heads of keys and values; None: as many as of queries."""
    value_dim: int | None = None
    """Width of one head's values; None: head_dim."""
    scale: float | None = None
    """Factor of the logits; None: 1/√head_dim."""
    logits_cap: float | None = None
    """Bend scaled logits to cap · tanh(logits / cap), before biases and masks (Gemma 2)."""
    masked_value: float | None = None
    """Replaces masked logits; None: the lowest number of the dtype."""
    window: int | None = None
    """Hide positions at this distance or farther (Beltagy et al. 2020)."""
    full_every: int | None = None
    """Let every n-th layer see beyond the window (Gemma 2)."""
    head_scale: bool = False
    query_key_norm: bool = False
    """Norm queries and keys over the features of each head."""
    context_norm: bool = False
    """Norm the contexts of all heads together before their projection (Wang et al. 2022)."""


@dataclass(frozen=True)
class Mechanisms:
    """Holds what distinguishes one stack from another."""

    positions: Literal["none", "rotary", "alibi", "relative_bias", "relative_vectors"] = "none"
    rotary_halves: bool = False
    """Rotate pairs of the two halves, not of neighbours."""
    rotary_base: float = 10000.0
    rotary_dim: int | None = None
    rotary_cross_attention: bool = False
    limit: int = 16
    """The largest distance with a relative vector of its own; distances from it on share a relative bias."""
    buckets: int = 32
    """Ranges of distances with a relative bias of their own."""
    bias_factor: float = 1.0
    """Multiplies the relative biases."""
    value_vectors: bool = True
    vectors_per_layer: bool = False
    norm_eps: float = 1e-5
    self_attention: AttentionOptions = AttentionOptions()
    cross_attention: AttentionOptions = AttentionOptions()


class MechanismTransformer(nn.Module):
    """Maps source and target ids to logits.

    Raises:
      ValueError: num_kv_heads does not divide num_heads.
    """

    def __init__(
        self,
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        d_model: int,
        num_heads: int,
        head_dim: int,
        d_ff: int,
        num_encoder_layers: int,
        num_decoder_layers: int,
        source_pad_id: int,
        target_pad_id: int,
        encoder: Mechanisms,
        decoder: Mechanisms,
        logits_cap: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.logits_cap = logits_cap
        self.d_model, self.source_pad_id, self.target_pad_id = d_model, source_pad_id, target_pad_id
        sizes = Sizes(d_model, num_heads, head_dim, d_ff, dtype)
        self.source_embedding = nn.Embedding(source_vocab_size, d_model, dtype=dtype)
        self.target_embedding = nn.Embedding(target_vocab_size, d_model, dtype=dtype)
        self.encoder = Stack(sizes, encoder, num_encoder_layers, attends_to_source=False)
        self.decoder = Stack(sizes, decoder, num_decoder_layers, attends_to_source=True)
        self.head = nn.Linear(d_model, target_vocab_size, dtype=dtype)

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor, trace: Trace | None = None) -> Tensor:
        """Returns the logits [B, T, V] of source_ids [B, S] and decoder_input_ids [B, T]."""
        tap = Tap(trace)
        source_is_real = (source_ids != self.source_pad_id)[:, None, None, :]
        target_is_real = (decoder_input_ids != self.target_pad_id)[:, None, None, :]
        length = decoder_input_ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        encoder_mask = tap("mask.encoder_self", source_is_real)
        decoder_mask = tap("mask.decoder_self", causal & target_is_real)
        cross_mask = tap("mask.cross", source_is_real)
        scale = math.sqrt(self.d_model)
        masks = self.encoder.masks(encoder_mask, source_ids.shape[1], tap, "mask.encoder_window")
        vectors = self.source_embedding(source_ids) * scale
        encoded = self.encoder(vectors, masks, None, None, tap.scope("encoder"))
        masks = self.decoder.masks(decoder_mask, length, tap, "mask.decoder_window")
        vectors = self.target_embedding(decoder_input_ids) * scale
        decoded = self.decoder(vectors, masks, encoded, cross_mask, tap.scope("decoder"))
        logits, cap = self.head(decoded), self.logits_cap
        return tap("logits", logits if cap is None else cap * torch.tanh(logits / cap))


class Sizes(NamedTuple):
    """Holds the sizes that all layers share."""

    d_model: int
    num_heads: int
    head_dim: int
    d_ff: int
    dtype: torch.dtype

    def norm(self, width: int, mechanisms: Mechanisms) -> nn.LayerNorm:
        """Returns a fresh norm of a stack."""
        return nn.LayerNorm(width, eps=mechanisms.norm_eps, dtype=self.dtype)


class Stack(nn.Module):
    """Runs equal layers one after another, then a norm."""

    def __init__(self, sizes: Sizes, mechanisms: Mechanisms, num_layers: int, *, attends_to_source: bool) -> None:
        super().__init__()
        self.mechanisms, self.num_heads = mechanisms, sizes.num_heads
        self.layers = nn.ModuleList(Layer(sizes, mechanisms, attends_to_source) for _ in range(num_layers))
        shares = mechanisms.positions == "relative_vectors" and not mechanisms.vectors_per_layer
        self.shared_vectors = make_vectors(sizes, mechanisms) if shares else None
        has_biases = mechanisms.positions == "relative_bias"
        self.relative_bias = make_biases(sizes, mechanisms, is_decoder=attends_to_source) if has_biases else None
        self.final_norm = sizes.norm(sizes.d_model, mechanisms)

    def masks(self, mask: Tensor, length: int, tap: Tap, name: str) -> list[Tensor]:
        """Returns the mask of each layer's self-attention; that of layers with a window is recorded under a name."""
        options = self.mechanisms.self_attention
        if options.window is None:
            return [mask] * len(self.layers)
        windowed = tap(name, mask & window_mask(options.window, length))
        return [mask if sees_all(options, i) else windowed for i in range(len(self.layers))]

    def forward(
        self, x: Tensor, masks: list[Tensor], encoded: Tensor | None, cross_mask: Tensor | None, tap: Tap
    ) -> Tensor:
        """Returns the stack's output [B, T, D] for token vectors x [B, T, D] and the mask of each layer."""
        bias = None
        if self.mechanisms.positions == "alibi":
            bias = tap("position_bias", alibi.bias(self.num_heads, x.shape[1], x.dtype))
        if self.relative_bias is not None:
            bias = tap("position_bias", self.relative_bias(x.shape[1]))
        x = tap("embedding", tap("token_embedding", x))
        for i, layer in enumerate(self.layers):
            x = layer(x, Positions(masks[i], bias, self.shared_vectors), encoded, cross_mask, tap.scope(f"layers.{i}"))
        return tap("output", self.final_norm(x))


def window_mask(window: int, length: int) -> Tensor:
    """Returns the mask [T, T] that hides positions at the distance of the window or farther."""
    positions = torch.arange(length)
    return (positions[:, None] - positions).abs() < window


def sees_all(options: AttentionOptions, layer: int) -> bool:
    """Returns whether a layer, counted from 0, sees beyond the window."""
    return options.full_every is not None and (layer + 1) % options.full_every == 0


class Positions(NamedTuple):
    """Holds what a stack gives to the self-attention of each layer."""

    mask: Tensor
    bias: Tensor | None
    vectors: RelativeVectors | None


def make_vectors(sizes: Sizes, mechanisms: Mechanisms) -> RelativeVectors:
    """Returns fresh relative vectors."""
    value_dim = mechanisms.self_attention.value_dim or sizes.head_dim
    of_values = value_dim if mechanisms.value_vectors else None
    return RelativeVectors(mechanisms.limit, sizes.head_dim, of_values, dtype=sizes.dtype)


def make_biases(sizes: Sizes, mechanisms: Mechanisms, *, is_decoder: bool) -> RelativeBias:
    """Returns fresh relative biases of a stack."""
    factor, limit = mechanisms.bias_factor, mechanisms.limit
    return RelativeBias(
        mechanisms.buckets, limit, sizes.num_heads, looks_back=is_decoder, factor=factor, dtype=sizes.dtype
    )


class Layer(nn.Module):
    """Applies self-attention, attention over the source in the decoder, and a feed-forward network."""

    def __init__(self, sizes: Sizes, mechanisms: Mechanisms, attends_to_source: bool) -> None:
        super().__init__()
        d_model, d_ff, dtype = sizes.d_model, sizes.d_ff, sizes.dtype
        self.self_attention = Attention(sizes, mechanisms, mechanisms.self_attention, is_self=True)
        self.self_attention_norm = sizes.norm(d_model, mechanisms)
        if attends_to_source:
            self.cross_attention = Attention(sizes, mechanisms, mechanisms.cross_attention, is_self=False)
            self.cross_attention_norm = sizes.norm(d_model, mechanisms)
        self.hidden = nn.Linear(d_model, d_ff, dtype=dtype)
        self.output = nn.Linear(d_ff, d_model, dtype=dtype)
        self.feed_forward_norm = sizes.norm(d_model, mechanisms)

    def forward(
        self, x: Tensor, positions: Positions, encoded: Tensor | None, cross_mask: Tensor | None, tap: Tap
    ) -> Tensor:
        """Returns the layer's output [B, T, D]."""
        h = tap("self_attention_norm", self.self_attention_norm(x))
        x = x + self.self_attention(h, h, positions, tap.scope("self_attention"))
        x = tap("self_attention_residual", x)
        if encoded is not None and cross_mask is not None:
            h = tap("cross_attention_norm", self.cross_attention_norm(x))
            of_cross = Positions(cross_mask, None, None)
            x = x + self.cross_attention(h, encoded, of_cross, tap.scope("cross_attention"))
            x = tap("cross_attention_residual", x)
        h = tap("feed_forward_norm", self.feed_forward_norm(x))
        hidden = tap("feed_forward.hidden", self.hidden(h).relu())
        return tap("output", x + tap("feed_forward.output", self.output(hidden)))


class Attention(nn.Module):
    """Attends from x over y, with the mechanisms that it is given.

    Raises:
      ValueError: num_kv_heads does not divide num_heads.
    """

    def __init__(self, sizes: Sizes, mechanisms: Mechanisms, options: AttentionOptions, *, is_self: bool) -> None:
        super().__init__()
        self.mechanisms, self.options, self.head_dim = mechanisms, options, sizes.head_dim
        self.value_dim = options.value_dim or sizes.head_dim
        self.rotates = mechanisms.positions == "rotary" and (is_self or mechanisms.rotary_cross_attention)
        groups, dtype = options.num_kv_heads or sizes.num_heads, sizes.dtype
        if sizes.num_heads % groups:
            raise ValueError(f"num_kv_heads must divide num_heads={sizes.num_heads}; received {groups}")
        self.query = nn.Linear(sizes.d_model, sizes.num_heads * sizes.head_dim, dtype=dtype)
        self.key = nn.Linear(sizes.d_model, groups * sizes.head_dim, dtype=dtype)
        self.value = nn.Linear(sizes.d_model, groups * self.value_dim, dtype=dtype)
        self.output = nn.Linear(sizes.num_heads * self.value_dim, sizes.d_model, dtype=dtype)
        if options.query_key_norm:
            self.query_norm = sizes.norm(sizes.head_dim, mechanisms)
            self.key_norm = sizes.norm(sizes.head_dim, mechanisms)
        if options.head_scale:
            self.head_scale = HeadScale(sizes.num_heads, dtype=dtype)
        width = sizes.num_heads * self.value_dim
        self.context_norm = sizes.norm(width, mechanisms) if options.context_norm else None
        has_own = mechanisms.positions == "relative_vectors" and mechanisms.vectors_per_layer and is_self
        self.own_vectors = make_vectors(sizes, mechanisms) if has_own else None

    def forward(self, x: Tensor, y: Tensor, positions: Positions, tap: Tap) -> Tensor:
        """Returns the attention output [B, Q, D] of x [B, Q, D] over y [B, K, D]."""
        query, key, value = (
            tap(name, project(of).unflatten(-1, (-1, width))).transpose(1, 2)
            for name, project, of, width in (
                ("query", self.query, x, self.head_dim),
                ("key", self.key, y, self.head_dim),
                ("value", self.value, y, self.value_dim),
            )
        )  # [B, N, Q, H], [B, G, K, H], [B, G, K, W]
        if self.options.query_key_norm:
            query = _tapped(tap, "normed_query", self.query_norm(query))
            key = _tapped(tap, "normed_key", self.key_norm(key))
        if self.rotates:
            query = _tapped(tap, "rotated_query", self._rotated(query))
            key = _tapped(tap, "rotated_key", self._rotated(key))
        key, value = (for_all_queries(heads, query.shape[1]) for heads in (key, value))
        vectors = positions.vectors if self.own_vectors is None else self.own_vectors

        logits = query @ key.transpose(2, 3)
        logits = logits if vectors is None else logits + vectors.products(query)
        own = self.options.scale
        logits = logits / math.sqrt(self.head_dim) if own is None else logits * own
        if (cap := self.options.logits_cap) is not None:
            logits = cap * torch.tanh(logits / cap)
        logits = logits if positions.bias is None else logits + positions.bias
        fill = self.options.masked_value
        fill = torch.finfo(logits.dtype).min if fill is None else fill
        logits = tap("logits", logits.masked_fill(~positions.mask, fill))
        weights = tap("weights", logits.softmax(dim=-1))  # [B, N, Q, K]
        context = weights @ value
        context = _tapped(tap, "context", context if vectors is None else context + vectors.context(weights))
        if self.options.head_scale:
            context = _tapped(tap, "scaled_context", self.head_scale(context))
        context = context.transpose(1, 2).flatten(2)
        if self.context_norm is not None:
            context = self.context_norm(context).unflatten(-1, (-1, self.value_dim))
            context = tap("normed_context", context).flatten(2)
        return tap("output", self.output(context))

    def _rotated(self, x: Tensor) -> Tensor:
        return rotate(
            x,
            torch.arange(x.shape[2]),
            base=self.mechanisms.rotary_base,
            width=self.mechanisms.rotary_dim,
            halves=self.mechanisms.rotary_halves,
        )


def _tapped(tap: Tap, name: str, heads: Tensor) -> Tensor:
    """Records heads [B, N, T, H] as [B, T, N, H]."""
    return tap(name, heads.transpose(1, 2)).transpose(1, 2)
