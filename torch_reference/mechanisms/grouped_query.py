"""Fewer heads of keys and values than of queries: one for all (Shazeer 2019), or one for each group of neighbouring
query heads (Ainslie et al. 2023, §2.2)."""

from __future__ import annotations

from torch import Tensor


def for_all_queries(x: Tensor, num_heads: int) -> Tensor:
    """Returns keys or values [B, G, T, H] for each query head, [B, N, T, H]: heads 0 … N / G − 1 have the first."""
    return x.repeat_interleave(num_heads // x.shape[1], dim=1)
