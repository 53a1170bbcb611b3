"""Rotary positions (Su et al. 2021, §3.2): queries and keys turn with their position.

A head's features are taken in pairs (a, b). Pair i of R / 2 turns by the angle p · base^(−2i / R) at position p, so the
product of a query at p and a key at r depends on p − r.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, positions: Tensor, *, base: float = 10000.0, width: int | None = None, halves: bool) -> Tensor:
    """Returns heads x [B, N, T, H], rotated.

    Args:
      positions: integers [T].
      width: R, the features that are rotated, from the first on; None: all.
      halves: pairs are feature i and feature i + R / 2; otherwise features 2i and 2i + 1.
    """
    width = x.shape[-1] if width is None else width
    frequencies = base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
    angles = positions.to(x.dtype)[:, None] * frequencies  # [T, R / 2]
    turned, kept = x[..., :width], x[..., width:]
    if halves:
        a, b = turned.chunk(2, dim=-1)
    else:
        a, b = turned.unflatten(-1, (-1, 2)).unbind(-1)
    pair = a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()
    turned = torch.cat(pair, dim=-1) if halves else torch.stack(pair, dim=-1).flatten(-2)
    return torch.cat([turned, kept], dim=-1)
