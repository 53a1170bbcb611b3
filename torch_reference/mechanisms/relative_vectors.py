"""Relative positions as vectors (Shaw et al. 2018, §3): a learned vector for every distance up to a limit is added to
the key, and one to the value."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RelativeVectors(nn.Module):
    """Holds vectors for the distances −limit … limit between a key and its query; all heads share them.

    Args:
      limit: the largest distance with a vector of its own; farther keys have the vectors of the limit.
      head_dim: H.
      value_dim: W, the width of the vectors that values have; None: they have none.
    """

    def __init__(self, limit: int, head_dim: int, value_dim: int | None, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.limit = limit
        rows = 2 * limit + 1
        self.keys = nn.Parameter(torch.randn(rows, head_dim, dtype=dtype))
        self.values = None if value_dim is None else nn.Parameter(torch.randn(rows, value_dim, dtype=dtype))

    def rows(self, length: int) -> Tensor:
        """Returns the row of every query and key: [T, T]."""
        columns = torch.arange(length)
        return (columns - columns[:, None]).clamp(-self.limit, self.limit) + self.limit

    def products(self, query: Tensor) -> Tensor:
        """Returns the products [B, N, T, T] of query [B, N, T, H] with the vectors of the keys' distances."""
        return torch.einsum("bnqh,qkh->bnqk", query, self.keys[self.rows(query.shape[2])])

    def context(self, weights: Tensor) -> Tensor:
        """Returns the vectors of the values' distances, weighed by weights [B, N, T, T]: [B, N, T, W]."""
        if self.values is None:
            return torch.zeros((), dtype=weights.dtype)
        return torch.einsum("bnqk,qkh->bnqh", weights, self.values[self.rows(weights.shape[2])])
