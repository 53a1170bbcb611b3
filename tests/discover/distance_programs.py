"""Small encoder-decoders whose attention adds vectors by distance (Shaw et al. 2018), in several styles."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SOURCE, TARGET, D, N, H, FF = 29, 31, 24, 4, 6, 40


def offsets(queries: int, keys: int) -> Tensor:
    return torch.arange(keys)[None, :] - torch.arange(queries)[:, None]


class Looked(nn.Module):
    """Looks up the vector of every query and key, and multiplies query by query, in tensors [Q, B N, …]."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.table = nn.Parameter(torch.randn(2 * limit + 1, H))

    def vectors(self, queries: int, keys: int) -> Tensor:
        return self.table[offsets(queries, keys).clamp(-self.limit, self.limit) + self.limit]  # [Q, K, H]

    def key_scores(self, q: Tensor) -> Tensor:
        rows = q.permute(2, 0, 1, 3).flatten(1, 2)  # [Q, B N, H]
        products = rows @ self.vectors(q.shape[2], q.shape[2]).transpose(1, 2)
        return products.unflatten(1, q.shape[:2]).permute(1, 2, 0, 3)

    def value_context(self, weights: Tensor) -> Tensor:
        rows = weights.permute(2, 0, 1, 3).flatten(1, 2) @ self.vectors(*weights.shape[2:])
        return rows.unflatten(1, weights.shape[:2]).permute(1, 2, 0, 3)


class Gathered(Looked):
    """Multiplies queries with the whole table, and gathers the products of every key's distance."""

    def key_scores(self, q: Tensor) -> Tensor:
        rows = offsets(q.shape[2], q.shape[2]).clamp(-self.limit, self.limit) + self.limit
        return (q @ self.table.T).gather(-1, rows.expand(*q.shape[:2], -1, -1))


class Reversed(Looked):
    """Counts distances from the key to the query."""

    def vectors(self, queries: int, keys: int) -> Tensor:
        return self.table.flip(0)[offsets(queries, keys).clamp(-self.limit, self.limit) + self.limit]


class Attention(nn.Module):
    def __init__(self, keys: Looked | None = None, values: Looked | None = None, scale_first: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.keys, self.values, self.scale_first = keys, values, scale_first

    def forward(self, x: Tensor, y: Tensor, hidden: Tensor) -> Tensor:
        pairs = ((self.q, x), (self.k, y), (self.v, y))
        q, k, v = (linear(one).unflatten(-1, (N, H)).transpose(1, 2) for linear, one in pairs)
        q = q / H**0.5 if self.scale_first else q
        scores = q @ k.mT
        if self.keys is not None:
            scores = scores + self.keys.key_scores(q)
        scores = scores if self.scale_first else scores / H**0.5
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        context = weights @ v
        if self.values is not None:
            context = self.values.value_context(weights) + context
        return self.o(context.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, attentions: list[Attention]) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(attentions)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(len(attentions) + 1))
        self.up, self.down = nn.Linear(D, FF), nn.Linear(FF, D)

    def forward(self, x: Tensor, *others: tuple[Tensor | None, Tensor]) -> Tensor:
        for attention, norm, (y, hidden) in zip(self.attentions, self.norms, others, strict=False):
            x = norm(x + attention(x, x if y is None else y, hidden))
        return self.norms[-1](x + self.down(F.relu(self.up(x))))


class Clipped(nn.Module):
    """An encoder-decoder with vectors by distance.

    Args:
      shared: one table per stack, not per layer.
      values: whether values have vectors too.
      style: how vectors are read.
      odd: what no config expresses.
    """

    def __init__(
        self, *, shared: bool, values: bool, style: type[Looked] = Looked, limit: int = 3, odd: str = ""
    ) -> None:
        super().__init__()
        self.pad_id = 0
        self.src, self.tgt = nn.Embedding(SOURCE, D), nn.Embedding(TARGET, D)

        def own() -> dict[str, Any]:
            one = {
                "keys": (Reversed if odd == "reversed" else style)(limit),
                "values": Looked(limit + (odd == "limits")) if values else None,
            }
            if odd == "tied":
                one["values"] = one["keys"]
            if odd == "values":
                one["keys"] = None
            return one | {"scale_first": style is Gathered}

        per_stack = [own(), own()]
        self.encoder = nn.ModuleList(Layer([Attention(**(per_stack[0] if shared else own()))]) for _ in range(2))
        self.decoder = nn.ModuleList(
            Layer([Attention(**(per_stack[1] if shared else own())), Attention(**(own() if odd == "cross" else {}))])
            for _ in range(1 if odd == "one layer" else 2)
        )
        self.head = nn.Linear(D, TARGET)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        pads = (src == self.pad_id)[:, None, None]
        later = (offsets(tgt.shape[1], tgt.shape[1]) > 0) | (tgt == self.pad_id)[:, None, None]
        x, y = self.src(src), self.tgt(tgt)
        for layer in self.encoder:
            x = layer(x, (None, pads))
        for layer in self.decoder:
            y = layer(y, (None, later), (x, pads))
        return self.head(y)
