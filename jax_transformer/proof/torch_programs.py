"""Lower PyTorch programs: watch the ATen operations of one run, and repeat each in a `Builder`.

The run computes on real tensors. What it computes from weights is never read; integers and masks are. Memory is
modelled as in PyTorch: tensors are views of storages, so views, expansions and changes in place need no rules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import Program, UnknownOperation, Value
from jax_transformer.proof.torch_rules import MOVES, RULES

READS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "allclose", "is_same_size")
"""Operations whose results a program can branch on."""
EACH = "_foreach_"
"""Precedes the names of operations on lists of tensors."""


class Layout(NamedTuple):
    """How a tensor lies in its storage."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def places(self) -> np.ndarray:
        """Returns each element's place in the storage."""
        places = np.full(self.shape, self.offset, np.int64)
        for axis, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            steps = np.arange(size, dtype=np.int64) * stride
            places += steps.reshape([-1 if each == axis else 1 for each in range(len(self.shape))])
        return places

    def dense_order(self) -> tuple[int, ...] | None:
        """Returns the axes from the outermost to the innermost if the elements fill a part of the storage without gaps;
        None if they don't."""
        order = sorted(range(len(self.shape)), key=lambda axis: (-self.strides[axis], axis))
        expected = 1
        for axis in reversed(order):
            if self.shape[axis] != 1 and self.strides[axis] != expected:
                return None
            expected *= self.shape[axis]
        return tuple(order)


class _Memory(NamedTuple):
    """What a storage holds."""

    reference: StorageWeakRef
    value: Value
    layout: Layout


class Lowering(TorchDispatchMode):
    """Lowers what runs inside it to a builder's program.

    Example: `with Lowering(builder) as lowering: outputs = module(ids)`, after `lowering.name(tensor, "weight")` for
    each weight.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__()
        self.builder = builder
        self._memories: dict[int, _Memory] = {}
        self._lines: dict[int, str] = {}
        self._decompositions = _decompositions()

    def name(self, tensor: torch.Tensor, name: str) -> None:
        """Declares a tensor to be an input of the program."""
        self.assign(tensor, self.builder.input(name, tensor.shape))

    def read(self, tensor: torch.Tensor) -> Value:
        """Returns the value of a tensor now."""
        memory = self._memory(tensor)
        if memory is None:
            return self.builder.constant(tensor.detach().cpu().numpy().copy())
        layout = _layout(tensor)
        return memory.value if layout == memory.layout else self._view(memory, layout)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        if not func._schema.name.startswith("aten::"):
            return self._foreign(func, args, kwargs)
        self.builder.line = f"{name}, {self._line()}"
        rule_name = name.removesuffix("_") if func._schema.is_mutable else name
        if name in READS:
            self._check_known(name, args)
            return func(*args, **kwargs)
        if not _has_rule(rule_name):
            with self:
                decomposition = self._decompositions.get(func, func.decompose)
                result = decomposition(*args, **kwargs)
            if result is not NotImplemented:
                return result
        before = None
        if func._schema.is_mutable or _has_rule(rule_name):
            before = self._arguments(args, kwargs)
        result = func(*args, **kwargs)
        self._follow(func, rule_name, args, kwargs, before, result)
        return result

    # --- operations

    def _follow(self, func: Any, name: str, args: Any, kwargs: Any, before: Any, result: Any) -> None:
        """Gives the results of an operation their values."""
        written = _written(func, args, kwargs)
        tensors = [each for each in (result if isinstance(result, tuple | list) else [result]) if _is_tensor(each)]
        inputs = [each for each in _flat(args, kwargs) if _is_tensor(each)]
        if not written:
            storages = {_storage(each) for each in inputs}
            if tensors and all(_storage(each) in storages for each in tensors):
                return  # views
        if not any(self._memory(each) is not None for each in inputs) and self._needs_no_rule(
            inputs, written or tensors
        ):
            return  # computed from ids and masks alone
        self.builder.read[name] = self.builder.read.get(name, 0) + 1
        if not _has_rule(name):
            raise UnknownOperation(name, self._line())
        values_args, values_kwargs = before
        values = self._apply(func, name, values_args, values_kwargs)
        targets = written or tensors
        values = values if isinstance(values, tuple | list) else (values,)
        for target, value in zip(targets, values, strict=False):
            if value is not None:
                self._write(target, value)

    def _needs_no_rule(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        """Returns whether results can be read from the run: integers, booleans, and floats made from none."""
        floats = any(each.is_floating_point() for each in outputs)
        return not floats or not inputs

    def _apply(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in MOVES:
            return self._move(func, name, args, kwargs)
        if name.startswith(EACH):
            lists = [each for each in args if isinstance(each, list | tuple)]
            single = RULES[name.removeprefix(EACH)]
            rows = [
                [each[i] if isinstance(each, list | tuple) else each for each in args] for i in range(len(lists[0]))
            ]
            return [single(self.builder, *row, **kwargs) for row in rows]
        return RULES[name](self.builder, *args, **kwargs)

    def _move(self, func: Any, name: str, args: Any, kwargs: Any) -> Value:
        """Lowers a move of elements: the operation moves the places of its first argument's elements, plus one where it
        fills with zeros."""
        source, *rest = args
        rest = tree_map(_as_tensor, rest)
        indices = torch.arange(1, source.size + 1).reshape(source.shape)
        with torch._C._DisableTorchDispatch():
            moved = func(indices, *rest, **tree_map(_as_tensor, kwargs))
        return self.builder.take(source, moved.numpy() - 1)

    def _foreign(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        tensors = [each for each in _flat(args, kwargs) if _is_tensor(each)]
        if any(self._memory(each) is not None for each in tensors):
            raise UnknownOperation(str(func), self._line())
        return result

    def _check_known(self, name: str, args: Any) -> None:
        for each in _flat(args, {}):
            if _is_tensor(each) and self._memory(each) is not None and self.read(each).known is None:
                raise UnknownOperation(
                    name, self._line(), "the program branches on, or reads, numbers that depend on weights"
                )

    def _arguments(self, args: Any, kwargs: Any) -> Any:
        def value(each: Any) -> Any:
            return self.read(each) if _is_tensor(each) else each

        kept = {
            key: each
            for key, each in kwargs.items()
            if key not in ("out", "memory_format", "layout", "device", "pin_memory")
        }
        return tree_map(value, list(args)), tree_map(value, kept)

    # --- memory

    def _memory(self, tensor: torch.Tensor) -> _Memory | None:
        memory = self._memories.get(_storage(tensor))
        return None if memory is None or memory.reference.expired() else memory

    def assign(self, tensor: torch.Tensor, value: Value) -> None:
        """Gives all elements of a tensor, which fill its storage, other values."""
        storage = tensor.untyped_storage()
        self._memories[storage._cdata] = _Memory(StorageWeakRef(storage), value, _layout(tensor))

    def _write(self, tensor: torch.Tensor, value: Value) -> None:
        """Changes the storage's elements that are the tensor's."""
        value = self.builder.broadcast(value, tuple(tensor.shape))
        if value.kind in ("float", "indicator") and tensor.is_floating_point():
            value = self.builder.as_float(value)
        layout, size = _layout(tensor), tensor.untyped_storage().nbytes() // tensor.itemsize
        if value.node is None and self._memory(tensor) is None:
            return  # known, as the run has it
        if layout.dense_order() is not None and tensor.numel() == size:
            self.assign(tensor, value)
            return
        memory = self._memory(tensor)
        if memory is None:
            whole = tensor.detach().as_strided((size,), (1,), 0)
            flat = self.builder.constant(whole.cpu().numpy().copy())
        else:
            flat = self._flattened(memory, size)
        changed = self.builder.put(flat, layout.places(), value, adds=False)
        whole_layout = Layout((size,), (1,), 0)
        storage = tensor.untyped_storage()
        self._memories[storage._cdata] = _Memory(StorageWeakRef(storage), changed, whole_layout)

    def _view(self, memory: _Memory, layout: Layout) -> Value:
        kept = [axis for axis, stride in enumerate(layout.strides) if stride != 0 and layout.shape[axis] != 1]
        if len(kept) < len(layout.shape):
            shape, strides = (tuple(part[axis] for axis in kept) for part in (layout.shape, layout.strides))
            inner = Layout(shape, strides, layout.offset)
            sizes = [size if axis in kept else 1 for axis, size in enumerate(layout.shape)]
            value = memory.value if inner == memory.layout else self._view_of_all_axes(memory, inner)
            return self.builder.broadcast(self.builder.reshape(value, sizes), layout.shape)
        return self._view_of_all_axes(memory, layout)

    def _view_of_all_axes(self, memory: _Memory, layout: Layout) -> Value:
        size = int(np.prod(memory.layout.shape, dtype=np.int64))
        flat = self._flattened(memory, size)
        order = layout.dense_order()
        count = int(np.prod(layout.shape, dtype=np.int64))
        if order is None or layout.offset + count > size:
            return self.builder.take(flat, layout.places())
        if count < size:
            flat = self.builder.take(flat, np.arange(layout.offset, layout.offset + count))
        lying = self.builder.reshape(flat, [layout.shape[axis] for axis in order])
        return self.builder.transpose(lying, np.argsort(order).tolist())

    def _flattened(self, memory: _Memory, size: int) -> Value:
        order = memory.layout.dense_order()
        assert order is not None
        return self.builder.reshape(self.builder.transpose(memory.value, order), (size,))

    # --- source lines

    def _line(self) -> str:
        node = torch._C._current_autograd_node()
        if node is not None:
            line = self._lines.get(node._sequence_nr())
            return f"backward of {line}" if line else "backward"
        frame: Any = sys._getframe(1)
        while frame is not None and _is_library(frame.f_code.co_filename):
            frame = frame.f_back
        line = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self._lines[torch._C._autograd._get_sequence_nr() - 1] = line
        return line


def lower(
    program: Callable[..., Mapping[str, torch.Tensor]],
    weights: Mapping[str, torch.Tensor],
    *args: Any,
) -> Program:
    """Lowers a run of a program that returns named tensors.

    Args:
      program: called with `args`, under PyTorch's mathematical definition of attention.
      weights: tensors that the program reads, by the names of the inputs.

    Raises:
      UnknownOperation: the run needs an operation without a rule, or branches on weights.
    """
    builder = Builder()
    lowering = Lowering(builder)
    for name, tensor in weights.items():
        lowering.name(tensor, name)
    with defined(), lowering:
        found = program(*args)
    outputs = {name: lowering.read(tensor) for name, tensor in found.items()}
    return builder.program(outputs)


def cut(tensors: Iterable[torch.Tensor]) -> None:
    """Marks tensors as values of an unknown function of them, as `jax_programs.cut` does; nothing while no program is
    lowered."""
    for lowering in torch.utils._python_dispatch._get_current_dispatch_mode_stack():
        if isinstance(lowering, Lowering):
            for tensor in tensors:
                lowering.assign(tensor, lowering.builder.cut(lowering.read(tensor)))


def defined() -> Any:
    """Returns a context in which attention is computed by its definition, not by a kernel."""
    from contextlib import ExitStack

    from torch.nn.attention import SDPBackend, sdpa_kernel

    stack = ExitStack()
    stack.enter_context(sdpa_kernel(SDPBackend.MATH))
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    stack.callback(torch.backends.mha.set_fastpath_enabled, before)
    return stack


def _decompositions() -> Any:
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions().items())


def _has_rule(name: str) -> bool:
    return name in MOVES or name.removeprefix(EACH) in RULES


def _layout(tensor: torch.Tensor) -> Layout:
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_tensor(each: Any) -> bool:
    return isinstance(each, torch.Tensor)


def _as_tensor(each: Any) -> Any:
    if not isinstance(each, Value):
        return each
    if each.known is None:
        raise UnknownOperation("index", "", "an index depends on weights")
    return torch.from_numpy(np.ascontiguousarray(each.known))


def _flat(args: Any, kwargs: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves((args, kwargs))


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Returns the arguments that an operation writes to."""
    written: list[Any] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = args[place] if place < len(args) else kwargs.get(argument.name)
        written += given if isinstance(given, list | tuple) else [given]
    return [each for each in written if each is not None]


def _is_library(filename: str) -> bool:
    return "/torch/" in filename or "/jax_transformer/proof/" in filename or filename.startswith("<")
