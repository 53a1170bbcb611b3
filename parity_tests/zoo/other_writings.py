"""Modules that write the same function as `user_models.foreign` otherwise, or have one fault in one place."""

from __future__ import annotations

import math
from typing import Any

import torch
import user_models
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from user_models import FOREIGN_MAP, Attention, Foreign, Layer, foreign

EMBEDDING_MAP = FOREIGN_MAP.replace(
    "activations:\n",
    "activations:\n  enc.0.attn@input: encoder.embedding\n  dec.0.attn@input: decoder.embedding\n",
)
"""The map, with the embeddings that the first attentions read."""


class Parts(Attention):
    """Splits attention into its parts, for the classes below to change one."""

    order = (0, 1, 2)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        if self.crossing:
            parts = (self.q(x), *self.kv(y).chunk(2, dim=-1))
        else:
            fused = self.qkv(x).chunk(3, dim=-1)
            parts = tuple(fused[part] for part in self.order)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        return self.proj(self.attend(q, k, v, mask).transpose(1, 2).flatten(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return self.scores(q, k).masked_fill(~mask, -1e30).softmax(dim=-1) @ v

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


class Adding(Parts):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return (self.scores(q, k) + torch.where(mask, 0.0, -1e30)).softmax(dim=-1) @ v


class Fused(Parts):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class ByLogarithm(Parts):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = self.scores(q, k).masked_fill(~mask, torch.finfo(q.dtype).min)
        return (scores - scores.logsumexp(dim=-1, keepdim=True)).exp() @ v


class MaskedAfterwards(Parts):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        weights = self.scores(q, k).softmax(dim=-1) * mask
        return weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-30) @ v


class Recomputed(Parts):
    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        output: Tensor = checkpoint(super().forward, x, y, mask, use_reentrant=True)
        return output


class Inverted(Parts):
    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x, y, ~mask)


class KeysFirst(Parts):
    order = (1, 0, 2)


class PreNorm(Layer):
    def forward(
        self, x: Tensor, mask: Tensor, memory: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> Tensor:
        normed = self.ln1(x)
        x = x + self.attn(normed, normed, mask)
        if memory is not None:
            x = x + self.cross(self.ln2(x), memory, memory_mask)
        return x + self.down(self.act(self.up(self.ln3(x))))


class ScaledAfter(Foreign):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        root = math.sqrt(user_models.SIZES["d_model"])
        table = self.pe
        self.pe = table * root  # (tokens + positions) · √d_model
        logits = super().forward(src, tgt)
        self.pe = table
        return logits


def with_attention(kind: type[Parts], *places: str) -> Any:
    """Returns the module with another attention at some paths; everywhere if none is given."""
    module = foreign()
    for name, part in module.named_modules():
        if isinstance(part, Attention) and (not places or name in places):
            part.__class__ = kind
    return module


def pre_norm(place: str) -> Any:
    module = foreign()
    module.get_submodule(place).__class__ = PreNorm
    return module


def scaled_after() -> Any:
    module = foreign()
    module.__class__ = ScaledAfter
    return module


def narrow_positions() -> Any:
    """Returns the module with a table in float32 that is no buffer, and another ε in one norm."""
    module = foreign()
    rows, width = module.pe.shape
    del module.pe
    rates = torch.exp(-math.log(10000.0) * torch.arange(0, width, 2) / width)
    angles = torch.arange(rows)[:, None] * rates
    module.pe = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    module.enc[1].ln3.eps = 1e-6
    return module
