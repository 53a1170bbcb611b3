"""Copy PyTorch modules, those that keep what they computed last among them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from jax_transformer.proof.programs import UnknownOperation

if TYPE_CHECKING:
    from torch import nn


def copied(module: nn.Module) -> nn.Module:
    """Returns a deep copy, with the hooks of its parameters, which change gradients. Tensors that the module computed
    and keeps, which PyTorch doesn't copy, are detached."""
    import torch

    kept = [value for part in module.modules() for value in _tensors(vars(part)) if not value.is_leaf]
    memo: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in kept if isinstance(tensor, torch.Tensor)}
    copy_of = copy.deepcopy(module, memo)
    for theirs, own in zip(module.parameters(), copy_of.parameters(), strict=True):
        for hook in (theirs._backward_hooks or {}).values():
            own.register_hook(hook)
        for hook in (theirs._post_accumulate_grad_hooks or {}).values():
            own.register_post_accumulate_grad_hook(hook)
    return copy_of


def check_names_its_own(module: nn.Module) -> None:
    """Raises UnknownOperation for a module of which a copy may be another function of the tensors in its state_dict:
    some are copies, or share memory with each other or with attributes."""
    own = [*module.parameters(), *module.buffers()]
    numbers, places = {id(tensor) for tensor in own}, {*map(_memory_of, own)}
    spans = sorted((_memory_of(tensor), *_span(tensor)) for tensor in own if tensor.numel())
    for (memory, _, end), (of_next, start, _) in pairwise(spans):
        if memory == of_next and start < end:
            raise UnknownOperation("copy", "", "two weights share memory, and their copies don't")
    for name, tensor in module.state_dict(keep_vars=True).items():
        if _memory_of(tensor) not in places:
            raise UnknownOperation("state_dict", "", f"{name} is a copy there, not the module's own tensor")
    for path, part in module.named_modules():
        for tensor in _tensors(vars(part)):
            if id(tensor) not in numbers and _memory_of(tensor) in places:
                raise UnknownOperation("copy", "", f"an attribute of {path or 'the module'} shares a weight's memory")


def _span(tensor: Any) -> tuple[int, int]:
    """Returns where a tensor's elements begin in its memory, and where they end."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.storage_offset(), tensor.storage_offset() + last + 1


def _memory_of(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> Iterator[Any]:
    """Yields the tensors in an object's attributes and in what they hold."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)
