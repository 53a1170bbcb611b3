"""Captures the tensors that a PyTorch module and its submodules compute, as named arrays."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jax_transformer.comparison.gates.arrays import ParityError, save_arrays

if TYPE_CHECKING:
    import torch

OWN = "output"
"""The name of the module's own output."""


def capture(
    module: torch.nn.Module,
    inputs: Sequence[Any] | Mapping[str, Any],
    path: str | os.PathLike[str] | None = None,
) -> dict[str, np.ndarray]:
    """Runs a module and returns the output and input of every submodule, and the arrays around every softmax.

    `observe` defines the names. The module runs twice, to check that it repeats itself.

    Args:
      module: a PyTorch module in evaluation mode.
      inputs: the positional or keyword arguments of its `forward`.
      path: an .npz to write as well.

    Returns:
      Arrays by name, in execution order, bfloat16 as float32. Names of one tensor share one array.

    Raises:
      ParityError: the module is in training mode, or returns different values the second time.

    Example:
      >>> import torch
      >>> from jax_transformer.parity import capture
      >>> module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()).eval()
      >>> {name: array.shape for name, array in capture(module, [torch.ones(4, 3)]).items()}
      {'output@input': (4, 3), '0@input': (4, 3), '0': (4, 2), '1@input': (4, 2), '1': (4, 2), 'output': (4, 2)}
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


class ModuleCall(NamedTuple):
    """Holds the tensors that a module computed in one call."""

    output: Any
    """The result of its forward."""
    tensors: dict[str, torch.Tensor]
    """Copies of the tensors inside it, by the names of `observe`; none with keep_gradients."""
    gradients: dict[str, torch.Tensor]
    """With keep_gradients, the gradient of each floating-point tensor that depends on a parameter, after `backward()`.
    The gradient belongs to the value that the tensor had when it was computed, even if the module changed it in place
    later. A submodule that is called twice with one tensor, such as a norm for the queries and again for the keys,
    computes one value in two tensors: the first has the sum of their gradients, unless `apart` names the second."""
    last_softmax: tuple[torch.Tensor, torch.Tensor] | None
    """The input and output of the last softmax or log-softmax, themselves."""


def observe(module: torch.nn.Module, inputs: Sequence[Any] | Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Runs a module once and returns copies of the tensors inside it, in execution order.

    - `PATH`: the output of the submodule at that path. Several tensors are numbered (`attention.0`), or have the key of
      their mapping. The module's own output is `output` (`output#own` if a submodule has that path).
    - `PATH@input`: the first tensor that the submodule was called with.
    - `PATH@logits`, `PATH@weights`: the input and output of a softmax that this submodule computes, not one inside it;
      `PATH@logits#2` for its second softmax. PyTorch's fused attention is decomposed for this.

    Repeated calls of a submodule are numbered from 2 (`norm#2`, `norm#2@input`). A submodule with several paths has the
    name of the first.
    """
    positional, named = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    return watch(module, positional, named).tensors


def watch(
    module: torch.nn.Module,
    positional: Sequence[Any],
    named: Mapping[str, Any] = MappingProxyType({}),
    *,
    keep_gradients: bool = False,
    enable_gradients: bool = False,
    apart: Container[str] = (),
) -> ModuleCall:
    """Runs a module once and watches every tensor that `observe` names.

    Args:
      keep_gradients: run with gradients, and collect the tensors' gradients instead of copies.
      enable_gradients: run with gradients, and collect copies.
      apart: names of tensors that are values of their own though they repeat another, such as the keys that a layer
        used for several layers computes from one encoder output each time; their gradients aren't added to its.
    """
    import torch

    notes = _Notes(keep_gradients, apart)
    with contextlib.ExitStack() as stack:
        paths = {name for name, _ in module.named_modules()}
        for name, part in module.named_modules():
            if isinstance(part, torch.jit.ScriptModule):
                continue  # it runs without Python, and takes no hooks
            label = name or (f"{OWN}#own" if OWN in paths else OWN)
            before, after = partial(notes.enter, label), partial(notes.leave, label)
            stack.callback(part.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(part.register_forward_hook(after, always_call=True).remove)
        stack.enter_context(torch.set_grad_enabled(keep_gradients or enable_gradients))
        stack.enter_context(unfused_attention())
        stack.enter_context(_softmaxes_to(notes.softmax))
        output = module(*positional, **named)
    notes.settle()
    return ModuleCall(output, notes.found, notes.gradients, notes.last_softmax)


def call_unwatched(
    module: torch.nn.Module, positional: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Any, tuple[torch.Tensor, torch.Tensor] | None]:
    """Runs a module without hooks; returns its output, and the input and output of its last softmax or log-softmax."""
    notes = _Notes(keep_gradients=False)
    with unfused_attention(), _softmaxes_to(notes.softmax):
        output = module(*positional, **named)
    return output, notes.last_softmax


@contextlib.contextmanager
def unfused_attention() -> Iterator[None]:
    """Computes attention step by step, as watched modules do, because another algorithm would round differently."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with _plain_attention(), sdpa_kernel(SDPBackend.MATH):
        yield


class _Notes:
    """Collects the tensors of a running module, and keeps track of its running parts."""

    def __init__(self, keep_gradients: bool, apart: Container[str] = ()) -> None:
        self.keep_gradients = keep_gradients
        self.apart = apart
        self.found: dict[str, torch.Tensor] = {}
        self.gradients: dict[str, torch.Tensor] = {}
        self.last_softmax: tuple[torch.Tensor, torch.Tensor] | None = None
        self._unsettled: list[tuple[str, torch.Tensor, int]] = []
        self._calls: dict[str, int] = {}
        self._first_given: dict[str, tuple[torch.Tensor, int]] = {}
        self._again: dict[str, str] = {}  # calls that repeat the first → it
        self._first_made: dict[str, torch.Tensor] = {}
        self._running: list[str] = []
        self._copies: dict[int, tuple[weakref.ref[torch.Tensor], int, torch.Tensor]] = {}

    def enter(self, label: str, part: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Records the call of a submodule."""
        self.settle()
        self._running.append(self._numbered(label))
        given = [tensor for _, tensor in _tensors("", [*arguments, *named.values()])]
        if given:
            self._keep(f"{self._running[-1]}@input", given[0])
        if len(given) == 1 and self.keep_gradients:
            tensor, version = self._first_given.setdefault(label, (given[0], _version(given[0])))
            if self._running[-1] != label and tensor is given[0] and version == _version(tensor) >= 0:
                self._again[self._running[-1]] = label

    def leave(self, label: str, part: torch.nn.Module, arguments: Any, output: Any) -> None:
        """Records the end of the call, without an output if it failed."""
        import torch

        self.settle()
        call = self._running.pop()
        for name, tensor in _tensors(call, output):
            self._keep(name, tensor)
            if self.keep_gradients:
                first = name if name in self.apart else self._again.get(call, call) + name.removeprefix(call)
                before = self._first_made.setdefault(first, tensor)
                if before is not tensor and torch.equal(before, tensor):
                    self._keep(first, tensor)

    def softmax(self, logits: torch.Tensor, weights: torch.Tensor, *, is_log: bool) -> None:
        """Records the input and output of a softmax, or of a log-softmax, which gets no name."""
        self.settle()
        self.last_softmax = logits, weights
        if self._running and not is_log:
            number = self._numbered(f"{self._running[-1]}@logits").removeprefix(f"{self._running[-1]}@logits")
            for what, tensor in (("logits", logits), ("weights", weights)):
                name = f"{self._running[-1]}@{what}{number}"
                if self.keep_gradients:  # only later does it know what it was computed from
                    self._unsettled.append((name, tensor, _version(tensor)))
                else:
                    self._keep(name, tensor)

    def settle(self) -> None:
        """Starts to collect the gradients of softmaxes that have run."""
        for name, tensor, version in self._unsettled:
            if _version(tensor) == version:
                self._keep(name, tensor)
        self._unsettled.clear()

    def _numbered(self, name: str) -> str:
        self._calls[name] = self._calls.get(name, 0) + 1
        return f"{name}#{self._calls[name]}" if self._calls[name] > 1 else name

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        """Copies a tensor, or collects its gradient. (A hook sees the value that the tensor has now.)"""
        if not self.keep_gradients:
            self.found[name] = self._copy(tensor)
        elif tensor.requires_grad and not tensor.is_inference():
            whole = tensor._base if tensor._is_view() and tensor._base.requires_grad else None
            is_whole = whole is not None and (whole.numel(), whole.dtype) == (tensor.numel(), tensor.dtype)
            if whole is None or not is_whole or not whole.is_contiguous():
                tensor.register_hook(partial(self._collect, name))
            else:  # such as x.transpose(0, 1), where x goes on, or is changed in place, under its own name
                whole.register_hook(partial(self._keep_viewed, name, tensor.size(), tensor.stride()))

    def _collect(self, name: str, gradient: torch.Tensor) -> None:
        """Collects the gradient of a tensor; sums the gradients of tensors that hold the value of one name."""
        self.gradients[name] = self.gradients[name] + gradient if name in self.gradients else gradient

    def _keep_viewed(self, name: str, size: Sequence[int], stride: Sequence[int], gradient: torch.Tensor) -> None:
        """Collects the gradient of a tensor in the shape and strides of its view."""
        self._collect(name, gradient.contiguous().as_strided(size, stride))

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copies a tensor to the CPU, or returns the earlier copy if the tensor hasn't changed since."""
        version = _version(tensor)
        known = self._copies.get(id(tensor))
        if known and known[0]() is tensor and known[1] == version >= 0:
            return known[2]
        copy = tensor.detach().cpu().clone()
        self._copies[id(tensor)] = (weakref.ref(tensor), version, copy)
        return copy


def _version(tensor: torch.Tensor) -> int:
    """Returns the number of in-place changes of the tensor; -1 if PyTorch doesn't count them."""
    return -1 if tensor.is_inference() else tensor._version


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors in a module's output or arguments, by name, and skips everything else."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (Mapping, tuple, list)):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _tensors(f"{name}.{key}", part)


def _softmaxes_to(record: Callable[..., None]) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which `record` receives the input and output of every softmax and log-softmax, called from
    Python or C++, and its kind (`is_log`)."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    softmaxes = {aten._softmax.default: False, aten._safe_softmax.default: False, aten._log_softmax.default: True}

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func in softmaxes:
                record(args[0], result, is_log=softmaxes[func])
            return result

    return Watching()


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Switches off PyTorch's fused attention layers, which skip the submodules that they replace."""
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def check_module(module: Any, name: str) -> None:
    """Raises ParityError for anything but a PyTorch module in evaluation mode."""
    from torch import nn

    if not isinstance(module, nn.Module):
        raise ParityError(f"reference {name}: expected a torch.nn.Module; received {type(module).__name__}")
    training = part_in_training(module)
    if training is not None:
        raise ParityError(
            f"reference {name}: expected a module in evaluation mode; {training} is in training mode: call .eval() "
            "first"
        )


def tensors_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """Yields the tensors in an output and the keys that lead to them: through mappings, sequences, and the attributes
    of other objects."""
    import torch

    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from tensors_in(part, (*path, key))
    elif isinstance(value, tuple | list):
        for number, part in enumerate(value):
            yield from tensors_in(part, (*path, number))
    elif hasattr(value, "__dict__") and len(path) < 3:
        for key, part in vars(value).items():
            yield from tensors_in(part, (*path, key))
