"""`torch.nn.Transformer` with embeddings, positions and a head (the system `pytorch`).

`forward` is nn.Transformer's own. With a trace, `traced_forward` walks the same submodules sublayer by sublayer, so
that every activation has a name. Axes: B batch, S source, T target, Q/K query/key length, D model, F feed-forward, N
heads, H head_dim, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_reference.trace import Tap, Trace


class Masks(NamedTuple):
    """Holds boolean masks, True = may attend."""

    encoder_self: Tensor  # [B, 1, 1, S]
    decoder_self: Tensor  # [B, 1, T, T]
    cross: Tensor  # [B, 1, 1, S]


class PytorchTransformer(nn.Module):
    """Maps source and target ids to logits.

    Embeddings are multiplied by √d_model, then the sinusoids of Vaswani et al. (2017, §3.5) are added, even columns
    sine and odd columns cosine. Padding is masked on the keys of all three attentions. A sentence that is all
    padding attends to all of its positions alike. The state_dict has `source_embedding.weight`,
    `target_embedding.weight`, `positions`, `transformer.*` and `head.{weight,bias}`.

    Args:
      max_length: rows of `positions`, the one table of both sides.
      norm_first: norms before the sublayers; otherwise after them. Either way both stacks end in a norm.
      activation: "relu" or "gelu" (the exact one).
      dropout_rate: on embeddings, attention weights, the feed-forward's hidden layer, and each sublayer's output.
      share_embeddings, tie_head: one Parameter under two or three names.
      dtype: of parameters and of everything computed.

    Raises:
      ValueError: num_heads does not divide d_model; d_model is odd; an unknown activation; shared embeddings of unequal
        vocabularies.
    """

    positions: Tensor

    def __init__(
        self,
        *,
        source_vocab_size: int,
        target_vocab_size: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_encoder_layers: int,
        num_decoder_layers: int,
        max_length: int,
        source_pad_id: int,
        target_pad_id: int,
        norm_first: bool = False,
        activation: str = "relu",
        norm_eps: float = 1e-5,
        dropout_rate: float = 0.1,
        share_embeddings: bool = False,
        tie_head: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"num_heads must divide d_model={d_model}; received {num_heads}")
        if d_model % 2:
            raise ValueError(f"d_model must be even; received {d_model}")
        if activation not in ("relu", "gelu"):
            raise ValueError(f"activation must be one of relu, gelu; received {activation!r}")
        if share_embeddings and source_vocab_size != target_vocab_size:
            raise ValueError(
                f"share_embeddings needs equal vocabularies; received {source_vocab_size} and {target_vocab_size}"
            )
        self.d_model, self.num_heads, self.norm_first = d_model, num_heads, norm_first
        self.source_pad_id, self.target_pad_id = source_pad_id, target_pad_id

        self.source_embedding = nn.Embedding(source_vocab_size, d_model, dtype=dtype)
        self.target_embedding = nn.Embedding(target_vocab_size, d_model, dtype=dtype)
        self.register_buffer("positions", sinusoids(max_length, d_model).to(dtype))
        self.embedding_dropout = nn.Dropout(dropout_rate)
        encoder_layer = nn.TransformerEncoderLayer(
            d_model,
            num_heads,
            d_ff,
            dropout_rate,
            activation,
            norm_eps,
            batch_first=True,
            norm_first=norm_first,
            dtype=dtype,
        )
        encoder_norm = nn.LayerNorm(d_model, norm_eps, dtype=dtype)
        # given as custom_encoder, because nn.Transformer can't be told to do without nested tensors
        encoder = nn.TransformerEncoder(encoder_layer, num_encoder_layers, encoder_norm, enable_nested_tensor=False)
        self.transformer = nn.Transformer(
            d_model=d_model,
            nhead=num_heads,
            num_decoder_layers=num_decoder_layers,
            dim_feedforward=d_ff,
            dropout=dropout_rate,
            activation=activation,
            custom_encoder=encoder,
            layer_norm_eps=norm_eps,
            batch_first=True,
            norm_first=norm_first,
            dtype=dtype,
        )
        self.head = nn.Linear(d_model, target_vocab_size, dtype=dtype)
        if share_embeddings:
            self.source_embedding.weight = self.target_embedding.weight
        if tie_head:
            self.head.weight = self.target_embedding.weight

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor, trace: Trace | None = None) -> Tensor:
        """Returns the logits [B, T, V] of source_ids [B, S] and decoder_input_ids [B, T], filling `trace`.

        Raises:
          ValueError: more tokens than the position table has rows.
        """
        for name, ids in (("source_ids", source_ids), ("decoder_input_ids", decoder_input_ids)):
            if ids.shape[1] > len(self.positions):
                raise ValueError(f"{name} has {ids.shape[1]} tokens; the position table allows {len(self.positions)}")
        if trace is not None:
            return self.traced_forward(source_ids, decoder_input_ids, trace)
        masks = self.make_masks(source_ids, decoder_input_ids)
        (batch, source_length), target_length = source_ids.shape, decoder_input_ids.shape[1]
        with plain_attention():
            x = self.transformer(
                self.embed(self.source_embedding, source_ids, Tap()),
                self.embed(self.target_embedding, decoder_input_ids, Tap()),
                src_mask=self._for_every_head(masks.encoder_self, batch, source_length, source_length),
                tgt_mask=self._for_every_head(masks.decoder_self, batch, target_length, target_length),
                memory_mask=self._for_every_head(masks.cross, batch, target_length, source_length),
            )
        return self.head(x)

    def embed(self, embedding: nn.Embedding, ids: Tensor, tap: Tap) -> Tensor:
        """Returns the vectors [B, T, D] of ids [B, T], after positions and dropout."""
        x = tap("token_embedding", embedding(ids) * math.sqrt(self.d_model))
        x = x + tap("positions", self.positions[None, : ids.shape[1]])  # [1, T, D]
        return self.embedding_dropout(tap("embedding", x))

    def make_masks(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Masks:
        """Returns the masks: queries attend to real source tokens, and to real target tokens up to themselves."""
        source = (source_ids != self.source_pad_id)[:, None, None, :]
        target = (decoder_input_ids != self.target_pad_id)[:, None, None, :]
        length = decoder_input_ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=target.device).tril()
        return Masks(encoder_self=source, decoder_self=target & causal, cross=source)

    def additive(self, mask: Tensor) -> Tensor:
        """Returns 0 where `mask` is True, the dtype's lowest number elsewhere.

        One mask covers padding and future together. The sum of two lowest numbers would be -inf, and a whole row of
        -inf gives NaN. A score added to the lowest number leaves it unchanged, so a fully masked row has equal logits.
        """
        dtype = self.head.weight.dtype
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)

    def _for_every_head(self, mask: Tensor, batch: int, queries: int, keys: int) -> Tensor:
        """Returns a boolean mask as the additive one [B * N, Q, K] that nn.MultiheadAttention takes."""
        return self.additive(mask).expand(batch, self.num_heads, queries, keys).reshape(-1, queries, keys)

    # --- the same, sublayer by sublayer, with the parameters and dropouts of nn.Transformer's submodules

    def traced_forward(self, source_ids: Tensor, decoder_input_ids: Tensor, trace: Trace) -> Tensor:
        """Computes the same as `forward`, recording every activation in `trace`."""
        tap = Tap(trace)
        masks = self.make_masks(source_ids, decoder_input_ids)
        masks = Masks._make(tap(f"mask.{name}", mask) for name, mask in masks._asdict().items())

        encoder, encoder_tap = self.transformer.encoder, tap.scope("encoder")
        x = self.embed(self.source_embedding, source_ids, encoder_tap)
        for i, layer in enumerate(encoder.layers):
            x = self._encoder_layer(layer, x, masks, encoder_tap.scope(f"layers.{i}"))
        encoder_output = encoder_tap("output", encoder.norm(x))

        decoder, decoder_tap = self.transformer.decoder, tap.scope("decoder")
        x = self.embed(self.target_embedding, decoder_input_ids, decoder_tap)
        for i, layer in enumerate(decoder.layers):
            x = self._decoder_layer(layer, x, encoder_output, masks, decoder_tap.scope(f"layers.{i}"))
        return tap("logits", self.head(decoder_tap("output", decoder.norm(x))))

    def _encoder_layer(self, layer: nn.TransformerEncoderLayer, x: Tensor, masks: Masks, tap: Tap) -> Tensor:
        def self_attention(h: Tensor) -> Tensor:
            return self._attention(layer.self_attn, h, h, masks.encoder_self, tap.scope("self_attention"))

        def feed_forward(h: Tensor) -> Tensor:
            return _feed_forward(layer, h, tap.scope("feed_forward"))

        x = tap(
            "self_attention_residual",
            self._sublayer("self_attention", layer.norm1, layer.dropout1, self_attention, x, tap),
        )
        return tap("output", self._sublayer("feed_forward", layer.norm2, layer.dropout2, feed_forward, x, tap))

    def _decoder_layer(
        self, layer: nn.TransformerDecoderLayer, x: Tensor, encoder_output: Tensor, masks: Masks, tap: Tap
    ) -> Tensor:
        def self_attention(h: Tensor) -> Tensor:
            return self._attention(layer.self_attn, h, h, masks.decoder_self, tap.scope("self_attention"))

        def cross_attention(h: Tensor) -> Tensor:
            return self._attention(layer.multihead_attn, h, encoder_output, masks.cross, tap.scope("cross_attention"))

        def feed_forward(h: Tensor) -> Tensor:
            return _feed_forward(layer, h, tap.scope("feed_forward"))

        x = tap(
            "self_attention_residual",
            self._sublayer("self_attention", layer.norm1, layer.dropout1, self_attention, x, tap),
        )
        x = tap(
            "cross_attention_residual",
            self._sublayer("cross_attention", layer.norm2, layer.dropout2, cross_attention, x, tap),
        )
        return tap("output", self._sublayer("feed_forward", layer.norm3, layer.dropout3, feed_forward, x, tap))

    def _sublayer(
        self, name: str, norm: nn.LayerNorm, dropout: nn.Dropout, run: Callable[[Tensor], Tensor], x: Tensor, tap: Tap
    ) -> Tensor:
        """Returns x [B, T, D] plus the output of the sublayer `run`, with the norm before or after."""
        if self.norm_first:
            return x + dropout(run(tap(f"{name}_norm", norm(x))))
        return tap(f"{name}_norm", norm(x + dropout(run(x))))

    def _attention(self, module: nn.MultiheadAttention, x: Tensor, y: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        """Returns the output [B, Q, D] of x [B, Q, D] attending to y [B, K, D]; `mask` is boolean [B, 1, Q or 1, K]."""
        weights = module.in_proj_weight.chunk(3)  # query, key, value, each [D, D]
        biases = module.in_proj_bias.chunk(3)
        query, key, value = (
            tap(name, functional.linear(input, weight, bias).unflatten(-1, (self.num_heads, -1)))  # [B, Q or K, N, H]
            for name, input, weight, bias in zip(("query", "key", "value"), (x, y, y), weights, biases, strict=True)
        )
        logits = torch.einsum("BQNH,BKNH->BNQK", query, key) / math.sqrt(query.shape[-1]) + self.additive(mask)
        attention_weights = tap("weights", torch.softmax(tap("logits", logits), dim=-1))
        dropped = functional.dropout(attention_weights, module.dropout, self.training)
        context = tap("context", torch.einsum("BNQK,BKNH->BQNH", dropped, value))
        return tap("output", module.out_proj(context.flatten(-2)))


def _feed_forward(layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, x: Tensor, tap: Tap) -> Tensor:
    hidden = tap("hidden", layer.activation(layer.linear1(x)))  # [B, T, F]
    return tap("output", layer.linear2(layer.dropout(hidden)))


def sinusoids(rows: int, d_model: int) -> Tensor:
    """Returns the table [rows, D] of Vaswani et al. (2017, §3.5) in float64: even columns sine, odd columns cosine."""
    position = np.arange(rows, dtype=np.float64)[:, None]
    angle = position / 10000.0 ** (np.arange(0, d_model, 2, dtype=np.float64) / d_model)  # [rows, D/2]
    return torch.from_numpy(np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(rows, d_model))


@contextmanager
def plain_attention() -> Iterator[None]:
    """Makes nn.Transformer compute softmax(query · key / √H + mask) · value step by step, inside the context.

    Torch's switches for this are global. The context turns off the fused inference layer, which torch uses without
    gradients, and the flash kernel, whose backward pass is wrong in fully masked rows: it recomputes the weights from
    log-sum-exp, and the lowest number + log(K) rounds to the lowest number, so each weight becomes 1 instead of 1 / K.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@torch.no_grad()
def greedy(
    model: PytorchTransformer, source_ids: Tensor, decoder_start_id: int, eos_id: int, max_decode_length: int
) -> Tensor:
    """Decodes greedily, recomputing the whole prefix for every token.

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
    prefix = torch.full((len(source_ids), 1), decoder_start_id, dtype=source_ids.dtype, device=source_ids.device)
    finished = torch.zeros(len(source_ids), dtype=torch.bool, device=source_ids.device)
    for _ in range(max_decode_length):
        chosen = model(source_ids, prefix)[:, -1].argmax(dim=-1)  # [B]
        chosen = chosen.masked_fill(finished, model.target_pad_id)
        prefix = torch.cat([prefix, chosen[:, None].to(prefix.dtype)], dim=1)
        finished |= chosen == eos_id
        if finished.all():
            break
    model.train(was_training)
    return prefix[:, 1:]
