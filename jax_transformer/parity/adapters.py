"""What either framework computed, as named arrays. PyTorch is imported here alone, where it is needed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.parity.arrays import ParityError, save_arrays

if TYPE_CHECKING:
    import torch

OWN = "output"
"""The name of what the module itself returns."""


def capture(
    module: torch.nn.Module,
    inputs: Sequence[Any] | Mapping[str, Any],
    path: str | os.PathLike[str] | None = None,
) -> dict[str, np.ndarray]:
    """What every submodule returned in one forward pass, by its path, in the order in which they were done; the module's own is `output`.

    Of several tensors each gets a number (`attention.0`), of a mapping its key; of a submodule that is called again, the calls are numbered
    from 2 on (`norm#2`). The pass is done twice.

    Args:
      inputs: positional arguments, or keyword arguments.
      path: an .npz to write as well.

    Raises:
      ParityError: a module in training mode; one that returns other values the second time.
    """
    import torch

    training = next((name or "the module itself" for name, part in module.named_modules() if part.training), None)
    if training is not None:
        raise ParityError(f"expected a module in evaluation mode; {training} is in training mode: call .eval() first")
    first, second = _forward(module, inputs), _forward(module, inputs)
    for name, tensor in first.items():
        if name not in second or not torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(second[name])):
            raise ParityError(f"expected the same values when the module is run again; {name} differs: does it draw random numbers?")
    arrays = {name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy() for name, tensor in first.items()}
    if path is not None:
        widened = {name: "bfloat16" for name, tensor in first.items() if tensor.dtype == torch.bfloat16}
        save_arrays(path, arrays, {"framework": f"torch {torch.__version__}", "widened": widened})
    return arrays


def _forward(module: torch.nn.Module, inputs: Sequence[Any] | Mapping[str, Any]) -> dict[str, torch.Tensor]:
    import torch

    found: dict[str, torch.Tensor] = {}
    calls: dict[str, int] = {}

    def record(name: str, part: torch.nn.Module, arguments: Any, output: Any) -> None:
        calls[name] = calls.get(name, 0) + 1
        numbered = f"{name}#{calls[name]}" if calls[name] > 1 else name
        found.update(_named(numbered, output))

    handles = [part.register_forward_hook(partial(record, name or OWN)) for name, part in module.named_modules()]
    try:
        with torch.no_grad(), _plain_attention():
            module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _named(name: str, output: Any) -> dict[str, torch.Tensor]:
    """The tensors in what a module returned; what else is in it is left out."""
    import torch

    if isinstance(output, torch.Tensor):
        return {name: output.detach().cpu().clone()}
    if isinstance(output, Mapping):
        parts: Any = output.items()
    elif isinstance(output, (tuple, list)):
        parts = enumerate(output)
    else:
        return {}
    return {full: tensor for key, part in parts for full, tensor in _named(f"{name}.{key}", part).items()}


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """PyTorch's fused attention layers off: they skip the submodules that they stand for."""
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
