"""A small encoder-decoder without a calling convention, to be called in many styles."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SOURCE_VOCAB, TARGET_VOCAB, WIDTH, LONGEST = 19, 23, 12, 30
NO_SOURCE, NO_TARGET = 1, 2  # padding


class Attention(nn.Module):
    """Attends with a boolean mask, True = may attend."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(memory).transpose(1, 2) / WIDTH**0.5
        return x + scores.masked_fill(~mask, -1e9).softmax(-1) @ self.value(memory)


class Core(nn.Module):
    """A small encoder-decoder without a calling convention; masks are [B, 1 or Q, K]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.source, self.target = nn.Embedding(SOURCE_VOCAB, WIDTH), nn.Embedding(TARGET_VOCAB, WIDTH)
        self.positions = nn.Parameter(torch.randn(LONGEST, WIDTH))
        self.encoder_attention, self.self_attention, self.cross_attention = (Attention() for _ in range(3))
        self.to_logits = nn.Linear(WIDTH, TARGET_VOCAB)

    def encode(self, source: Tensor, mask: Tensor) -> Tensor:
        x = self.source(source) + self.positions[: source.shape[1]]
        return self.encoder_attention(x, x, mask)

    def decode(self, target: Tensor, memory: Tensor, mask: Tensor, cross: Tensor) -> Tensor:
        x = self.target(target) + self.positions[: target.shape[1]]
        return self.cross_attention(self.self_attention(x, x, mask), memory, cross)

    def logits(self, source: Tensor, target: Tensor, mask: Tensor, target_mask: Tensor, cross: Tensor) -> Tensor:
        return self.to_logits(self.decode(target, self.encode(source, mask), target_mask, cross))


def causal(ids: Tensor) -> Tensor:
    return torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None]


def truth(core: Core, source: Tensor, target: Tensor, *, sees_target_pads: bool = False) -> Tensor:
    """Returns the logits with padding hidden on the keys."""
    mask = (source != NO_SOURCE)[:, None]
    target_mask = causal(target) if sees_target_pads else causal(target) & (target != NO_TARGET)[:, None]
    return core.logits(source, target, mask, target_mask, mask)


class Style(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core = Core()


class Named(Style):
    """Names its padding, for callers that build the masks."""

    def __init__(self) -> None:
        super().__init__()
        self.src_pad_idx, self.trg_pad_idx = NO_SOURCE, NO_TARGET


def ids(source_length: int = 8, target_length: int = 6) -> tuple[Tensor, Tensor]:
    """Returns ids with padding at the ends and inside; every target begins with 5."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(3, SOURCE_VOCAB, (4, source_length), generator=generator)
    target = torch.randint(3, TARGET_VOCAB, (4, target_length), generator=generator)
    source[1, 5:], source[2, 2:] = NO_SOURCE, NO_SOURCE
    target[1, 4:], target[2, 2] = NO_TARGET, NO_TARGET
    target[:, 0] = 5
    return source, target


def core_logits(module: Any, source: Tensor, target: Tensor) -> Tensor:
    return truth(module.core, source, target)
