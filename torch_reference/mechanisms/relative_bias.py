"""Relative positions as biases (Raffel et al. 2020, §2.1): a learned number for every range of distances and every head
is added to the attention logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class RelativeBias(nn.Module):
    """Holds biases for ranges of distances between a key and its query.

    Args:
      buckets: ranges of distances.
      limit: keys from this distance on share the last range.
      num_heads: N.
      looks_back: all ranges are of earlier keys; False: half of them are of later ones.
      factor: multiplies all biases.
    """

    def __init__(
        self, buckets: int, limit: int, num_heads: int, *, looks_back: bool, factor: float, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.buckets, self.limit, self.looks_back, self.factor = buckets, limit, looks_back, factor
        self.embedding = nn.Embedding(buckets, num_heads, dtype=dtype)

    def forward(self, length: int) -> Tensor:
        """Returns the biases [1, N, T, T]."""
        columns = torch.arange(length)
        biases = self.embedding(self.ranges(columns - columns[:, None]))
        return self.factor * biases.permute(2, 0, 1)[None]

    def ranges(self, offsets: Tensor) -> Tensor:
        """Returns the range of each key that stands so far after its query.

        Half of the ranges of a direction hold one distance each. The others are of equal width in the logarithm.
        """
        count = self.buckets if self.looks_back else self.buckets // 2
        distance = (-offsets).clamp(min=0) if self.looks_back else offsets.abs()
        first = 0 if self.looks_back else (offsets > 0) * count
        near = count // 2
        share = torch.log(distance.clamp(min=near).float() / near) / math.log(self.limit / near)
        far = (near + (share * (count - near)).long()).clamp(max=count - 1)
        return first + torch.where(distance < near, distance, far)
