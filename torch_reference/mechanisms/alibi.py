"""Attention with linear biases (Press et al. 2022, §3): a key's logit falls with its distance from the query, in each
head at a rate of its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def slopes(num_heads: int) -> list[float]:
    """Returns the rate of every head: 2^(−8 / n), 2^(−16 / n), … for n heads, a power of two.

    Other numbers of heads have the rates of the next lower power of two, then every other rate of the next higher one.
    """
    lower = 2 ** math.floor(math.log2(num_heads))
    own = [2.0 ** (-8.0 * (i + 1) / lower) for i in range(lower)]
    between = [2.0 ** (-4.0 * (i + 1) / lower) for i in range(0, 2 * lower, 2)]
    return own + between[: num_heads - lower]


def bias(num_heads: int, length: int, dtype: torch.dtype) -> Tensor:
    """Returns −slope · |query − key|, [1, N, T, T]. (A causal mask hides the keys after the query.)"""
    columns = torch.arange(length)
    distance = (columns[:, None] - columns).abs().to(dtype)
    return (-torch.tensor(slopes(num_heads), dtype=dtype)[:, None, None] * distance)[None]
