"""Provides contexts in which an adapter runs a module, to compare the function that it computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


def wide(module: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which float64 tensors stay float64 where a float64 module casts them to a lower precision.

    A comparison in float64 then shows whether two functions are the same, and a comparison in float32 shows how they
    round: a module in float32 runs unchanged.

    Example:
      >>> import torch
      >>> with wide(torch.nn.Linear(2, 2).double()):
      ...     torch.ones(2, dtype=torch.float64).float().dtype
      torch.float64
    """
    import torch

    if next((one.dtype for one in module.parameters()), None) != torch.float64:
        return contextlib.nullcontext()
    from torch.utils._python_dispatch import TorchDispatchMode

    low = (torch.float32, torch.bfloat16, torch.float16)

    class Wide(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func.overloadpacket is torch.ops.aten._to_copy and args[0].dtype == torch.float64:
                kwargs = kwargs | ({"dtype": torch.float64} if kwargs.get("dtype") in low else {})
            return func(*args, **kwargs)

    return Wide()


@contextlib.contextmanager
def softmax_inputs(classes: int | None = None) -> Iterator[list[torch.Tensor]]:
    """Collects the inputs of softmaxes, in order: the logits of a module that returns its loss.

    Cross-entropies count, as they take a log-softmax. Gradients flow through the collected tensors.

    Args:
      classes: the number of classes of the softmaxes to collect. None: all, including attention's.

    Example:
      >>> import torch
      >>> with softmax_inputs(3) as logits:
      ...     loss = torch.nn.functional.cross_entropy(torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([2]))
      >>> logits
      [tensor([[0., 1., 2.]])]
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    softmaxes = {aten._softmax.default, aten._safe_softmax.default, aten._log_softmax.default, aten.logsumexp.default}
    found: list[torch.Tensor] = []

    class Collecting(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # to skip it would import torch's compiler, which takes seconds

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in softmaxes:
                axes = args[1] if isinstance(args[1], list | tuple) else [args[1]]
                if len(axes) == 1 and classes in (None, args[0].shape[axes[0]]):
                    found.append(args[0])
            return func(*args, **(kwargs or {}))

    with Collecting():
        yield found


@contextlib.contextmanager
def outputs_of(module: nn.Module) -> Iterator[list[Any]]:
    """Collects the outputs of a part of a module, call by call: the logits of a module that doesn't return them.

    Example:
      >>> import torch
      >>> double = torch.nn.Upsample(scale_factor=2)
      >>> with outputs_of(double) as outputs:
      ...     loss = double(torch.ones(1, 1, 1)).mean()
      >>> outputs
      [tensor([[[1., 1.]]])]
    """
    found: list[Any] = []
    hook = module.register_forward_hook(lambda module, given, output: found.append(output))
    try:
        yield found
    finally:
        hook.remove()
