"""Pooling in JAX and in PyTorch is proven the same, and wrong variants aren't."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import numpy as np
import pytest
import torch
from torch.nn import functional

from jax_transformer.parity import prove

Pool = Callable[[Any], Any]
IMAGES = {"x": np.random.default_rng(0).normal(size=(1, 2, 5, 5)).astype(np.float32)}
MOST = partial(nn.max_pool, window_shape=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
MEAN = partial(nn.avg_pool, window_shape=(3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
TORCH_MOST = partial(functional.max_pool2d, kernel_size=3, stride=2, padding=1)
TORCH_MEAN = partial(functional.avg_pool2d, kernel_size=3, stride=2, padding=1)
SAME: dict[str, tuple[Pool, Pool]] = {
    "largest entries": (MOST, TORCH_MOST),
    "means": (MEAN, TORCH_MEAN),
    "means without padding": (partial(MEAN, count_include_pad=False), partial(TORCH_MEAN, count_include_pad=False)),
    "the mean of all": (
        lambda y: y.mean((1, 2), keepdims=True),
        partial(functional.adaptive_avg_pool2d, output_size=1),
    ),
    "parts that overlap": (
        partial(nn.avg_pool, window_shape=(3, 3), strides=(2, 2)),
        partial(functional.adaptive_avg_pool2d, output_size=2),
    ),
}
DIFFERENT: dict[str, tuple[Pool, Pool]] = {
    "padding on another side": (partial(MOST, padding=((0, 1), (0, 1)), strides=(2, 2)), TORCH_MOST),
    "another window": (partial(MOST, window_shape=(2, 2), padding=((1, 0), (1, 0))), TORCH_MOST),
    "means for largest entries": (MEAN, TORCH_MOST),
    "padding counted": (MEAN, partial(TORCH_MEAN, count_include_pad=False)),
    "windows that don't overlap": (
        partial(nn.avg_pool, window_shape=(2, 2), strides=(2, 2)),
        partial(functional.adaptive_avg_pool2d, output_size=2),
    ),
}


class Scaled(torch.nn.Module):
    """Pools images times a weight for each channel."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.scale, self.pool = torch.nn.Parameter(torch.ones(2)), pool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(x * self.scale[:, None, None])


def verdict(ours: Pool, theirs: Pool, *stages: str) -> str:
    def candidate(weights: Any, inputs: Any) -> Any:
        return ours((inputs["x"] * weights["scale"][:, None, None]).transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)

    return prove(candidate, Scaled(theirs).eval(), inputs=IMAGES, stages=stages or ("forward",)).verdict


@pytest.mark.parametrize("name", SAME)
def test_same_pooling_is_proven(name: str) -> None:
    assert verdict(*SAME[name]) == "proven"


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_pooling_is_refuted(name: str) -> None:
    assert verdict(*DIFFERENT[name]) == "refuted"


def test_gradients_of_means_are_proven() -> None:
    assert verdict(*SAME["means"], "gradients") == "proven"


def test_gradients_of_largest_entries_are_unknown() -> None:
    assert verdict(*SAME["largest entries"], "gradients") == "unknown"


def test_padding_with_zeros_is_not_proven() -> None:
    assert verdict(lambda y: MOST(nn.relu(y)), TORCH_MOST) != "proven"


def test_a_window_of_padding_alone_is_unknown() -> None:
    pools = (
        partial(nn.max_pool, window_shape=(1, 1), padding=((1, 0), (0, 0))),
        lambda y: functional.pad(y, (0, 0, 1, 0)),
    )
    assert verdict(*pools) == "unknown"
