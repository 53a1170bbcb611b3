"""Contexts in which an adapter runs a module, to compare the function that it computes."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_LOG_SOFTMAX = (
    torch.log_softmax,
    torch.special.log_softmax,
    torch.nn.functional.log_softmax,
    torch.Tensor.log_softmax,
)
_LOW = (torch.float32, torch.bfloat16, torch.float16)


def raw_logits() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which log_softmax returns its input, so that a module returns logits.

    Example:
      >>> import torch
      >>> with raw_logits():
      ...     torch.nn.LogSoftmax(dim=-1)(torch.zeros(2))
      tensor([0., 0.])
    """
    return _RawLogits()


def wide() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which tensors in float64 stay so where a module casts them to a lower precision.

    A comparison in float64 then tells whether two functions are the same, and one in float32 how they round: there this
    changes nothing.

    Example:
      >>> import torch
      >>> with wide():
      ...     torch.ones(2, dtype=torch.float64).float().dtype
      torch.float64
    """
    return _Wide()


class _RawLogits(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _LOG_SOFTMAX:
            return args[0] if args else kwargs["input"]
        return func(*args, **kwargs)


class _Wide(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket is torch.ops.aten._to_copy and args[0].dtype == torch.float64:
            kwargs = kwargs | ({"dtype": torch.float64} if kwargs.get("dtype") in _LOW else {})
        return func(*args, **kwargs)
