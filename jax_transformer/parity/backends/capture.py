"""What either framework computed, as named arrays. PyTorch is imported here alone, where it is needed."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.parity.gates.arrays import ParityError, save_arrays

if TYPE_CHECKING:
    import torch

OWN = "output"
"""The name of what the module itself returns."""


def capture(
    module: torch.nn.Module,
    inputs: Sequence[Any] | Mapping[str, Any],
    path: str | os.PathLike[str] | None = None,
) -> dict[str, np.ndarray]:
    """What `observe` finds, as arrays. The pass is done twice. Names of one tensor share one array.

    Args:
      inputs: positional arguments, or keyword arguments.
      path: an .npz to write as well.

    Raises:
      ParityError: a module in training mode; one that returns other values the second time.
    """
    import torch

    training = part_in_training(module)
    if training is not None:
        raise ParityError(f"expected a module in evaluation mode; {training} is in training mode: call .eval() first")
    first, second = observe(module, inputs), observe(module, inputs)
    for name, tensor in first.items():
        if name not in second or not torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(second[name])):
            raise ParityError(
                f"expected the same values when the module is run again; {name} differs: does it draw random numbers?"
            )
    arrays = {
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy() for name, tensor in first.items()
    }
    if path is not None:
        widened = {name: "bfloat16" for name, tensor in first.items() if tensor.dtype == torch.bfloat16}
        save_arrays(path, arrays, {"framework": f"torch {torch.__version__}", "widened": widened})
    return arrays


def part_in_training(module: torch.nn.Module) -> str | None:
    """Returns the name of the first part of a module that is in training mode, if there is one."""
    return next((name or "the module itself" for name, part in module.named_modules() if part.training), None)


def observe(
    module: torch.nn.Module, inputs: Sequence[Any] | Mapping[str, Any], *, keep_gradients: bool = False
) -> dict[str, torch.Tensor]:
    """What one forward pass computes inside a module, in the order in which it is done.

    - `PATH`: what the submodule at that path returned. Of several tensors each gets a number (`attention.0`), of a
      mapping its key. The module's own is `output` (or, if a submodule has that path, `output#own`).
    - `PATH@input`: the first tensor that it was called with.
    - `PATH@logits`, `PATH@weights`: what a softmax read and gave, of those that are done while this submodule runs and
      none inside it; of the second one, `PATH@logits#2`. PyTorch's fused attentions are taken apart for this.

    Of a submodule that is called again, the calls are numbered from 2 on (`norm#2`, `norm#2@input`). A submodule that
    has several paths goes by its first.

    Args:
      keep_gradients: runs with gradients, and returns the tensors that the pass itself made, not copies of them: after
        `backward()` from what the module returned, each that a parameter leads to has its `.grad`.

    Raises:
      ParityError: with keep_gradients, a tensor that was changed in place after it was seen.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    notes = _Notes(keep_gradients)
    with contextlib.ExitStack() as stack:
        paths = {name for name, _ in module.named_modules()}
        for name, part in module.named_modules():
            label = name or (f"{OWN}#own" if OWN in paths else OWN)
            before, after = partial(notes.enter, label), partial(notes.leave, label)
            stack.callback(part.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(part.register_forward_hook(after, always_call=True).remove)
        stack.enter_context(torch.set_grad_enabled(keep_gradients))
        stack.enter_context(_plain_attention())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_softmaxes_to(notes.softmax))
        module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)
    return notes.finished()


class _Notes:
    """What is found while a module runs, and which of its parts are running."""

    def __init__(self, keep_gradients: bool) -> None:
        self.keep_gradients = keep_gradients
        self.found: dict[str, torch.Tensor] = {}
        self._versions: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        self._running: list[str] = []
        self._copies: dict[int, tuple[weakref.ref[torch.Tensor], int, torch.Tensor]] = {}

    def enter(self, label: str, part: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A submodule is called."""
        self._running.append(self._numbered(label))
        first = next(_tensors("", [*arguments, *named.values()]), None)
        if first is not None:
            self._keep(f"{self._running[-1]}@input", first[1])

    def leave(self, label: str, part: torch.nn.Module, arguments: Any, output: Any) -> None:
        """It is done, or (with no output) has failed."""
        for name, tensor in _tensors(self._running.pop(), output):
            self._keep(name, tensor)

    def softmax(self, logits: torch.Tensor, weights: torch.Tensor) -> None:
        """A softmax was computed."""
        if self._running:
            number = self._numbered(f"{self._running[-1]}@logits").removeprefix(f"{self._running[-1]}@logits")
            self._keep(f"{self._running[-1]}@logits{number}", logits)
            self._keep(f"{self._running[-1]}@weights{number}", weights)

    def finished(self) -> dict[str, torch.Tensor]:
        """All that was found. Only now do the tensors of softmaxes know what they were computed from."""
        if self.keep_gradients:
            for name, tensor in self.found.items():
                if _version(tensor) != self._versions[name]:
                    raise ParityError(
                        f"{name} is changed in place after it is computed, so that its gradient can't be told: "
                        "capture() shows it"
                    )
                if tensor.requires_grad:
                    tensor.retain_grad()
        return self.found

    def _numbered(self, name: str) -> str:
        self._calls[name] = self._calls.get(name, 0) + 1
        return f"{name}#{self._calls[name]}" if self._calls[name] > 1 else name

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        if self.keep_gradients:
            self.found[name], self._versions[name] = tensor, _version(tensor)
        else:
            self.found[name] = self._copy(tensor)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the CPU; the same of a tensor that was copied before and hasn't been changed since."""
        version = _version(tensor)
        known = self._copies.get(id(tensor))
        if known and known[0]() is tensor and known[1] == version >= 0:
            return known[2]
        copy = tensor.detach().cpu().clone()
        self._copies[id(tensor)] = (weakref.ref(tensor), version, copy)
        return copy


def _version(tensor: torch.Tensor) -> int:
    """How often the tensor was changed in place; -1: PyTorch doesn't say."""
    return -1 if tensor.is_inference() else tensor._version


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in what a module returned or was called with, by name; what else is in it is left out."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (Mapping, tuple, list)):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors(f"{name}.{key}", part)


def _softmaxes_to(record: Callable[[torch.Tensor, torch.Tensor], None]) -> contextlib.AbstractContextManager[Any]:
    """Within it, `record` gets what every softmax reads and gives, whatever Python or C++ it is called from."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    softmaxes = (torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default)

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func in softmaxes:
                record(args[0], result)
            return result

    return Watching()


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
