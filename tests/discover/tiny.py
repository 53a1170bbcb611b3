"""The smallest encoder-decoder that a config expresses, with parts that tests change."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SOURCE, TARGET, WIDTH, HEADS, HIDDEN, ROWS = 17, 19, 12, 2, 20, 48
PAD = 0


class Attention(nn.Module):
    """Attends where a mask [B or 1, Q or 1, K] is True."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.heads(one) for one in (self.query(x), self.key(memory), self.value(memory)))
        return self.output(self.mix(q, k, v, mask[:, None]).transpose(1, 2).flatten(2))

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5
        return scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v


class Layer(nn.Module):
    """Adds each sublayer to the stream and norms the sum."""

    def __init__(self, *, is_decoder: bool) -> None:
        super().__init__()
        self.attention, self.crossing = Attention(), Attention() if is_decoder else None
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.wide, self.narrow = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor, mask: Tensor, memory: Any = None, seen: Any = None) -> Tensor:
        x = self.norms[0](x + self.attention(x, x, mask))
        if self.crossing is not None:
            x = self.norms[1](x + self.crossing(x, memory, seen))
        return self.norms[2](x + self.narrow(self.wide(x).relu()))


class Tiny(nn.Module):
    """One layer in each stack, learned positions, padding hidden as keys."""

    pad = PAD

    def __init__(self, rows: int = ROWS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.source, self.target = nn.Embedding(SOURCE, WIDTH), nn.Embedding(TARGET, WIDTH)
        self.source_places, self.target_places = nn.Embedding(rows, WIDTH), nn.Embedding(rows, WIDTH)
        self.reader, self.writer = Layer(is_decoder=False), Layer(is_decoder=True)
        self.head = nn.Linear(WIDTH, TARGET)
        self.eval()

    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        return self.logits(src, tgt)

    def logits(self, src: Tensor, tgt: Tensor) -> Tensor:
        seen = (src != self.pad)[:, None]
        memory = self.reader(self.embedded("source", src), self.encoder_mask(src, seen))
        hidden = self.writer(self.embedded("target", tgt), earlier(tgt) & (tgt != self.pad)[:, None], memory, seen)
        return self.head(hidden)

    def embedded(self, side: str, ids: Tensor) -> Tensor:
        places = getattr(self, f"{side}_places")
        return getattr(self, side)(ids) + places(torch.arange(ids.shape[1]))

    def encoder_mask(self, src: Tensor, seen: Tensor) -> Tensor:
        return seen


def earlier(ids: Tensor) -> Tensor:
    """Returns the causal mask [1, T, T]."""
    return torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None]
