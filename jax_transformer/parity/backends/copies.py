"""Copy PyTorch modules, those that keep what they computed last among them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jax_transformer.proof.programs import UnknownOperation

if TYPE_CHECKING:
    import torch
    from torch import nn


def copied(module: nn.Module) -> nn.Module:
    """Returns a deep copy, with the hooks of its parameters, which change gradients. Tensors that the module computed
    and keeps, which PyTorch doesn't copy, are detached. The copy shares what nothing copies, such as a Python module or
    a lock among its attributes.

    Raises:
      Whatever a part of the module, or a tensor, raises when it is copied.
    """
    import torch

    kept = [value for part in module.modules() for value in _tensors(vars(part)) if not value.is_leaf]
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
    """Yields the objects in a value, each as small as can be, that can't be copied.

    Raises:
      Whatever a part of a module, or a tensor, raises: a copy that shared it would change the module's own.
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
    """Returns what a container or an object with attributes holds; nothing for a Python module, which is shared."""
    if isinstance(value, ModuleType):
        return []
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return [*value]
    return [*getattr(value, "__dict__", {}).values()]


def converted(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Moves a module to the CPU, with floating-point tensors in a dtype, and returns it.

    Complex ones become complex128 beside float64, and complex64 beside others. (`Module.to` drops their imaginary
    parts.)
    """
    import torch

    of_complex = torch.complex128 if dtype == torch.float64 else torch.complex64

    def in_dtype(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cpu", dtype if tensor.is_floating_point() else of_complex if tensor.is_complex() else None)

    return module._apply(in_dtype)


def check_copyable(module: nn.Module) -> None:
    """Raises UnknownOperation if a copy of a module may be another function of the tensors in its state_dict: some are
    copies there, or share memory with each other or with attributes."""
    from jax_transformer.proof.torch_access import overlap
    from jax_transformer.proof.torch_memory import storage_of

    own = {
        name: tensor for name, tensor in (*module.named_parameters(), *module.named_buffers()) if _is_strided(tensor)
    }
    by_memory: dict[int, list[str]] = {}
    for name, tensor in own.items():
        for other in by_memory.setdefault(storage_of(tensor), []):
            if overlap(own[other], tensor):
                raise UnknownOperation("copy", "", f"{other} and {name} share memory, and copies of them don't")
        by_memory[storage_of(tensor)].append(name)
    for name, tensor in module.state_dict(keep_vars=True).items():
        if _is_strided(tensor) and storage_of(tensor) not in by_memory:
            raise UnknownOperation("state_dict", "", f"{name} is a copy there, not the module's own tensor")
    numbers = {*map(id, own.values())}
    for path, part in module.named_modules():
        for tensor in filter(_is_strided, _tensors(vars(part))):
            if id(tensor) not in numbers and storage_of(tensor) in by_memory:
                raise UnknownOperation("copy", "", f"an attribute of {path or 'the module'} shares a weight's memory")


def _is_strided(tensor: Any) -> bool:
    import torch

    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided


def _tensors(value: Any) -> Iterator[Any]:
    """Yields the tensors in an object's attributes and in what they hold."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)
