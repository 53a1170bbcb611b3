"""Runs a module in ways that may fail, and records how far it gets and which tables its ids index."""

from __future__ import annotations

import contextlib
import io
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from jax_transformer.programs.calling import adapters
from jax_transformer.programs.copies import copied
from jax_transformer.programs.lines import is_of_library

if TYPE_CHECKING:
    import torch
    from torch import nn

LARGEST = 20_000_000
"""The most attention scores that a run may compute; a larger run is stopped."""


class Stopped(Exception):
    """Raised inside a run that would need too much memory."""


class Unusable:
    """Stands in for an argument: every use fails, with this class's name in the message."""

    def _used(self, *_: Any) -> Any:
        raise TypeError("Unusable is used")

    __getattr__ = __eq__ = __bool__ = _used
    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Outcome:
    """Holds the result of a run, or its error."""

    value: Any = None
    error: BaseException | None = None
    reached: int = 0
    """The number of tensor operations before the end."""
    largest: int = 0
    """The elements of the largest tensor that an operation made."""
    was_stopped: bool = False
    """Whether it was stopped because it would have needed too much memory."""

    @property
    def succeeded(self) -> bool:
        """Returns whether the run completed."""
        return self.error is None


@dataclass(frozen=True)
class Lookup:
    """Describes rows that a run took from a table: the table [rows, D] and the indices."""

    table: torch.Tensor
    indices: torch.Tensor


class Runner:
    """Runs lines around a copy of a module, quietly: no gradients, evaluation mode, nothing printed, no warnings."""

    def __init__(self, module: nn.Module, seconds: float = 10.0) -> None:
        try:
            self.module = copied(module)
        except Exception:  # some modules hold objects that can't be copied
            self.module = module
        self.module.eval()
        self.trials, self.printed = 0, False  # number of calls tried; whether the module prints
        self._end = time.process_time() + seconds

    @property
    def is_spent(self) -> bool:
        """Returns whether the processor time for trials is used up."""
        return time.process_time() > self._end

    def run(
        self,
        lines: Sequence[str],
        source_ids: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        lookups: list[Lookup] | None = None,
        *,
        watched: bool = True,
    ) -> Outcome:
        """Runs an adapter of these lines.

        Args:
          lookups: receives the lookups in tables, in order.
          watched: whether to count operations and stop large ones, which costs some time.
        """
        watch = _watch()(lookups)
        text = io.StringIO()
        with quiet(text):
            try:
                with watch if watched else contextlib.nullcontext():
                    value = adapters.run(self.module, lines, source_ids.clone(), decoder_input_ids.clone())
                outcome = Outcome(value, None, watch.count, watch.largest)
            except (Exception, SystemExit) as error:
                outcome = Outcome(None, error, watch.count, watch.largest, watch.was_stopped)
        self.printed = self.printed or bool(text.getvalue())
        return outcome

    def outputs(self, lines: Sequence[str], *ids: torch.Tensor) -> list[tuple[str, Any]]:
        """Lists the submodules that a run calls, and the result of each call, in the order in which calls end. A
        submodule with several names is listed under each."""
        import torch

        found: list[tuple[str, Any]] = []
        hooks = [
            inner.register_forward_hook(lambda *call, name=name: found.append((name, call[-1])))
            for name, inner in self.module.named_modules(remove_duplicate=False)
            if name and not isinstance(inner, torch.jit.ScriptModule)
        ]
        try:
            self.run(lines, *ids)
        finally:
            for hook in hooks:
                hook.remove()
        return found


@contextlib.contextmanager
def quiet(text: io.StringIO) -> Iterator[None]:
    """Redirects printing to `text`, hides warnings, and switches off the fast path of torch's layers, which drops
    columns of only padding and so changes shapes."""
    import torch

    fast_path, threads = torch.backends.mha.get_fastpath_enabled(), torch.get_num_threads()
    torch.backends.mha.set_fastpath_enabled(False)
    torch.set_num_threads(1)  # the runs are small, and on a busy machine threads would wait for each other
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(text),
            contextlib.redirect_stderr(text),
            torch.no_grad(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        torch.set_num_threads(threads)


def place(error: BaseException) -> str:
    """Returns 'file.py:line' of the innermost line outside of torch that an error came through, or ''."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_of_library(frame.filename)]
    frames = [frame for frame in frames if frame.filename != "adapter.py"] or frames
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def first_line(error: BaseException) -> str:
    """Returns an error's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@cache
def _watch() -> Any:
    """Returns the class of a mode that counts operations, and notes lookups in tables."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    products = {aten.bmm.default, aten.baddbmm.default}
    fused = {
        getattr(aten, name).default
        for name in ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math")
        if hasattr(aten, name)
    }

    class Watch(TorchDispatchMode):
        def __init__(self, lookups: list[Lookup] | None) -> None:
            super().__init__()
            self.count, self.lookups, self.was_stopped = 0, lookups, False
            self.largest = 0

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # to skip it would import torch's compiler, which takes seconds

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            if func in products:
                self._stop_large(args[-2].shape[:-1].numel() * args[-1].shape[-1])
            elif func in fused:
                self._stop_large(args[0].shape[:-1].numel() * args[1].shape[-2])
            if self.lookups is not None:
                self._note(func, args)
            result = func(*args, **(kwargs or {}))
            made = result if isinstance(result, (tuple, list)) else (result,)
            self.largest = max([self.largest, *(one.numel() for one in made if isinstance(one, torch.Tensor))])
            return result

        def _stop_large(self, scores: int) -> None:
            if scores > LARGEST:
                self.was_stopped = True  # scripted functions replace this error by their own
                raise Stopped

        def _note(self, func: Any, args: Any) -> None:
            assert self.lookups is not None
            table = indices = None
            if func is aten.embedding.default:
                table, indices = args[0], args[1]
            elif func is aten.index.Tensor and len(args[1]) == 1:
                table, indices = args[0], args[1][0]
            elif func is aten.index_select.default and args[1] == 0:
                table, indices = args[0], args[2]
            if (
                table is not None
                and table.ndim == 2
                and table.is_floating_point()
                and indices is not None
                and indices.dtype in (torch.int64, torch.int32)
            ):
                self.lookups.append(Lookup(table, indices.clone()))

    return Watch
