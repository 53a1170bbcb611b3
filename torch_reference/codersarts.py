"""The Transformer of Codersarts' article on building one in PyTorch (the system `codersarts`).

Differences from Vaswani et al. (2017):

- positions depend on the **row of the batch**: the table is [rows, 1, D], cut to the length of the first axis, and it
  is added to tensors [B, T, D]. All tokens of sentence b get the encoding of position b, so the order of words makes
  no difference, the order of sentences does, and the table's length bounds the batch. `position_index="column"`
  computes the intended positions;
- embeddings are not multiplied by √d_model;
- norms come before the sublayers, with none after the stacks; a norm divides by (s + ε), s the unbiased
  standard deviation;
- the two embeddings and the head share no weights;
- dropout on attention weights is 0.1, whatever dropout_rate is.

The article prints positions, attention, feed-forward, encoder layer and the top level. It only names norms, decoder
layer, stacks and masks; they are completed here as in the tutorial that it follows (`floydhub`).

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


class CodersartsTransformer(nn.Module):
    """Maps source and target ids to logits, under the article's state_dict keys.

    Args:
      max_length: rows of the position tables.
      position_index: "batch_row", as the article computes, or "column", as it means.
      source_pad_id, target_pad_id: ids of padding.
      dropout_rate: on embeddings, on each sublayer's output and inside the feed-forward.
      dtype: of parameters, tables, and everything computed.

    Raises:
      ValueError: num_heads does not divide d_model; d_model is odd; an unknown position_index.
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
        position_index: str = "batch_row",
        source_pad_id: int = 0,
        target_pad_id: int = 0,
        dropout_rate: float = 0.1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"num_heads must divide d_model={d_model}; received {num_heads}")
        if d_model % 2:
            raise ValueError(f"d_model must be even; received {d_model}")
        if position_index not in ("batch_row", "column"):
            raise ValueError(f"position_index must be one of batch_row, column; received {position_index!r}")
        self.source_pad_id, self.target_pad_id = source_pad_id, target_pad_id
        self.encoder = Stack(
            source_vocab_size,
            Positions(max_length, d_model, position_index, dropout_rate),
            [EncoderLayer(d_model, num_heads, d_ff, dropout_rate) for _ in range(num_encoder_layers)],
        )
        self.decoder = Stack(
            target_vocab_size,
            Positions(max_length, d_model, position_index, dropout_rate),
            [DecoderLayer(d_model, num_heads, d_ff, dropout_rate) for _ in range(num_decoder_layers)],
        )
        self.out = nn.Linear(d_model, target_vocab_size)
        self.to(dtype)

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor, trace: Trace | None = None) -> Tensor:
        """Returns the logits [B, T, V] of source_ids [B, S] and decoder_input_ids [B, T].

        Every activation is recorded in `trace`.
        """
        tap, masks = Tap(trace), self.make_masks(source_ids, decoder_input_ids)
        masks = Masks._make(tap(f"mask.{name}", mask) for name, mask in masks._asdict().items())
        encoder_output = self.encode(source_ids, masks.encoder_self, tap)
        return self.decode(decoder_input_ids, encoder_output, masks.decoder_self, masks.cross, tap)

    def make_masks(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Masks:
        """Returns the masks: padding hidden on the keys everywhere, later target tokens hidden."""
        source = (source_ids != self.source_pad_id)[:, None, None, :]
        target = (decoder_input_ids != self.target_pad_id)[:, None, None, :]
        return Masks(encoder_self=source, decoder_self=target & causal_mask(decoder_input_ids), cross=source)

    def encode(self, source_ids: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        """Returns the encoder's output [B, S, D] of source_ids [B, S]."""
        tap = tap.scope("encoder")
        x = self.encoder.embed_tokens(source_ids, tap)
        for i, layer in enumerate(self.encoder.layers):
            x = layer(x, mask, tap.scope(f"layers.{i}"))
        return tap("output", x)

    def decode(
        self, decoder_input_ids: Tensor, encoder_output: Tensor, self_mask: Tensor, cross_mask: Tensor, tap: Tap
    ) -> Tensor:
        """Returns the logits [B, T, V] of decoder_input_ids [B, T]."""
        inside = tap.scope("decoder")
        x = self.decoder.embed_tokens(decoder_input_ids, inside)
        for i, layer in enumerate(self.decoder.layers):
            x = layer(x, encoder_output, self_mask, cross_mask, inside.scope(f"layers.{i}"))
        return tap("logits", self.out(inside("output", x)))


class Stack(nn.Module):
    """Embeds tokens and runs the encoder's or the decoder's layers."""

    def __init__(self, vocab_size: int, positions: Positions, layers: list[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, positions.pe.shape[-1])
        self.pe = positions
        self.layers = nn.ModuleList(layers)

    def embed_tokens(self, ids: Tensor, tap: Tap) -> Tensor:
        """Returns the vectors [B, T, D] of ids [B, T]."""
        return self.pe(tap("token_embedding", self.embed(ids)), tap)


class Positions(nn.Module):
    """Adds rows of a position table: row b to sentence b, or row t to token t."""

    pe: Tensor

    def __init__(self, max_length: int, d_model: int, position_index: str, dropout_rate: float) -> None:
        super().__init__()
        self.position_index = position_index
        self.register_buffer("pe", position_table(max_length, d_model)[:, None])  # [rows, 1, D]
        self.dropout = nn.Dropout(dropout_rate)

    def forward(self, x: Tensor, tap: Tap) -> Tensor:
        """Returns x [B, T, D] plus positions. Raises ValueError if B, or T, exceeds the table's rows."""
        count, what = (
            (x.shape[0], "sentences in a batch") if self.position_index == "batch_row" else (x.shape[1], "tokens")
        )
        if count > len(self.pe):
            raise ValueError(f"received {count} {what}; the position table allows {len(self.pe)}")
        rows = self.pe[:count]  # [B, 1, D], or, of tokens, [T, 1, D]
        return self.dropout(
            tap("embedding", x + tap("positions", rows if self.position_index == "batch_row" else rows.transpose(0, 1)))
        )


class EncoderLayer(nn.Module):
    """x + attention(norm_1(x)), then x + ff(norm_2(x))."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout_rate: float) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = Norm(d_model), Norm(d_model)
        self.attn = Attention(d_model, num_heads)
        self.ff = FeedForward(d_model, d_ff, dropout_rate)
        self.dropout_1, self.dropout_2 = nn.Dropout(dropout_rate), nn.Dropout(dropout_rate)

    def forward(self, x: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        """Returns the layer's output [B, S, D] of x [B, S, D]."""
        h = tap("self_attention_norm", self.norm_1(x))
        x = tap("self_attention_residual", x + self.dropout_1(self.attn(h, h, mask, tap.scope("self_attention"))))
        h = tap("feed_forward_norm", self.norm_2(x))
        return tap("output", x + self.dropout_2(self.ff(h, tap.scope("feed_forward"))))


class DecoderLayer(nn.Module):
    """Adds attention over the encoder's output between the two sublayers."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout_rate: float) -> None:
        super().__init__()
        self.norm_1, self.norm_2, self.norm_3 = Norm(d_model), Norm(d_model), Norm(d_model)
        self.attn_1, self.attn_2 = Attention(d_model, num_heads), Attention(d_model, num_heads)
        self.ff = FeedForward(d_model, d_ff, dropout_rate)
        self.dropout_1, self.dropout_2, self.dropout_3 = (nn.Dropout(dropout_rate) for _ in range(3))

    def forward(self, x: Tensor, encoder_output: Tensor, self_mask: Tensor, cross_mask: Tensor, tap: Tap) -> Tensor:
        """x [B, T, D] → [B, T, D]."""
        h = tap("self_attention_norm", self.norm_1(x))
        x = tap(
            "self_attention_residual", x + self.dropout_1(self.attn_1(h, h, self_mask, tap.scope("self_attention")))
        )
        h = tap("cross_attention_norm", self.norm_2(x))
        attended = self.attn_2(h, encoder_output, cross_mask, tap.scope("cross_attention"))
        x = tap("cross_attention_residual", x + self.dropout_2(attended))
        h = tap("feed_forward_norm", self.norm_3(x))
        return tap("output", x + self.dropout_3(self.ff(h, tap.scope("feed_forward"))))


class Attention(nn.Module):
    """Multi-head attention; masked logits become -1e9, so that a fully masked row attends to all keys alike."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_linear, self.k_linear, self.v_linear, self.out = (nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = nn.Dropout(ATTENTION_DROPOUT_RATE)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        """Returns the output [B, Q, D] of x [B, Q, D] attending to y [B, K, D]; `mask` is boolean [B, 1, Q or 1, K]."""
        query, key, value = (
            tap(name, linear(input).unflatten(-1, (self.num_heads, -1)))  # [B, Q or K, N, H]
            for name, linear, input in (
                ("query", self.q_linear, x),
                ("key", self.k_linear, y),
                ("value", self.v_linear, y),
            )
        )
        logits = torch.einsum("BQNH,BKNH->BNQK", query, key) / math.sqrt(query.shape[-1])
        logits = tap("logits", logits.masked_fill(~mask, MASKED_LOGIT))
        weights = self.dropout(tap("weights", torch.softmax(logits, dim=-1)))
        context = tap("context", torch.einsum("BNQK,BKNH->BQNH", weights, value))
        return tap("output", self.out(context.flatten(-2)))


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
    """alpha · (x − mean) / (s + ε) + bias, s the standard deviation with D − 1 in the denominator."""

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Returns x [..., D] normed over its last axis."""
        centred = x - x.mean(dim=-1, keepdim=True)
        return self.alpha * centred / (x.std(dim=-1, keepdim=True) + self.eps) + self.bias


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
    model: CodersartsTransformer, source_ids: Tensor, decoder_start_id: int, eos_id: int, max_decode_length: int
) -> Tensor:
    """Decodes greedily in evaluation mode, with the training masks. (The article has no decoding.)

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
