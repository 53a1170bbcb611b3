"""Watch numbers that leave PyTorch during lowering, and refuse those that depend on weights.

Programs read numbers by tensor methods, which a dispatch mode sees; by C functions, which a profiling hook sees
(DLPack, other compiled code, threads, text); and inside scripts, whose graphs show it. `torch_reruns` detects the rest.
"""

from __future__ import annotations

import _queue
import _thread
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from jax_transformer.proof.programs import UnknownOperation
from jax_transformer.proof.torch_access import flat, is_tensor

COPIES = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor, torch.Tensor.new)
"""Functions that read the numbers of tensors in lists."""
EXITS = (
    *(torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__dlpack__, torch.Tensor.data_ptr),
    *(torch.Tensor.storage, torch.Tensor.untyped_storage, torch.Tensor.__deepcopy__, torch.Tensor.__reduce_ex__),
    *(torch.Tensor.apply_, torch.Tensor.map_, torch.Tensor.map2_, torch.Tensor.share_memory_),
    *(torch.Tensor.__repr__, torch.Tensor.__format__, torch.Tensor.item, torch.Tensor.__bool__),
    *(torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.__index__, torch.Tensor.__complex__),
)
"""Functions that pass a tensor's numbers to code outside PyTorch."""
READS = "the program branches on, or reads, numbers that depend on weights"
DLPACK = (torch._C._to_dlpack, torch._C._to_dlpack_versioned)
THREADS = tuple(
    getattr(_thread, name) for name in ("start_new_thread", "start_joinable_thread") if hasattr(_thread, name)
)
SEEN = frozenset((*sys.stdlib_module_names, "torch", "numpy", "jax", "jaxlib", "jax_transformer"))
"""Packages whose compiled functions read no tensors, or only in visible ways."""
CODE = frozenset((torch._tensor_str._str.__code__, *(each.__code__ for each in EXITS if hasattr(each, "__code__"))))
"""Exits written in Python, and the functions that format tensors as text."""
METHODS = frozenset(each.__name__ for each in EXITS if not hasattr(each, "__code__"))
"""The exits that are written in C."""
OF_SCRIPTS = ("prim::tolist", "prim::Print", "aten::str", "aten::format", "aten::percentFormat")
"""Nodes of scripts that read a tensor's numbers without an operation."""


class Exits(TorchFunctionMode):
    """Refuses to pass numbers that depend on weights to NumPy, or to any code that isn't watched.

    Args:
      depends: whether a tensor depends on weights.
      line: returns the current line.
    """

    def __init__(self, depends: Callable[[torch.Tensor], bool], line: Callable[[], str]) -> None:
        super().__init__()
        self._depends, self._line = depends, line

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = args[:1] if func in EXITS else []
        if func in COPIES:
            passed = args[1:] if func in (torch.Tensor.new_tensor, torch.Tensor.new) else args
            source = passed[0] if passed else (kwargs or {}).get("obj" if func is torch.asarray else "data")
            read = [] if is_tensor(source) else flat(source, {})
        if func in (torch.Tensor.map_, torch.Tensor.map2_):
            read = flat(args, {})
        if any(is_tensor(each) and self._depends(each) for each in read):
            raise UnknownOperation(func.__name__, self._line(), READS)
        return func(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches calls of functions that dispatch modes don't see, in addition to those that they do."""
        outer = sys.getprofile()
        with self, _scripts(self._check_script):
            sys.setprofile(self._check_call)
            try:
                yield
            finally:
                sys.setprofile(outer)

    def _check_call(self, frame: Any, event: str, called: Any) -> None:
        """Checks a call, even outside dispatch modes, as in hooks that `backward` runs."""
        if event == "call" and frame.f_code in CODE:
            self._check_tensor(frame.f_code.co_name, frame.f_locals.get(frame.f_code.co_varnames[0]))
        if event != "c_call":
            return
        if called.__name__ in METHODS:
            self._check_tensor(called.__name__, called.__self__)
        if called in THREADS or (called.__name__ == "put" and isinstance(called.__self__, _queue.SimpleQueue)):
            raise UnknownOperation("thread", self._line(), "the program starts another thread, which isn't seen")
        package = str(getattr(called, "__module__", None) or "torch").partition(".")[0]
        is_of_torch = "/torch/" in frame.f_code.co_filename
        if called in DLPACK and not is_of_torch:
            raise UnknownOperation("to_dlpack", self._line(), "what reads the capsule isn't seen")
        if package not in SEEN and not is_of_torch:
            reason = f"compiled code of {package}, which isn't PyTorch's: what it reads isn't seen"
            raise UnknownOperation(called.__name__, self._line(), reason)

    def _check_tensor(self, name: str, tensor: Any) -> None:
        if is_tensor(tensor) and self._depends(tensor):
            raise UnknownOperation(name, self._line(), READS)

    def _check_script(self, graph: Any) -> None:
        for node in _nodes(graph):
            reads = any("Tensor" in each.type().annotation_str for each in node.inputs())
            if node.kind() in OF_SCRIPTS and reads:
                raise UnknownOperation(f"{node.kind()} in a script", self._line(), "it reads a tensor's numbers")


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Returns a context for code that isn't the program's own."""
    profile = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(profile)


@contextlib.contextmanager
def _scripts(check: Callable[[Any], None]) -> Iterator[None]:
    """Checks the graph of each function and method of TorchScript before it is called."""
    kinds: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
    before = [kind.__call__ for kind in kinds]

    def checking(call: Any) -> Any:
        def checked(self: Any, *args: Any, **named: Any) -> Any:
            graph = self.inlined_graph if hasattr(self, "inlined_graph") else self.graph
            check(graph)
            return call(self, *args, **named)

        return checked

    for kind, call in zip(kinds, before, strict=True):
        kind.__call__ = checking(call)
    try:
        yield
    finally:
        for kind, call in zip(kinds, before, strict=True):
            kind.__call__ = call


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.nodes():
        yield node
        for block in node.blocks():
            yield from _nodes(block)
