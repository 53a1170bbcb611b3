"""Copy PyTorch modules, those that keep what they computed last among them."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator, Mapping
from types import FrameType
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
        for hook in (theirs._backward_hooks or {}).values() if own.requires_grad else ():
            own.register_hook(hook)
        for hook in (theirs._post_accumulate_grad_hooks or {}).values() if own.requires_grad else ():
            own.register_post_accumulate_grad_hook(hook)
    return copy_of


def check_apart(module: nn.Module) -> None:
    """Raises UnknownOperation if several parameters or buffers of a module share memory, which their copies don't."""
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
    numbers = {*map(id, own.values())}
    for path, part in module.named_modules():
        for tensor in filter(_is_strided, _tensors(vars(part))):
            if id(tensor) not in numbers and storage_of(tensor) in by_memory:
                raise UnknownOperation("copy", "", f"an attribute of {path or 'the module'} shares a weight's memory")


def check_hooks(module: nn.Module) -> None:
    """Raises UnknownOperation if a gradient has hooks that a copy of the module lacks: those of the nodes that add
    gradients to parameters, such as `torch.autograd.graph.register_multi_grad_hook` makes."""
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


def _tensors(value: Any) -> Iterator[Any]:
    """Yields the tensors in an object's attributes and in what they hold."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(part)
