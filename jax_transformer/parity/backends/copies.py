"""Copy PyTorch modules, those that keep what they computed last among them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def copied(module: nn.Module) -> nn.Module:
    """Returns a deep copy. Tensors that the module computed and keeps, which PyTorch doesn't copy, are detached."""
    import torch

    kept = [value for part in module.modules() for value in _tensors(vars(part)) if not value.is_leaf]
    memo: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in kept if isinstance(tensor, torch.Tensor)}
    return copy.deepcopy(module, memo)


def _tensors(value: Any) -> Iterator[Any]:
    """Yields the tensors in an object's attributes and in what they hold."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)
