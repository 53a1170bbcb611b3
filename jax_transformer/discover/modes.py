"""The context in which an adapter runs a module, to compare the function that it computes."""

from __future__ import annotations

import contextlib
from typing import Any


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
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    low = (torch.float32, torch.bfloat16, torch.float16)

    class Wide(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func.overloadpacket is torch.ops.aten._to_copy and args[0].dtype == torch.float64:
                kwargs = kwargs | ({"dtype": torch.float64} if kwargs.get("dtype") in low else {})
            return func(*args, **kwargs)

    return Wide()
