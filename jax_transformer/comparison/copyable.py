"""Checks that copies of a PyTorch module are the same function of their weights as the module."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.programs.copies import tensors_of
from jax_transformer.proof.programs import UnknownOperation

if TYPE_CHECKING:
    from torch import nn

MOST_OBJECTS = 100_000
"""The most objects of a module to search."""
LIBRARIES = frozenset(("torch", "numpy", "jax", "jaxlib", "builtins", "transformers"))
"""Packages whose objects hold no arrays of the user's."""


def check_apart(module: nn.Module) -> None:
    """Raises UnknownOperation if several parameters or buffers of a module share memory, since their copies don't."""
    from jax_transformer.proof.torch_access import overlap
    from jax_transformer.proof.torch_memory import storage_of

    own = _own(module)
    by_memory: dict[int, list[str]] = {}
    for name, tensor in own.items():
        for other in by_memory.setdefault(storage_of(tensor), []):
            if overlap(own[other], tensor):
                raise UnknownOperation("copy", "", f"{other} and {name} share memory, and copies of them don't")
        by_memory[storage_of(tensor)].append(name)


def check_copyable(module: nn.Module) -> None:
    """Raises UnknownOperation if a copy of a module may be another function of the tensors in its state_dict: some are
    copies there, or share memory with attributes."""
    from jax_transformer.proof.torch_memory import storage_of

    own = _own(module)
    by_memory = {*map(storage_of, own.values())}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if _is_strided(tensor) and storage_of(tensor) not in by_memory:
            raise UnknownOperation("state_dict", "", f"{name} is a copy there, not the module's own tensor")
    _check_numpy(module, own)
    numbers = {*map(id, own.values())}
    for path, part in module.named_modules():
        for tensor in filter(_is_strided, tensors_of(vars(part))):
            if id(tensor) not in numbers and storage_of(tensor) in by_memory:
                raise UnknownOperation("copy", "", f"an attribute of {path or 'the module'} shares a weight's memory")


def _check_numpy(module: nn.Module, own: Mapping[str, Any]) -> None:
    """Raises UnknownOperation for a NumPy array that shares a weight's memory, since it doesn't share a copy's."""
    arrays = {name: _as_numpy(tensor) for name, tensor in own.items()}
    kinds = {type(part) for part in module.modules()}
    for each in _held([*map(vars, module.modules()), *(getattr(kind, "forward", None) for kind in kinds)]):
        found = np.asarray(each)
        for name, array in arrays.items():
            if found.dtype.kind != "O" and np.may_share_memory(found, array):
                where = f"an array of NumPy's that the module reads shares the memory of {name}"
                raise UnknownOperation("copy", "", where)


def _as_numpy(tensor: Any) -> np.ndarray:
    """Returns the bytes of a tensor's memory as an array."""
    import torch

    detached = tensor.detach().cpu()
    first, last = (
        detached.storage_offset(),
        1 + sum((size - 1) * stride for size, stride in zip(detached.shape, detached.stride(), strict=True)),
    )
    size = detached.itemsize
    whole = torch.empty(0, dtype=torch.uint8).set_(detached.untyped_storage())
    return whole[first * size : (first + last) * size if detached.numel() else first * size].numpy()


def _held(roots: Sequence[Any]) -> Iterator[Any]:
    """Yields the arrays of NumPy and the views of memory that objects hold, through containers, functions and their
    closures, defaults and globals."""
    waiting, seen = [*roots], set[int]()
    while waiting and len(seen) < MOST_OBJECTS:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray | memoryview):
            yield each
        elif isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each
        elif isinstance(each, partial):
            waiting += [each.func, each.args, each.keywords]
        elif isinstance(each, MethodType):
            waiting += [each.__func__, *([] if hasattr(each.__self__, "state_dict") else [_vars(each.__self__)])]
        elif _is_of_library(each):
            continue
        elif isinstance(each, FunctionType):
            cells = [cell.cell_contents for cell in each.__closure__ or () if _is_filled(cell)]
            waiting += [*cells, each.__defaults__, each.__kwdefaults__, *_globals_of(each.__code__, each.__globals__)]
        elif not hasattr(each, "state_dict"):
            waiting.append(_vars(each))


def _vars(each: Any) -> dict[str, Any]:
    return getattr(each, "__dict__", {}) if not isinstance(each, type | ModuleType) else {}


def _is_of_library(each: Any) -> bool:
    """Returns whether a function, or an object of a class, is a library's."""
    of = each if isinstance(each, FunctionType) else type(each)
    return str(getattr(of, "__module__", "")).partition(".")[0] in LIBRARIES


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _globals_of(code: CodeType, names: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the globals that a function and the functions inside it read."""
    yield from (names[name] for name in code.co_names if name in names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_of(inner, names)


def check_hooks(module: nn.Module) -> None:
    """Raises UnknownOperation if a gradient has hooks that a copy of the module lacks. These hang on the nodes that add
    gradients to parameters; `torch.autograd.graph.register_multi_grad_hook` adds such hooks."""
    import torch

    nodes: dict[str, Any] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.is_leaf:
            with torch.enable_grad():
                nodes[name] = parameter.view_as(parameter).grad_fn.next_functions[0][0]
            hooks = [each for each in gc.get_referents(nodes[name]) if each is not parameter._backward_hooks]
            if any(hooks):
                raise UnknownOperation(
                    "hook", "", f"the node that adds gradients to {name} has hooks, and copies don't"
                )
    if any(each is not nodes and not isinstance(each, FrameType) for each in gc.get_referrers(*nodes.values())):
        raise UnknownOperation(
            "hook", "", "something keeps nodes that add gradients to weights: hooks there aren't copied"
        )


def _own(module: nn.Module) -> dict[str, Any]:
    """Returns the parameters and buffers that are arrays."""
    both = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor for name, tensor in both if _is_strided(tensor)}


def _is_strided(tensor: Any) -> bool:
    import torch

    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
