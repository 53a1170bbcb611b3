"""Copies PyTorch modules, including modules that keep computed tensors as attributes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


def copied(module: nn.Module) -> nn.Module:
    """Makes a deep copy of a module, including its parameters' hooks, which change gradients.

    Detaches computed tensors that the module keeps, which PyTorch doesn't copy. Shares objects that can't be copied,
    such as a Python module or a lock among its attributes.

    Raises:
      Any error that a part of the module, or a tensor, raises when it is copied.
    """
    import torch

    kept = [value for part in module.modules() for value in tensors_of(vars(part)) if not value.is_leaf]
    memo: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in kept if isinstance(tensor, torch.Tensor)}
    try:
        copy_of = copy.deepcopy(module, dict(memo))
    except Exception:  # copying runs code of the attributes' classes, which may raise anything
        kept_as_they_are = {id(one): one for one in _uncopied(module, memo, set())}
        copy_of = copy.deepcopy(module, memo | kept_as_they_are)
    for theirs, own in zip(module.parameters(), copy_of.parameters(), strict=True):
        for hook in (theirs._backward_hooks or {}).values() if own.requires_grad else ():
            own.register_hook(hook)
        for hook in (theirs._post_accumulate_grad_hooks or {}).values() if own.requires_grad else ():
            own.register_post_accumulate_grad_hook(hook)
    return copy_of


def _uncopied(value: Any, memo: Mapping[int, Any], seen: set[int]) -> Iterator[Any]:
    """Yields the smallest objects in a value that can't be copied.

    Raises:
      Any error that a part of a module, or a tensor, raises: a copy that shared it would change the original.
    """
    import torch

    if id(value) in seen or id(value) in memo:
        return
    seen.add(id(value))
    try:
        copy.deepcopy(value, dict(memo))
    except Exception:  # as in `copied`
        inner = [one for part in _parts(value) for one in _uncopied(part, memo, seen)]
        if not inner and isinstance(value, torch.nn.Module | torch.Tensor):
            raise
        yield from inner or [value]


def _parts(value: Any) -> list[Any]:
    """Lists the contents of a container or an object with attributes; nothing for a Python module, which is shared."""
    if isinstance(value, ModuleType):
        return []
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return [*value]
    return [*getattr(value, "__dict__", {}).values()]


def converted(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Moves a module to the CPU, with floating-point tensors in a dtype, and returns it.

    Complex tensors become complex128 with float64, and complex64 with any other dtype. (`Module.to` drops their
    imaginary parts.)
    """
    import torch

    complex_dtype = torch.complex128 if dtype == torch.float64 else torch.complex64

    def in_dtype(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cpu", dtype if tensor.is_floating_point() else complex_dtype if tensor.is_complex() else None)

    return module._apply(in_dtype)


def tensors_of(value: Any) -> Iterator[Any]:
    """Yields the tensors in an object's attributes, at any depth."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_of(part)
