"""Runs a PyTorch module and records every operation."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.programs.lines import is_of_library
from jax_transformer.programs.torch_precision import deterministic
from jax_transformer.programs.trace import Recording, Value, replaced
from jax_transformer.runtime.memory import gibibytes, host_memory

if TYPE_CHECKING:
    import torch
    from torch import nn

SHARE = 16
"""The share of memory that recorded activations may take: reading them takes some six times as much."""


class RecordingTooLarge(ValueError):
    """Raised when a run needs too much memory to be recorded, whatever its ids."""


def record(module: nn.Module, source_ids: torch.Tensor, target_ids: torch.Tensor) -> Recording:
    """Runs a module on ids and records everything that it computes.

    Float64 activations that the module casts to a lower precision stay in float64, so that the recording shows the
    module's function and not its rounding.

    Args:
      module: called with (source_ids [B, S], target_ids [B, T]), in evaluation mode; returns one tensor.

    Raises:
      RecordingTooLarge: its activations would leave too little memory for reading them.
      Any error that the module raises.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    recorder = _Recorder(module, {"source_ids": source_ids, "target_ids": target_ids})
    with (
        torch.no_grad(),
        deterministic(),
        sdpa_kernel(SDPBackend.MATH),
        recorder.paths(module),
        recorder.mode(),
    ):
        output = module(source_ids, target_ids)
    return Recording(recorder.values, recorder.value_of(output), tuple(recorder.narrowed))


class _Recorder:
    """Collects Values while a module runs."""

    def __init__(self, module: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
        self.values: list[Value] = []
        self._of: dict[int, Value] = {}
        self._kept: list[torch.Tensor] = []  # so that no address is used twice
        self._sharing: dict[int, set[int]] = {}  # storage → tensors
        self._stale: dict[int, list[tuple[Value, Value]]] = {}  # tensors written through another one → before, after
        self._running: list[str] = []
        self.narrowed: dict[str, None] = {}
        self._size, self._most = 0, host_memory()[0] // SHARE
        for name, tensor in inputs.items():
            self._add(tensor, op=name)
        stored: dict[int, tuple[torch.Tensor, str, list[str]]] = {}
        for kind, found in (
            ("parameter", module.named_parameters(remove_duplicate=False)),
            ("buffer", module.named_buffers(remove_duplicate=False)),
        ):
            for name, tensor in found:
                stored.setdefault(id(tensor), (tensor, kind, []))[2].append(name)
        kept = module.state_dict().keys()
        for tensor, kind, names in stored.values():
            saved = tuple(name for name in names if name in kept)
            self._add(tensor, op=kind, names=saved, trains=tensor.requires_grad)

    def value_of(self, tensor: torch.Tensor) -> Value:
        """Returns the Value of a tensor's current contents."""
        found = self._of.get(id(tensor))
        if found is None:
            return self._add(tensor, op="constant", line=_line())
        if id(tensor) in self._stale:
            return self._add(tensor, op="overwritten", args=(found, self._stale[id(tensor)]), line=_line())
        return found

    def mode(self) -> contextlib.AbstractContextManager[Any]:
        from torch.utils._python_dispatch import TorchDispatchMode

        recorder = self

        class Recording(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return recorder.run(func, args, kwargs or {})

        return Recording()

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one operation and records its results."""
        import torch

        operands = replaced((args, kwargs), self.value_of, torch.Tensor)
        if func.overloadpacket is torch.ops.aten._to_copy and self._narrows(operands[0][0], kwargs):
            kwargs = kwargs | {"dtype": torch.float64}
            self.narrowed[_line()] = None
        written = [(one, self.value_of(one)) for one in _written(func, args, kwargs)]
        result = func(*args, **kwargs)
        results = result if isinstance(result, (tuple, list)) else (result,)
        op = func.overloadpacket.__name__
        for number, tensor in enumerate(results):
            if isinstance(tensor, torch.Tensor):
                self._add(
                    tensor,
                    op=op.removesuffix("_") if op.endswith("_") and not op.startswith("__") else op,
                    function=func,
                    args=operands[0],
                    kwargs=operands[1],
                    output=number,
                    line=_line(),
                    module=self._running[-1] if self._running else "",
                )
        for tensor, before in written:
            self._spoil(tensor, before)
        return result

    def _narrows(self, value: Value, kwargs: dict[str, Any]) -> bool:
        import torch

        low = (torch.float32, torch.bfloat16, torch.float16)
        return value.depends_on_ids and value.array.dtype == np.float64 and kwargs.get("dtype") in low

    def _spoil(self, written: torch.Tensor, before: Value) -> None:
        """Records that a tensor's memory was written to, for the tensors that share it."""
        for other in self._sharing.get(written.untyped_storage()._cdata, set()) - {id(written)}:
            self._stale.setdefault(other, []).append((before, self._of[id(written)]))

    @contextlib.contextmanager
    def paths(self, module: nn.Module) -> Iterator[None]:
        """Keeps track of the running part of the module."""
        import torch

        handles = []

        def entering(name: str) -> Callable[..., None]:
            return lambda *_: self._running.append(name)

        def leaving(*_: Any) -> None:
            self._running.pop()

        for name, part in module.named_modules():
            if isinstance(part, torch.jit.ScriptModule):
                continue  # it takes no hooks
            handles.append(part.register_forward_pre_hook(entering(name)))
            handles.append(part.register_forward_hook(leaving, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _add(self, tensor: torch.Tensor, **fields: Any) -> Value:
        value = Value(len(self.values), _snapshot(tensor), **fields)
        self._check_memory(value)
        self.values.append(value)
        self._of[id(tensor)] = value
        self._stale.pop(id(tensor), None)
        self._sharing.setdefault(tensor.untyped_storage()._cdata, set()).add(id(tensor))
        self._kept.append(tensor)
        return value

    def _check_memory(self, value: Value) -> None:
        """Raises RecordingTooLarge if activations take too much memory."""
        self._size += value.array.nbytes if value.depends_on_ids else 0
        if self._size > self._most:
            shapes = " and ".join(str([*one.array.shape]) for one in self.values[:2])
            raise RecordingTooLarge(
                f"a run on ids of shapes {shapes} makes more than {gibibytes(self._most)} of activations, which take "
                f"several times as much to be read: no more than a {SHARE}th of {host_memory()[1]} is allowed. It has "
                f"got to {value.place}: build the module with smaller sizes, such as a smaller window"
            )


def _snapshot(tensor: torch.Tensor) -> np.ndarray:
    import torch

    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.array(tensor.resolve_conj().resolve_neg().cpu().numpy())


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yields the tensors that an operation writes to."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[number] if number < len(args) else kwargs[argument.name]


def _line() -> str:
    """Returns the line of the program that is running: the innermost frame outside of libraries."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_of_library(file) and "contextlib" not in file:
            return f"{file.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
