"""Runs PyTorch modules that record their activations, under our names, in a `torch_reference.trace.Trace`."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from jax_transformer.parity.backends.torch_module import Pass

if TYPE_CHECKING:
    import torch
    from torch import nn


def traced(
    module: nn.Module,
    source_ids: torch.Tensor,
    decoder_input_ids: torch.Tensor,
    *,
    watched: bool,
    gradients: bool,
    corrupt: Any = None,
) -> Pass:
    """Runs a forward pass of a module that fills a trace itself.

    Args:
      corrupt: (name, earlier activations, value) → the value that replaces it.
    """
    from torch_reference.trace import Trace

    trace = Trace(keep_gradients=gradients) if watched or corrupt is not None else None
    if trace is not None and corrupt is not None:
        record_corrupted(trace, corrupt)
    logits = module(source_ids, decoder_input_ids, trace=trace)
    return Pass(logits, lambda: trace or {}, lambda: {} if trace is None else trace.gradients())


def record_corrupted(trace: Any, corrupt: Any) -> None:
    """Makes the trace record and return corrupted activations."""
    record = trace.record
    trace.record = lambda name, value: record(name, corrupt(name, trace, value))


def copying_trace(*, keep_gradients: bool) -> Any:
    """Returns a Trace that copies activations, so that a module may change them in place later."""
    return _copying_trace()(keep_gradients=keep_gradients)


@cache
def _copying_trace() -> Any:
    import torch

    from torch_reference.trace import Trace

    class CopyingTrace(Trace):
        """Records copies of activations, and the gradients to their recorded values."""

        def __init__(self, *, keep_gradients: bool = False) -> None:
            super().__init__(keep_gradients=keep_gradients)
            self._collected: dict[str, torch.Tensor] = {}

        def record(self, name: str, value: torch.Tensor) -> torch.Tensor:
            copy = value.detach().clone()
            recorded = super().record(name, value)
            self[name] = copy
            if recorded.requires_grad:
                recorded.register_hook(partial(self._collected.__setitem__, name))
            return recorded

        def gradients(self) -> Any:
            floating = {name: value for name, value in self.items() if value.is_floating_point()}
            return {name: self._collected.get(name, torch.zeros_like(value)) for name, value in floating.items()}

    return CopyingTrace
