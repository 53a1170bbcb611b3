"""The reads, writes and results of ATen operations, and those that no proof models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from jax_transformer.proof.programs import UnknownOperation
from jax_transformer.proof.torch_memory import layout_of, storage_of

EACH = "_foreach_"
"""Precedes the names of operations on lists of tensors."""
OVERWRITES = ("copy_", "fill_", "zero_")
"""Operations that don't read the memory they write."""


def written_by(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Returns the arguments that an operation writes to."""
    written: list[Any] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        written_argument = args[place] if place < len(args) else kwargs.get(argument.name)
        written += written_argument if isinstance(written_argument, list | tuple) else [written_argument]
    return [each for each in written if each is not None]


def unread_by(name: str, func: Any, written: Sequence[Any], args: Any) -> Sequence[Any]:
    """Returns the arguments whose old contents an operation doesn't read."""
    if name in OVERWRITES:
        return written
    read = flat(args, {})
    return [each for each in written if not among(each, read)] if "out" in func._overloadname else []


def check_memory(name: str, func: Any, written: Sequence[Any], inputs: Sequence[Any], line: str) -> None:
    """Raises UnknownOperation for unmodelled operations: random numbers, tensors that aren't strided arrays, and memory
    that is read and written in an undefined order."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        raise UnknownOperation(name, line, "random numbers are no function of weights and ids")
    for each in inputs:
        if is_traceable_wrapper_subclass(each) or each.layout is not torch.strided or each.is_quantized:
            raise UnknownOperation(name, line, f"a tensor of type {type(each).__name__}, {each.layout}")
    is_pointwise = torch.Tag.pointwise in func.tags or name.startswith(EACH) or name in OVERWRITES
    for target in written:
        shared = [each for each in inputs if storage_of(each) == storage_of(target)]
        others = [each for each in shared if each is not target]
        if "out" not in func._overloadname:
            others = [each for each in others if layout_of(each) != layout_of(target)]
        is_read_again = len(shared) - len(others) > 1 and not is_pointwise
        if is_read_again or any(overlap(each, target) for each in others):
            raise UnknownOperation(name, line, "it reads and writes the same memory in another order")


def check_rows(name: str, line: str, lists: Sequence[Sequence[Any]]) -> None:
    """Raises UnknownOperation if an operation on lists writes to a tensor that another entry of the lists reads or
    writes: the result depends on the order."""
    targets: dict[int, list[tuple[int, torch.Tensor]]] = {}
    for place, each in enumerate(lists[0]):
        targets.setdefault(storage_of(each), []).append((place, each))
    for tensors in lists:
        for place, each in enumerate(tensors):
            shared = targets.get(storage_of(each), ()) if is_tensor(each) else ()
            if any(other != place and overlap(each, target) for other, target in shared):
                raise UnknownOperation(name, line, "it reads and writes the same memory in an order that isn't defined")


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors of a storage have elements in common."""
    return np.intersect1d(layout_of(one).places(), layout_of(other).places()).size > 0


def returns_view(func: Any) -> bool:
    """Returns whether an operation returns a view of an operand."""
    found = [each.alias_info for each in func._schema.returns]
    return any(each is not None and not each.is_write for each in found)


def are_views(result: Any, inputs: Sequence[torch.Tensor]) -> bool:
    """Returns whether an operation returned views of its operands."""
    tensors = [each for each in flat(result, {}) if is_tensor(each)]
    if any(each.layout is not torch.strided for each in (*tensors, *inputs)):
        return False
    storages = {storage_of(each) for each in inputs}
    return bool(tensors) and all(storage_of(each) in storages for each in tensors)


def among(tensor: Any, tensors: Sequence[Any]) -> bool:
    return any(each is tensor for each in tensors)


def is_tensor(each: Any) -> bool:
    return isinstance(each, torch.Tensor)


def flat(args: Any, kwargs: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves((args, kwargs))
