"""Modules that compute what their weights say, with gradients that aren't the derivatives of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from user_dtypes import marian


def _hooked(path: str, change: Callable[[Any], Any]) -> Any:
    """Returns a module in which the output of a part is changed."""
    module = marian()
    module.get_submodule(path).register_forward_hook(lambda part, arguments, output: change(output))
    return module


def detached_memory() -> Any:
    def detach(output: Any) -> Any:
        return type(output)(**{**output, "last_hidden_state": output.last_hidden_state.detach()})

    return _hooked("model.encoder", detach)


def detached_attention() -> Any:
    return _hooked("model.encoder.layers.0.self_attn", lambda output: (output[0].detach(), *output[1:]))


def frozen_embedding() -> Any:
    module = marian()
    module.model.shared.weight.requires_grad_(False)
    return module


def gradient_hook() -> Any:
    module = marian()
    module.model.encoder.layers[0].fc1.weight.register_hook(lambda gradient: 2 * gradient)
    return module


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


def wrong_backward() -> Any:
    return _hooked("model.encoder.layers.0.fc2", Doubled.apply)


class DetachedHead(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.detach())


def tied_counted_once() -> Any:
    module = marian()
    module.lm_head.__class__ = DetachedHead
    return module
