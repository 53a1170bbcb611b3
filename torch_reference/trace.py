"""Records activations under the same names as the JAX model's trace, in execution order."""

from __future__ import annotations

from collections import OrderedDict

import torch


class Trace(OrderedDict[str, torch.Tensor]):
    """Holds the activations of one forward pass by name, in execution order.

    Args:
      keep_gradients: whether `gradients()` returns, after `loss.backward()`, the loss's gradient with respect to every
        floating-point activation.
    """

    def __init__(self, *, keep_gradients: bool = False) -> None:
        super().__init__()
        self.keep_gradients = keep_gradients

    def record(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Records `value` under `name` and returns the tensor that the model continues with.

        Raises:
          ValueError: the name was recorded before; a trace holds one forward pass.
        """
        if name in self:
            raise ValueError(f"trace: {name} is recorded already; use a new Trace for each forward pass")
        if self.keep_gradients and value.is_floating_point():
            if value.requires_grad:
                value.retain_grad()
            else:  # a table that no parameter leads to: it becomes a leaf of its own
                value = value.detach().requires_grad_()
        self[name] = value
        return value

    def gradients(self) -> OrderedDict[str, torch.Tensor]:
        """Returns the gradient of each floating-point activation, zeros if none reached it.

        Raises:
          ValueError: the trace was made without keep_gradients.
        """
        if not self.keep_gradients:
            raise ValueError("gradients of activations need Trace(keep_gradients=True)")
        floating = [(name, value) for name, value in self.items() if value.is_floating_point()]
        return OrderedDict(
            (name, torch.zeros_like(value) if value.grad is None else value.grad) for name, value in floating
        )


class Tap:
    """Names activations as a model computes them; does nothing without a trace."""

    def __init__(self, trace: Trace | None = None, prefix: str = "") -> None:
        self.trace, self.prefix = trace, prefix

    def scope(self, name: str) -> Tap:
        """Returns a tap that puts `name.` before its names."""
        return Tap(self.trace, f"{self.prefix}{name}.")

    def __call__(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Returns the tensor that the model continues with."""
        return value if self.trace is None else self.trace.record(self.prefix + name, value)
