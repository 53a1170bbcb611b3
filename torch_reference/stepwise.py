"""The seven models of an article that builds up a Transformer from a core in six steps (the system `stepwise`).

The whole model (`rung=6`) differs from Vaswani et al. (2017):

- padding is masked on the **queries** of the encoder's attention, so that pads attend to everything alike while real
  tokens attend to pads;
- in the decoder's own attention too: a pad's row is fully masked, and attends to later tokens as well;
- the attention over the encoder's output has no mask at all;
- embeddings are not multiplied by √d_model; the two embeddings and the head share no weights;
- there is no dropout.

Norms stand after the residuals, as in the paper: torch's LayerNorm, ε 1e-5 inside the root. One <EOS> both starts and
ends a target.

The ladder, with the additions of each rung:

    0 core        embeddings, three attentions of one head, unscaled, without output projection, each added to its
                  input; a head
    1 batches     a batch axis (here the core has it too)
    2 masks       padding hidden on the keys of the encoder's and the decoder's own attention, and later tokens;
                  none over the encoder's output
    3 positions   sinusoids
    4 layers      N of each
    5 sublayers   output projections, norms after the residuals, ReLU feed-forwards
    6 heads       several heads, scaled by 1/√head_dim; the padding masks move to the queries

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
CORE, BATCHES, MASKS, POSITIONS, LAYERS, SUBLAYERS, HEADS = range(7)


class Masks(NamedTuple):
    """Holds boolean masks, True = may attend; None = everything may be attended."""

    encoder_self: Tensor | None  # [B, 1, 1, S], or with heads [B, 1, S, 1]
    decoder_self: Tensor | None  # [B, 1, T, T]
    cross: None = None


class StepwiseTransformer(nn.Module):
    """Maps source and target ids to logits, under the article's state_dict keys.

    Args:
      rung: which of the seven models, 0 to 6.
      num_heads: 1 below rung 6.
      d_ff: of no effect below rung 5.
      num_layers: 1 below rung 4.
      max_length: rows of the position table; of no effect below rung 3.
      source_pad_id, target_pad_id: ids of `<PAD>`; of no effect below rung 2.
      dtype: of parameters, tables, and everything computed.

    Raises:
      ValueError: an unknown rung; several heads or layers below the rung that adds them; num_heads does not divide
        d_model; from rung 3 on, d_model is odd.
    """

    def __init__(
        self,
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        rung: int = HEADS,
        d_model: int = 4,
        num_heads: int = 2,
        d_ff: int = 128,
        num_layers: int = 3,
        max_length: int = 1024,
        source_pad_id: int = 0,
        target_pad_id: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if rung not in range(7):
            raise ValueError(f"rung must be 0 to 6; received {rung}")
        if rung < HEADS and num_heads != 1:
            raise ValueError(f"num_heads must be 1 below rung {HEADS}; received {num_heads}")
        if rung < LAYERS and num_layers != 1:
            raise ValueError(f"num_layers must be 1 below rung {LAYERS}; received {num_layers}")
        if d_model % num_heads:
            raise ValueError(f"num_heads must divide d_model={d_model}; received {num_heads}")
        if rung >= POSITIONS and d_model % 2:
            raise ValueError(f"d_model must be even; received {d_model}")
        self.rung, self.source_pad_id, self.target_pad_id = rung, source_pad_id, target_pad_id
        self.encoder_embedding = nn.Embedding(source_vocab_size, d_model)
        self.decoder_embedding = nn.Embedding(target_vocab_size, d_model)
        if rung >= POSITIONS:
            self.positional_encoding = Positions(max_length, d_model)
        if rung >= LAYERS:
            self.encoders = nn.ModuleList(EncoderLayer(rung, d_model, num_heads, d_ff) for _ in range(num_layers))
            self.decoders = nn.ModuleList(DecoderLayer(rung, d_model, num_heads, d_ff) for _ in range(num_layers))
        else:
            self.encoder_attention, self.decoder_attention, self.cross_attention = (
                Attention(rung, d_model, num_heads) for _ in range(3)
            )
        self.fc = nn.Linear(d_model, target_vocab_size)
        self.to(dtype)

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor, trace: Trace | None = None) -> Tensor:
        """Returns the logits [B, T, V] of source_ids [B, S] and decoder_input_ids [B, T].

        Every activation is recorded in `trace`.
        """
        tap, masks = Tap(trace), self.make_masks(source_ids, decoder_input_ids)
        masks = Masks._make(
            mask if mask is None else tap(f"mask.{name}", mask) for name, mask in masks._asdict().items()
        )
        inside = tap.scope("encoder")
        x = self.embed(self.encoder_embedding, source_ids, inside)
        if self.rung >= LAYERS:
            for i, layer in enumerate(self.encoders):
                x = layer(x, masks.encoder_self, inside.scope(f"layers.{i}"))
        else:
            x = attend_once(
                self.encoder_attention, x, x, masks.encoder_self, "self_attention", inside.scope("layers.0")
            )
            x = inside.scope("layers.0")("output", x)
        encoder_output = inside("output", x)

        inside = tap.scope("decoder")
        x = self.embed(self.decoder_embedding, decoder_input_ids, inside)
        if self.rung >= LAYERS:
            for i, layer in enumerate(self.decoders):
                x = layer(x, encoder_output, masks.decoder_self, inside.scope(f"layers.{i}"))
        else:
            x = attend_once(
                self.decoder_attention, x, x, masks.decoder_self, "self_attention", inside.scope("layers.0")
            )
            x = attend_once(self.cross_attention, x, encoder_output, None, "cross_attention", inside.scope("layers.0"))
            x = inside.scope("layers.0")("output", x)
        return tap("logits", self.fc(inside("output", x)))

    def embed(self, embedding: nn.Embedding, ids: Tensor, tap: Tap) -> Tensor:
        """Returns the vectors [B, T, D] of ids [B, T]."""
        x = tap("token_embedding", embedding(ids))
        if self.rung >= POSITIONS:
            x = self.positional_encoding(x, tap)
        return tap("embedding", x)

    def make_masks(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Masks:
        """Returns the masks: None before rung 2, then padding hidden on the keys, with several heads on the queries."""
        if self.rung < MASKS:
            return Masks(None, None)
        source, target = source_ids != self.source_pad_id, decoder_input_ids != self.target_pad_id
        length = decoder_input_ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        if self.rung < HEADS:
            return Masks(source[:, None, None, :], target[:, None, None, :] & causal)
        return Masks(source[:, None, :, None], target[:, None, :, None] & causal)


def attend_once(attention: Attention, x: Tensor, y: Tensor, mask: Tensor | None, name: str, tap: Tap) -> Tensor:
    """Returns x [B, Q, D] plus the attention output over y [B, K, D]."""
    return tap(f"{name}_residual", x + attention(x, y, mask, tap.scope(name)))


class Positions(nn.Module):
    """Adds the rows of a position table."""

    pe: Tensor

    def __init__(self, max_length: int, d_model: int) -> None:
        super().__init__()
        self.register_buffer("pe", position_table(max_length, d_model))

    def forward(self, x: Tensor, tap: Tap) -> Tensor:
        """Returns x [B, T, D] plus positions. Raises ValueError if T exceeds the table's rows."""
        if x.shape[1] > len(self.pe):
            raise ValueError(f"received {x.shape[1]} tokens; the position table allows {len(self.pe)}")
        return x + tap("positions", self.pe[None, : x.shape[1]])


class EncoderLayer(nn.Module):
    """norm1(x + attention(x)), then norm2(x + ff2(relu(ff1(x)))); on rung 4 x + attention(x) alone."""

    def __init__(self, rung: int, d_model: int, num_heads: int, d_ff: int) -> None:
        super().__init__()
        self.has_sublayers = rung >= SUBLAYERS
        self.attn = Attention(rung, d_model, num_heads)
        if self.has_sublayers:
            self.norm1 = nn.LayerNorm(d_model)
            self.ff1, self.ff2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
            self.norm2 = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, mask: Tensor | None, tap: Tap) -> Tensor:
        """Returns the layer's output [B, S, D] of x [B, S, D]."""
        if not self.has_sublayers:
            return tap("output", attend_once(self.attn, x, x, mask, "self_attention", tap))
        y = self.attn(x, x, mask, tap.scope("self_attention"))
        x = tap("self_attention_residual", tap("self_attention_norm", self.norm1(x + y)))
        y = feed_forward(self.ff1, self.ff2, x, tap.scope("feed_forward"))
        return tap("output", tap("feed_forward_norm", self.norm2(x + y)))


class DecoderLayer(nn.Module):
    """Adds attention over the encoder's output between the two sublayers."""

    def __init__(self, rung: int, d_model: int, num_heads: int, d_ff: int) -> None:
        super().__init__()
        self.has_sublayers = rung >= SUBLAYERS
        self.attn = Attention(rung, d_model, num_heads)
        if self.has_sublayers:
            self.norm1 = nn.LayerNorm(d_model)
        self.cross_attn = Attention(rung, d_model, num_heads)
        if self.has_sublayers:
            self.norm2 = nn.LayerNorm(d_model)
            self.ff1, self.ff2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
            self.norm3 = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, encoder_output: Tensor, mask: Tensor | None, tap: Tap) -> Tensor:
        """x [B, T, D] → [B, T, D]."""
        if not self.has_sublayers:
            x = attend_once(self.attn, x, x, mask, "self_attention", tap)
            return tap("output", attend_once(self.cross_attn, x, encoder_output, None, "cross_attention", tap))
        y = self.attn(x, x, mask, tap.scope("self_attention"))
        x = tap("self_attention_residual", tap("self_attention_norm", self.norm1(x + y)))
        y = self.cross_attn(x, encoder_output, None, tap.scope("cross_attention"))
        x = tap("cross_attention_residual", tap("cross_attention_norm", self.norm2(x + y)))
        y = feed_forward(self.ff1, self.ff2, x, tap.scope("feed_forward"))
        return tap("output", tap("feed_forward_norm", self.norm3(x + y)))


def feed_forward(ff1: nn.Linear, ff2: nn.Linear, x: Tensor, tap: Tap) -> Tensor:
    """Applies linear, ReLU, linear to x [B, T, D]; returns the same shape."""
    return tap("output", ff2(tap("hidden", functional.relu(ff1(x)))))


class Attention(nn.Module):
    """Attention; masked logits become -1e9, so that a fully masked row attends to all keys alike."""

    def __init__(self, rung: int, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = 1.0 / math.sqrt(d_model // num_heads) if rung >= HEADS else 1.0
        self.W_q, self.W_k, self.W_v = (nn.Linear(d_model, d_model) for _ in range(3))
        self.linear_out = nn.Linear(d_model, d_model) if rung >= SUBLAYERS else None

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None, tap: Tap) -> Tensor:
        """Returns the output [B, Q, D] of x [B, Q, D] attending to y [B, K, D].

        `mask` is boolean, broadcastable to [B, 1, Q, K].
        """
        query, key, value = (
            tap(name, linear(input).unflatten(-1, (self.num_heads, -1)))  # [B, Q or K, N, H]
            for name, linear, input in (("query", self.W_q, x), ("key", self.W_k, y), ("value", self.W_v, y))
        )
        logits = torch.einsum("BQNH,BKNH->BNQK", query, key) * self.scale
        logits = tap("logits", logits if mask is None else logits.masked_fill(~mask, MASKED_LOGIT))
        weights = tap("weights", torch.softmax(logits, dim=-1))
        context = tap("context", torch.einsum("BNQK,BKNH->BQNH", weights, value)).flatten(-2)
        return tap("output", context if self.linear_out is None else self.linear_out(context))


def position_table(rows: int, d_model: int) -> Tensor:
    """Returns the table [rows, D] in float64 (Vaswani et al. 2017, §3.5): even columns sine, odd columns cosine."""
    exponents = np.arange(0, d_model, 2, dtype=np.float64) / d_model
    angle = np.arange(rows, dtype=np.float64)[:, None] / 10000.0**exponents
    return torch.from_numpy(np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(rows, d_model))


@torch.no_grad()
def greedy(
    model: StepwiseTransformer, source_ids: Tensor, decoder_start_id: int, eos_id: int, max_decode_length: int = 40
) -> Tensor:
    """Decodes greedily with the training masks.

    Args:
      source_ids: [B, S].
      decoder_start_id: the first decoder input; not part of the result. The article's is its <EOS>.
      max_decode_length: the most tokens of a translation, eos_id included.

    Returns:
      Integers [B, T], T ≤ max_decode_length. Each row either contains eos_id, followed by the target's pad id, or has
      max_decode_length tokens without it.
    """
    prefix = source_ids.new_full((len(source_ids), 1), decoder_start_id)
    finished = torch.zeros(len(source_ids), dtype=torch.bool, device=source_ids.device)
    for _ in range(max_decode_length):
        chosen = model(source_ids, prefix)[:, -1].argmax(dim=-1).masked_fill(finished, model.target_pad_id)  # [B]
        prefix = torch.cat([prefix, chosen[:, None]], dim=1)
        finished |= chosen == eos_id
        if finished.all():
            break
    return prefix[:, 1:]
