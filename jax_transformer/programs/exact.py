"""Computes constants exactly that a float64 module rounds to a lower precision: √head_dim, angles, tables.

Many programs compute such numbers in float32, once or in every call, even when their parameters are float64. That
rounding hides the exact function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.programs.calling import as_module

if TYPE_CHECKING:
    import torch
    from torch import nn

ROUNDED = 1e-4
"""Largest error of a rounded constant, relative to the largest value: a cosine of 500 radians in float32 is off by
3e-5. Random numbers differ by more."""


def exact_constants(build: Callable[[], Any], without: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Builds a module a second time, with every number in float64, and returns the constants (tensors that aren't
    parameters) that are more exact than the module's own.

    Args:
      build: makes the module; called twice.
      without: names to leave out.

    Returns:
      "PATH.NAME" of an attribute → its tensor in float64 or complex128.

    Raises:
      Any error that `build` raises when it computes in float64.
    """
    rounded = _constants(as_module(build()))
    with _all_in_float64():
        exact = _constants(as_module(build()))
    return {
        name: tensor.detach().cpu()
        for name, tensor in exact.items()
        if name in rounded and name not in without and _is_rounding(rounded[name], tensor)
    }


def tables_among(constants: Mapping[str, torch.Tensor], tables: Iterable[np.ndarray]) -> tuple[str, ...]:
    """Lists the constants that share a row with one of these tables."""
    rows = {row.tobytes() for table in tables for row in table}
    return tuple(name for name, tensor in constants.items() if any(row.tobytes() in rows for row in _rows(tensor)))


@contextlib.contextmanager
def exact(module: nn.Module, constants: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Replaces a float64 module's constants with these during the block, and computes in float64 where the module would
    use a lower precision. A module in another dtype runs unchanged.

    Example:
      >>> import torch
      >>> module = torch.nn.Linear(2, 2).double()
      >>> module.scale = torch.sqrt(torch.FloatTensor([2.0]))
      >>> with exact(module, {"scale": torch.tensor([2.0], dtype=torch.float64).sqrt()}):
      ...     float(module.scale * module.scale - 2)
      4.440892098500626e-16
    """
    import torch

    if next((one.dtype for one in module.parameters()), None) != torch.float64:
        yield
        return
    before: list[tuple[Any, str, Any]] = []
    for place, tensor in constants.items():
        path, _, name = place.rpartition(".")
        part = module.get_submodule(path)
        own = getattr(part, name)
        before.append((part, name, own))
        setattr(part, name, tensor.to(own.device))
    try:
        with _all_in_float64():
            yield
    finally:
        for part, name, own in before:
            setattr(part, name, own)


def _constants(module: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the floating-point attributes and buffers of a module and its parts, by path."""
    import torch

    return {
        f"{path}.{name}" if path else name: tensor
        for path, part in module.named_modules()
        for name, tensor in (*vars(part).items(), *part.named_buffers(recurse=False))
        if isinstance(tensor, torch.Tensor)
        and (tensor.is_floating_point() or tensor.is_complex())
        and not tensor.requires_grad
    }


def _is_rounding(rounded: torch.Tensor, exact: torch.Tensor) -> bool:
    """Returns whether two tensors differ only by rounding to a lower precision."""
    import torch

    if rounded.shape != exact.shape or rounded.is_complex() != exact.is_complex() or not exact.numel():
        return False
    wide = torch.complex128 if exact.is_complex() else torch.float64
    one, other = (tensor.detach().cpu().to(wide).nan_to_num() for tensor in (rounded, exact))
    apart = float((one - other).abs().max())
    return exact.dtype == wide and 0 < apart <= ROUNDED * float(other.abs().max())


def _rows(tensor: torch.Tensor) -> np.ndarray:
    """Returns the rows along the last axis of a table."""
    return tensor.numpy().reshape(-1, tensor.shape[-1]) if tensor.ndim > 1 else np.empty((0, 0))


@contextlib.contextmanager
def _all_in_float64() -> Iterator[None]:
    """Makes PyTorch compute in float64 and complex128 instead of lower precisions during the block."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    wide = {torch.complex64: torch.complex128}
    wide |= dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), torch.float64)

    def widened(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(wide[value.dtype]) if value.dtype in wide else value
        return wide.get(value, value) if isinstance(value, torch.dtype) else value

    class Exact(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func._schema.is_mutable:  # its output tensor must be written in place
                return func(*args, **(kwargs or {}))
            return func(*tree_map(widened, args), **tree_map(widened, kwargs or {}))

    names = {"FloatTensor": "DoubleTensor", "HalfTensor": "DoubleTensor", "BFloat16Tensor": "DoubleTensor"}
    constructors = {name: getattr(torch, name) for name in names}
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    for name, other in names.items():
        setattr(torch, name, getattr(torch, other))
    try:
        with Exact():
            yield
    finally:
        for name, constructor in constructors.items():
            setattr(torch, name, constructor)
        torch.set_default_dtype(default)
