"""The Annotated Transformer (Harvard NLP; the version of 2022 by A. Huang et al.), the system `harvard`.

Differences from Vaswani et al. (2017):

- norms come before the sublayers, and after each stack; a norm divides by (s + ε), s the unbiased standard
  deviation;
- the two embeddings and the head share no weights;
- dropout on attention weights is 0.1, whatever dropout_rate is;
- the head returns log-probabilities; `forward` here returns the logits before them.

While decoding, pads that the model generated may be attended to. Its state_dict has the keys and shapes of
`annotated_zh`'s, which has another norm and no activation: only the values distinguish them.

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

MASKED_LOGIT = -1e9
ATTENTION_DROPOUT_RATE = 0.1


class Masks(NamedTuple):
    """Holds boolean masks, True = may attend."""

    encoder_self: Tensor  # [B, 1, 1, S]
    decoder_self: Tensor  # [B, 1, T, T]
    cross: Tensor  # [B, 1, 1, S]


class HarvardTransformer(nn.Module):
    """Maps source and target ids to logits, under the state_dict keys of the released program.

    Args:
      max_length: rows of the position tables.
      source_pad_id, target_pad_id: ids of `<blank>`, 2 in the program.
      dropout_rate: on embeddings, on each sublayer's output and inside the feed-forward.
      dtype: of parameters, tables, and everything computed.

    Raises:
      ValueError: num_heads does not divide d_model; d_model is odd.
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
        max_length: int = 5000,
        source_pad_id: int = 2,
        target_pad_id: int = 2,
        dropout_rate: float = 0.1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"num_heads must divide d_model={d_model}; received {num_heads}")
        if d_model % 2:
            raise ValueError(f"d_model must be even; received {d_model}")
        self.source_pad_id, self.target_pad_id = source_pad_id, target_pad_id
        self.encoder = Stack(
            d_model, [EncoderLayer(d_model, num_heads, d_ff, dropout_rate) for _ in range(num_encoder_layers)]
        )
        self.decoder = Stack(
            d_model, [DecoderLayer(d_model, num_heads, d_ff, dropout_rate) for _ in range(num_decoder_layers)]
        )
        self.src_embed = nn.ModuleList(
            [Embedding(source_vocab_size, d_model), Positions(max_length, d_model, dropout_rate)]
        )
        self.tgt_embed = nn.ModuleList(
            [Embedding(target_vocab_size, d_model), Positions(max_length, d_model, dropout_rate)]
        )
        self.generator = Generator(d_model, target_vocab_size)
        self.to(dtype)

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor, trace: Trace | None = None) -> Tensor:
        """Returns the logits [B, T, V] of source_ids [B, S] and decoder_input_ids [B, T].

        Every activation is recorded in `trace`.
        """
        tap, masks = Tap(trace), self.make_masks(source_ids, decoder_input_ids)
        masks = Masks._make(tap(f"mask.{name}", mask) for name, mask in masks._asdict().items())
        encoder_output = self.encode(source_ids, masks.encoder_self, tap)
        return self.decode(decoder_input_ids, encoder_output, masks.decoder_self, masks.cross, tap)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Returns the log-probabilities [B, T, V] that the program's head computes from logits [B, T, V]."""
        return torch.log_softmax(logits, dim=-1)

    def make_masks(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Masks:
        """Returns the training masks: padding hidden on the keys everywhere, later target tokens hidden."""
        source = (source_ids != self.source_pad_id)[:, None, None, :]
        target = (decoder_input_ids != self.target_pad_id)[:, None, None, :]
        return Masks(encoder_self=source, decoder_self=target & causal_mask(decoder_input_ids), cross=source)

    def encode(self, source_ids: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        """Returns the encoder's output [B, S, D] of source_ids [B, S]."""
        tap = tap.scope("encoder")
        embedding, positions = self.src_embed
        x = positions(embedding(source_ids, tap), tap)
        for i, layer in enumerate(self.encoder.layers):
            x = layer(x, mask, tap.scope(f"layers.{i}"))
        return tap("output", self.encoder.norm(x))

    def decode(
        self, decoder_input_ids: Tensor, encoder_output: Tensor, self_mask: Tensor, cross_mask: Tensor, tap: Tap
    ) -> Tensor:
        """Returns the logits [B, T, V] of decoder_input_ids [B, T]."""
        inside = tap.scope("decoder")
        embedding, positions = self.tgt_embed
        x = positions(embedding(decoder_input_ids, inside), inside)
        for i, layer in enumerate(self.decoder.layers):
            x = layer(x, encoder_output, self_mask, cross_mask, inside.scope(f"layers.{i}"))
        return tap("logits", self.generator.proj(inside("output", self.decoder.norm(x))))


class Stack(nn.Module):
    """Runs the encoder's or the decoder's layers, then a norm."""

    def __init__(self, d_model: int, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = Norm(d_model)


class Embedding(nn.Module):
    """Looks up token vectors and multiplies them by √d_model."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.lut = nn.Embedding(vocab_size, d_model)

    def forward(self, ids: Tensor, tap: Tap) -> Tensor:
        """Returns the vectors [B, T, D] of ids [B, T]."""
        return tap("token_embedding", self.lut(ids) * math.sqrt(self.lut.embedding_dim))


class Positions(nn.Module):
    """Adds the rows of a position table."""

    pe: Tensor

    def __init__(self, max_length: int, d_model: int, dropout_rate: float) -> None:
        super().__init__()
        self.register_buffer("pe", position_table(max_length, d_model)[None])  # [1, rows, D]
        self.dropout = nn.Dropout(dropout_rate)

    def forward(self, x: Tensor, tap: Tap) -> Tensor:
        """Returns x [B, T, D] plus positions. Raises ValueError if T exceeds the table's rows."""
        if x.shape[1] > self.pe.shape[1]:
            raise ValueError(f"received {x.shape[1]} tokens; the position table allows {self.pe.shape[1]}")
        return self.dropout(tap("embedding", x + tap("positions", self.pe[:, : x.shape[1]])))


class Generator(nn.Module):
    """Maps the decoder's output to logits."""

    def __init__(self, d_model: int, vocab_size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, vocab_size)


class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout_rate: float) -> None:
        super().__init__()
        self.self_attn = Attention(d_model, num_heads)
        self.feed_forward = FeedForward(d_model, d_ff, dropout_rate)
        self.sublayer = nn.ModuleList([Sublayer(d_model, dropout_rate) for _ in range(2)])

    def forward(self, x: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        """Returns the layer's output [B, S, D] of x [B, S, D]."""
        attention, feed_forward = self.sublayer
        h = tap("self_attention_norm", attention.norm(x))
        x = tap(
            "self_attention_residual", x + attention.dropout(self.self_attn(h, h, mask, tap.scope("self_attention")))
        )
        h = tap("feed_forward_norm", feed_forward.norm(x))
        return tap("output", x + feed_forward.dropout(self.feed_forward(h, tap.scope("feed_forward"))))


class DecoderLayer(nn.Module):
    """Adds attention over the encoder's output between the two sublayers."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout_rate: float) -> None:
        super().__init__()
        self.self_attn = Attention(d_model, num_heads)
        self.src_attn = Attention(d_model, num_heads)
        self.feed_forward = FeedForward(d_model, d_ff, dropout_rate)
        self.sublayer = nn.ModuleList([Sublayer(d_model, dropout_rate) for _ in range(3)])

    def forward(self, x: Tensor, encoder_output: Tensor, self_mask: Tensor, cross_mask: Tensor, tap: Tap) -> Tensor:
        """x [B, T, D] → [B, T, D]."""
        own, cross, feed_forward = self.sublayer
        h = tap("self_attention_norm", own.norm(x))
        x = tap(
            "self_attention_residual", x + own.dropout(self.self_attn(h, h, self_mask, tap.scope("self_attention")))
        )
        h = tap("cross_attention_norm", cross.norm(x))
        attended = self.src_attn(h, encoder_output, cross_mask, tap.scope("cross_attention"))
        x = tap("cross_attention_residual", x + cross.dropout(attended))
        h = tap("feed_forward_norm", feed_forward.norm(x))
        return tap("output", x + feed_forward.dropout(self.feed_forward(h, tap.scope("feed_forward"))))


class Sublayer(nn.Module):
    """Applies the norm before a sublayer and the dropout after it."""

    def __init__(self, d_model: int, dropout_rate: float) -> None:
        super().__init__()
        self.norm = Norm(d_model)
        self.dropout = nn.Dropout(dropout_rate)


class Attention(nn.Module):
    """Multi-head attention; masked logits become -1e9, so that a fully masked row attends to all keys alike."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])  # query, key, value, output
        self.dropout = nn.Dropout(ATTENTION_DROPOUT_RATE)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        """Returns the output [B, Q, D] of x [B, Q, D] attending to y [B, K, D]; `mask` is boolean [B, 1, Q or 1, K]."""
        *projections, output = self.linears
        query, key, value = (
            tap(name, linear(input).unflatten(-1, (self.num_heads, -1)))  # [B, Q or K, N, H]
            for name, linear, input in zip(("query", "key", "value"), projections, (x, y, y), strict=True)
        )
        logits = torch.einsum("BQNH,BKNH->BNQK", query, key) / math.sqrt(query.shape[-1])
        logits = tap("logits", logits.masked_fill(~mask, MASKED_LOGIT))
        weights = self.dropout(tap("weights", torch.softmax(logits, dim=-1)))
        context = tap("context", torch.einsum("BNQK,BKNH->BQNH", weights, value))
        return tap("output", output(context.flatten(-2)))


class FeedForward(nn.Module):
    """Applies linear, ReLU, dropout, linear."""

    def __init__(self, d_model: int, d_ff: int, dropout_rate: float) -> None:
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.dropout = nn.Dropout(dropout_rate)
        self.w_2 = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor, tap: Tap) -> Tensor:
        """x [B, T, D] → [B, T, D]."""
        hidden = tap("hidden", functional.relu(self.w_1(x)))  # [B, T, F]
        return tap("output", self.w_2(self.dropout(hidden)))


class Norm(nn.Module):
    """a_2 · (x − mean) / (s + ε) + b_2, s the standard deviation with D − 1 in the denominator."""

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(d_model))
        self.b_2 = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Returns x [..., D] normed over its last axis."""
        centred = x - x.mean(dim=-1, keepdim=True)
        return self.a_2 * centred / (x.std(dim=-1, keepdim=True) + self.eps) + self.b_2


def position_table(rows: int, d_model: int) -> Tensor:
    """Returns the table [rows, D] in float64 (Vaswani et al. 2017, §3.5): even columns sine, odd columns cosine."""
    exponents = np.arange(0, d_model, 2, dtype=np.float64) / d_model
    angle = np.arange(rows, dtype=np.float64)[:, None] / 10000.0**exponents
    return torch.from_numpy(np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(rows, d_model))


def causal_mask(ids: Tensor) -> Tensor:
    """Returns the mask [T, T] for ids [B, T]: True on and below the diagonal."""
    return torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()


@torch.no_grad()
def greedy(
    model: HarvardTransformer, source_ids: Tensor, decoder_start_id: int, eos_id: int, max_decode_length: int
) -> Tensor:
    """Decodes greedily in evaluation mode. A pad in the prefix is attended to like any token.

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
    cross_mask = (source_ids != model.source_pad_id)[:, None, None, :]
    encoder_output = model.encode(source_ids, cross_mask, Tap())
    prefix = source_ids.new_full((len(source_ids), 1), decoder_start_id)
    finished = torch.zeros(len(source_ids), dtype=torch.bool, device=source_ids.device)
    for _ in range(max_decode_length):
        logits = model.decode(prefix, encoder_output, causal_mask(prefix)[None, None], cross_mask, Tap())
        chosen = logits[:, -1].argmax(dim=-1).masked_fill(finished, model.target_pad_id)  # [B]
        prefix = torch.cat([prefix, chosen[:, None]], dim=1)
        finished |= chosen == eos_id
        if finished.all():
            break
    model.train(was_training)
    return prefix[:, 1:]
