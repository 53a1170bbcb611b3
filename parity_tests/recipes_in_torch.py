"""The systems' own losses, optimizers and schedules in PyTorch, and the trained parameters of either side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as torch_functional
from torch.optim import lr_scheduler

from jax_transformer.parity.backends.side import layer_by_layer
from jax_transformer.runtime.trees import flatten

Loss = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""(logits [N, V], labels [N], pad id) → the mean over tokens."""

NO_DROPOUT = {
    "dropout_rate": 0.0,
    "embedding_dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "feed_forward_dropout_rate": 0.0,
}
"""In a TransformerConfig."""


def divergence(epsilon: float) -> Loss:
    """The Annotated Transformer's: summed, and divided by the tokens that are no pads."""

    def loss(logits: torch.Tensor, labels: torch.Tensor, pad_id: int) -> torch.Tensor:
        targets = torch.full_like(logits, epsilon / (logits.shape[1] - 2))
        targets.scatter_(1, labels[:, None], 1.0 - epsilon)
        targets[:, pad_id] = 0.0
        targets[labels == pad_id] = 0.0
        return (
            torch_functional.kl_div(torch.log_softmax(logits, dim=-1), targets, reduction="sum")
            / (labels != pad_id).sum()
        )

    return loss


def noam(warmup: int, first: int) -> Callable[[torch.optim.Optimizer, int], Any]:
    """By LambdaLR, which begins to count at 0; `first`: what it calls the first step."""

    def rate(step: int, d_model: int) -> float:
        t = max(step + first, 1)
        return d_model**-0.5 * min(t**-0.5, t * warmup**-1.5)

    return lambda optimizer, d_model: lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, d_model))


def adam(
    rate: float, b2: float = 0.999, eps: float = 1e-8, **options: Any
) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.Adam(parameters, rate, (0.9, b2), eps, **options)


def trained_leaves(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the trained parameters by path, layers one by one."""
    leaves = {path: np.asarray(leaf) for path, leaf in flatten(params).items() if not path.startswith("constants/")}
    return layer_by_layer(leaves)
