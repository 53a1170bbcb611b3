"""A learned factor of each head's output (NormFormer: Shleifer et al. 2021, §2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class HeadScale(nn.Module):
    """Multiplies every head by its factor, which starts at 1."""

    def __init__(self, num_heads: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_heads, dtype=dtype))

    def forward(self, context: Tensor) -> Tensor:
        """Returns context [B, N, T, H], scaled."""
        return context * self.scale[:, None, None]
