"""PyTorch programs of this project, for JAX programs that have no original in PyTorch."""

from __future__ import annotations

import math

import torch
from torch import nn


class Attention(nn.Module):
    """Multi-head attention without biases, as in Vaswani et al. (2017), 3.2.2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.heads = heads

    def forward(self, x: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(each).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, N, T, H]
            for layer, each in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2))


class Feed(nn.Module):
    """The feed-forward network, 3.3."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(torch.relu(self.wide(x)))


class Block(nn.Module):
    """A layer of either stack, with norms before its parts."""

    def __init__(self, width: int, heads: int, inner: int, crosses: bool) -> None:
        super().__init__()
        self.attention, self.feed = Attention(width, heads), Feed(width, inner)
        self.cross = Attention(width, heads) if crosses else None
        self.norms = nn.ModuleList([nn.LayerNorm(width, eps=1e-6) for _ in range(3 if crosses else 2)])

    def forward(self, x: torch.Tensor, mask: torch.Tensor, memory: tuple[torch.Tensor, torch.Tensor] | None = None):
        y = self.norms[0](x)
        x = x + self.attention(y, y, mask)
        if self.cross is not None and memory is not None:
            x = x + self.cross(self.norms[1](x), *memory)
        return x + self.feed(self.norms[-1](x))


class Translator(nn.Module):
    """The encoder-decoder of Flax's WMT example, in PyTorch."""

    def __init__(self, vocabulary: int, width: int, heads: int, inner: int, layers: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList([Block(width, heads, inner, False) for _ in range(layers)])
        self.decoder = nn.ModuleList([Block(width, heads, inner, True) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(width, eps=1e-6) for _ in range(2)])
        angles = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(width // 2) / (width // 2 - 1))
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], 1), persistent=False)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        is_source, is_target = inputs > 0, targets > 0
        x = self.words(inputs) + self.positions[: inputs.shape[1]]
        for block in self.encoder:
            x = block(x, (is_source[:, :, None] & is_source[:, None])[:, None])
        memory = self.norms[0](x), (is_target[:, :, None] & is_source[:, None])[:, None]
        causal = torch.ones(targets.shape[1], targets.shape[1]).tril().bool()
        mask = (is_target[:, :, None] & is_target[:, None] & causal)[:, None]
        y = self.words(nn.functional.pad(targets, (1, -1))) + self.positions[: targets.shape[1]]
        for block in self.decoder:
            y = block(y, mask, memory)
        return self.norms[1](y) @ self.words.weight.T / math.sqrt(y.shape[-1])
