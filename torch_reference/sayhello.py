"""The Transformer of SayHello's series on machine translation with PyTorch, on Multi30k (the system `sayhello`).

Differences from Vaswani et al. (2017):

- a norm divides by (s + ε), s the unbiased standard deviation, ε 1e-12; it stands after the residual, as in the paper;
- embeddings are not multiplied by √d_model; the two embeddings and the head share no weights;
- padding is masked on the keys **and the queries** of all three attentions: a pad's own row is fully masked, and
  attends to every key alike, later ones included;
- the decoder's own mask takes the *source's* pad id for padding;
- there is no dropout on attention weights.

The pad's embedding row gets no gradient (`padding_idx`). The program hard-codes its own pad id, 1; this module uses the
pad's id.

The article's projections in the attentions have biases; those of the released program have none (`attention_bias`). The
position table is not part of the state_dict.

Axes: B batch, S source, T target, Q/K query/key length, D model, F feed-forward, N heads, H head_dim, V vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_reference.trace import Tap, Trace

MASKED_LOGIT = -1e12


class Masks(NamedTuple):
    """Holds boolean masks, True = may attend."""

    encoder_self: Tensor  # [B, 1, S, S]
    decoder_self: Tensor  # [B, 1, T, T]
    cross: Tensor  # [B, 1, T, S]


class SayhelloTransformer(nn.Module):
    """Maps source and target ids to logits, under the state_dict keys of the released program.

    Args:
      max_length: rows of the position table that is computed unless `position_table` is given.
      position_table: [rows, D]; a model's own, where its float32 formula has rounded otherwise.
      source_pad_id, target_pad_id: ids of `<pad>`.
      attention_bias: whether the attentions' projections have biases.
      dropout_rate: on embeddings, on each sublayer's output and inside the feed-forward.
      dtype: of parameters, tables, and everything computed.

    Raises:
      ValueError: num_heads does not divide d_model; d_model is odd; a position_table of another width.
    """

    def __init__(
        self,
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int = 2048,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        max_length: int = 256,
        position_table: Tensor | None = None,
        source_pad_id: int = 1,
        target_pad_id: int = 1,
        attention_bias: bool = False,
        dropout_rate: float = 0.1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"num_heads must divide d_model={d_model}; received {num_heads}")
        if d_model % 2:
            raise ValueError(f"d_model must be even; received {d_model}")
        if position_table is not None and (position_table.ndim != 2 or position_table.shape[1] != d_model):
            raise ValueError(f"position_table must be [rows, {d_model}]; received {list(position_table.shape)}")
        self.source_pad_id, self.target_pad_id = source_pad_id, target_pad_id
        table = sinusoids(max_length, d_model) if position_table is None else position_table
        sizes = (d_model, num_heads, d_ff, dropout_rate, attention_bias)
        self.encoder = Encoder(
            Embedding(source_vocab_size, source_pad_id, table, dropout_rate),
            [EncoderLayer(*sizes) for _ in range(num_encoder_layers)],
        )
        self.decoder = Decoder(
            Embedding(target_vocab_size, target_pad_id, table, dropout_rate),
            [DecoderLayer(*sizes) for _ in range(num_decoder_layers)],
            nn.Linear(d_model, target_vocab_size),
        )
        self.to(dtype)

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor, trace: Trace | None = None) -> Tensor:
        """Returns the logits [B, T, V] of source_ids [B, S] and decoder_input_ids [B, T].

        Every activation is recorded in `trace`.
        """
        tap, masks = Tap(trace), self.make_masks(source_ids, decoder_input_ids)
        masks = Masks._make(tap(f"mask.{name}", mask) for name, mask in masks._asdict().items())
        encoder_output = self.encoder(source_ids, masks.encoder_self, tap.scope("encoder"))
        return tap("logits", self.decoder(decoder_input_ids, encoder_output, masks, tap.scope("decoder")))

    def make_masks(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Masks:
        """Returns the masks: padding hidden on both axes, in the decoder's own mask by the source's pad id, where later
        tokens are hidden too."""
        source = source_ids != self.source_pad_id
        target = decoder_input_ids != self.target_pad_id
        own = decoder_input_ids != self.source_pad_id
        return Masks(
            encoder_self=on_both_axes(source, source),
            decoder_self=on_both_axes(own, own) & causal_mask(decoder_input_ids),
            cross=on_both_axes(target, source),
        )


class Encoder(nn.Module):
    """Embeds tokens and runs the layers."""

    def __init__(self, embedding: Embedding, layers: list[nn.Module]) -> None:
        super().__init__()
        self.emb = embedding
        self.layers = nn.ModuleList(layers)

    def forward(self, source_ids: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        """Returns the encoder's output [B, S, D] of source_ids [B, S]."""
        x = self.emb(source_ids, tap)
        for i, layer in enumerate(self.layers):
            x = layer(x, mask, tap.scope(f"layers.{i}"))
        return tap("output", x)


class Decoder(nn.Module):
    """Embeds tokens, runs the layers, and applies the head."""

    def __init__(self, embedding: Embedding, layers: list[nn.Module], head: nn.Linear) -> None:
        super().__init__()
        self.emb = embedding
        self.layers = nn.ModuleList(layers)
        self.linear = head

    def forward(self, decoder_input_ids: Tensor, encoder_output: Tensor, masks: Masks, tap: Tap) -> Tensor:
        """Returns the logits [B, T, V] of decoder_input_ids [B, T]."""
        x = self.emb(decoder_input_ids, tap)
        for i, layer in enumerate(self.layers):
            x = layer(x, encoder_output, masks.decoder_self, masks.cross, tap.scope(f"layers.{i}"))
        return self.linear(tap("output", x))


class Embedding(nn.Module):
    """Adds positions to token vectors. The pad's row gets no gradient."""

    def __init__(self, vocab_size: int, pad_id: int, table: Tensor, dropout_rate: float) -> None:
        super().__init__()
        self.tok_emb = nn.Embedding(vocab_size, table.shape[1], padding_idx=pad_id)
        self.register_buffer("positions", table, persistent=False)
        self.drop_out = nn.Dropout(dropout_rate)

    positions: Tensor

    def forward(self, ids: Tensor, tap: Tap) -> Tensor:
        """Returns the vectors [B, T, D] of ids [B, T]. Raises ValueError if T exceeds the table's rows."""
        if ids.shape[1] > len(self.positions):
            raise ValueError(f"received {ids.shape[1]} tokens; the position table allows {len(self.positions)}")
        x = tap("token_embedding", self.tok_emb(ids)) + tap("positions", self.positions[None, : ids.shape[1]])
        return self.drop_out(tap("embedding", x))


class EncoderLayer(nn.Module):
    """norm1(x + attention(x)), then norm2(x + ffn(x))."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout_rate: float, attention_bias: bool) -> None:
        super().__init__()
        self.attention = Attention(d_model, num_heads, attention_bias)
        self.norm1 = Norm(d_model)
        self.ffn = FeedForward(d_model, d_ff, dropout_rate)
        self.norm2 = Norm(d_model)
        self.dropout1, self.dropout2 = nn.Dropout(dropout_rate), nn.Dropout(dropout_rate)

    def forward(self, x: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        """Returns the layer's output [B, S, D] of x [B, S, D]."""
        y = self.attention(x, x, mask, tap.scope("self_attention"))
        x = tap("self_attention_residual", tap("self_attention_norm", self.norm1(x + self.dropout1(y))))
        y = self.ffn(x, tap.scope("feed_forward"))
        return tap("output", tap("feed_forward_norm", self.norm2(x + self.dropout2(y))))


class DecoderLayer(nn.Module):
    """Adds attention over the encoder's output between the two sublayers."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout_rate: float, attention_bias: bool) -> None:
        super().__init__()
        self.self_attention = Attention(d_model, num_heads, attention_bias)
        self.norm1 = Norm(d_model)
        self.enc_dec_attention = Attention(d_model, num_heads, attention_bias)
        self.norm2 = Norm(d_model)
        self.ffn = FeedForward(d_model, d_ff, dropout_rate)
        self.norm3 = Norm(d_model)
        self.dropout1, self.dropout2, self.dropout3 = (nn.Dropout(dropout_rate) for _ in range(3))

    def forward(self, x: Tensor, encoder_output: Tensor, self_mask: Tensor, cross_mask: Tensor, tap: Tap) -> Tensor:
        """x [B, T, D] → [B, T, D]."""
        y = self.self_attention(x, x, self_mask, tap.scope("self_attention"))
        x = tap("self_attention_residual", tap("self_attention_norm", self.norm1(x + self.dropout1(y))))
        y = self.enc_dec_attention(x, encoder_output, cross_mask, tap.scope("cross_attention"))
        x = tap("cross_attention_residual", tap("cross_attention_norm", self.norm2(x + self.dropout2(y))))
        y = self.ffn(x, tap.scope("feed_forward"))
        return tap("output", tap("feed_forward_norm", self.norm3(x + self.dropout3(y))))


class Attention(nn.Module):
    """Multi-head attention; masked logits become -1e12, so that a fully masked row attends to all keys alike."""

    def __init__(self, d_model: int, num_heads: int, bias: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.w_q, self.w_k, self.w_v, self.w_concat = (nn.Linear(d_model, d_model, bias=bias) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        """Returns the output [B, Q, D] of x [B, Q, D] attending to y [B, K, D].

        `mask` is boolean, broadcastable to [B, 1, Q, K].
        """
        query, key, value = (
            tap(name, linear(input).unflatten(-1, (self.num_heads, -1)))  # [B, Q or K, N, H]
            for name, linear, input in (("query", self.w_q, x), ("key", self.w_k, y), ("value", self.w_v, y))
        )
        logits = torch.einsum("BQNH,BKNH->BNQK", query, key) / math.sqrt(query.shape[-1])
        logits = tap("logits", logits.masked_fill(~mask, MASKED_LOGIT))
        weights = tap("weights", torch.softmax(logits, dim=-1))
        context = tap("context", torch.einsum("BNQK,BKNH->BQNH", weights, value))
        return tap("output", self.w_concat(context.flatten(-2)))


class FeedForward(nn.Module):
    """Applies linear, ReLU, dropout, linear."""

    def __init__(self, d_model: int, d_ff: int, dropout_rate: float) -> None:
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_ff)
        self.dropout = nn.Dropout(dropout_rate)
        self.linear2 = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor, tap: Tap) -> Tensor:
        """x [B, T, D] → [B, T, D]."""
        hidden = tap("hidden", functional.relu(self.linear1(x)))  # [B, T, F]
        return tap("output", self.linear2(self.dropout(hidden)))


class Norm(nn.Module):
    """gamma · (x − mean) / (s + ε) + beta, s the standard deviation with D − 1 in the denominator."""

    def __init__(self, d_model: int, eps: float = 1e-12) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Returns x [..., D] normed over its last axis."""
        centred = x - x.mean(dim=-1, keepdim=True)
        return self.gamma * centred / (x.std(dim=-1, keepdim=True) + self.eps) + self.beta


def sinusoids(rows: int, d_model: int) -> Tensor:
    """Returns the table [rows, D] in float64 (Vaswani et al. 2017, §3.5): even columns sine, odd columns cosine."""
    exponents = np.arange(0, d_model, 2, dtype=np.float64) / d_model
    angle = np.arange(rows, dtype=np.float64)[:, None] / 10000.0**exponents
    return torch.from_numpy(np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(rows, d_model))


def on_both_axes(queries: Tensor, keys: Tensor) -> Tensor:
    """Returns the mask [B, 1, Q, K] of [B, Q] and [B, K], True where both are True."""
    return queries[:, None, :, None] & keys[:, None, None, :]


def causal_mask(ids: Tensor) -> Tensor:
    """Returns the mask [T, T] for ids [B, T]: True on and below the diagonal."""
    return torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()


@torch.no_grad()
def greedy(
    model: SayhelloTransformer, source_ids: Tensor, decoder_start_id: int, eos_id: int, max_decode_length: int
) -> Tensor:
    """Decodes greedily in evaluation mode, with the training masks. (The program itself only uses teacher forcing.)

    Args:
      source_ids: [B, S].
      decoder_start_id: the first decoder input; not part of the result.
      max_decode_length: the most tokens of a translation, eos_id included.

    Returns:
      Integers [B, T], T ≤ max_decode_length. Each row either contains eos_id, followed by the target's pad id, or has
      max_decode_length tokens without it.
    """
    was_training = model.training
    model.eval()
    prefix = source_ids.new_full((len(source_ids), 1), decoder_start_id)
    finished = torch.zeros(len(source_ids), dtype=torch.bool, device=source_ids.device)
    for _ in range(max_decode_length):
        chosen = model(source_ids, prefix)[:, -1].argmax(dim=-1).masked_fill(finished, model.target_pad_id)  # [B]
        prefix = torch.cat([prefix, chosen[:, None]], dim=1)
        finished |= chosen == eos_id
        if finished.all():
            break
    model.train(was_training)
    return prefix[:, 1:]
