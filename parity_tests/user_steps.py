"""Optimizers of a user's for the module `user_dtypes:marian`, whose head reads the table of embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

CONFIG = {
    "optimizer": "adam",
    "adam_b1": 0.9,
    "adam_b2": 0.98,
    "adam_eps": 1e-9,
    "weight_decay": 0.01,
    "weight_decay_kind": "decoupled",
    "clip_norm": 1.0,
    "schedule": "constant",
    "warmup_steps": 0,
    "learning_rate": 0.001,
}
"""The training that the optimizers should follow."""


class Optimizer:
    """Decays all parameters, or those of some axes alone, and clips by the norm, or value by value."""

    def __init__(self, module: nn.Module, *, least_axes: int = 0, by_value: bool = False) -> None:
        self.parameters, self.by_value = [one for one in module.parameters() if one.requires_grad], by_value
        others = [one for one in self.parameters if one.ndim < least_axes]
        decayed = [one for one in self.parameters if one.ndim >= least_axes]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        self.adam = torch.optim.AdamW(groups[: 2 if others else 1], 1e-3, (0.9, 0.98), 1e-9, 0.01)

    def zero_grad(self) -> None:
        self.adam.zero_grad()

    def step(self) -> None:
        if self.by_value:
            nn.utils.clip_grad_value_(self.parameters, 1e-3)
        else:
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.adam.step()


def right(module: nn.Module) -> Any:
    return Optimizer(module)


def without_decay_of_biases(module: nn.Module) -> Any:
    return Optimizer(module, least_axes=2)


def clipping_values(module: nn.Module) -> Any:
    return Optimizer(module, by_value=True)
