"""Model PyTorch's memory: tensors are views of storages, so views, expansions and in-place changes need no rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from ml_dtypes import bfloat16
from torch.multiprocessing.reductions import StorageWeakRef

from jax_transformer.programs.sites import Site
from jax_transformer.proof.building import Builder
from jax_transformer.proof.complex_numbers import Complex, as_complex, conjugate
from jax_transformer.proof.complex_numbers import constant as complex_constant
from jax_transformer.proof.programs import UnknownOperation, Value

UNWRITTEN = "memory is read that no operation known here has written"


class Variable(NamedTuple):
    """An input of a program that several tensors are, or are parts of."""

    shape: tuple[int, ...]
    parts: tuple[tuple[torch.Tensor, np.ndarray | None], ...]
    """Tensors, and which element of the variable each of theirs is; None: the tensor is the variable."""

    @classmethod
    def of(cls, weight: torch.Tensor | Variable) -> Variable:
        return weight if isinstance(weight, Variable) else cls(tuple(weight.shape), ((weight, None),))

    def written(self) -> list[tuple[torch.Tensor, np.ndarray | None]]:
        """Returns the parts of a variable with each number in memory once: a slice of an expanded tensor."""
        return [_once(*part) for part in self.parts]


def _once(tensor: torch.Tensor, places: np.ndarray | None) -> tuple[torch.Tensor, np.ndarray | None]:
    tensor = tensor.detach()
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1 and places is not None:
            tensor, places = tensor.narrow(axis, 0, 1), places.take([0], axis)
    return tensor, places


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


class _Storage(NamedTuple):
    """Holds the contents of a storage."""

    reference: StorageWeakRef
    value: Value
    layout: Layout
    dtype: torch.dtype
    unset: np.ndarray | None = None
    """Mask of the elements that were never written; None: all were."""
    reason: str | UnknownOperation = UNWRITTEN
    """Reason why these can't be read."""


class Memory:
    """Holds the contents of storages, as values of a builder's program. For any other storage, the run's own numbers
    apply."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._storages: dict[int, _Storage] = {}
        self._made: dict[int, tuple[StorageWeakRef, Site]] = {}
        """Storages that the run fills with numbers that depend on no weight → the site."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Returns whether a rule has computed the contents of a tensor's storage."""
        return self._held(tensor) is not None

    def read(self, tensor: torch.Tensor) -> Any:
        """Returns the value of a tensor now: of a complex one, a pair."""
        if tensor.is_complex():
            return self._read_complex(tensor)
        memory = self._held(tensor)
        if memory is None:
            with self._as_made(tensor):
                return self.builder.constant(as_array(tensor, self.builder.line))
        layout = layout_of(tensor)
        if memory.unset is not None and isinstance(memory.reason, UnknownOperation):
            raise memory.reason
        if tensor.dtype != memory.dtype:
            raise UnknownOperation("view", self.builder.line, f"{memory.dtype} is read as {tensor.dtype}")
        if memory.unset is not None and memory.unset[layout.places()].any():
            raise UnknownOperation("empty", self.builder.line, str(memory.reason))
        value = memory.value if layout == memory.layout else self._view(memory, layout)
        return self.builder.negate(value) if tensor.is_neg() else value  # PyTorch reads the negated contents

    def _read_complex(self, tensor: torch.Tensor) -> Complex:
        if self._held(tensor) is None:
            return complex_constant(self.builder, as_array(tensor, self.builder.line))
        both = self.read(parts_of(tensor))
        real, imag = (
            self.builder.take(both, np.arange(part, both.size, 2).reshape(tuple(tensor.shape))) for part in range(2)
        )
        found = Complex(real, imag)
        return conjugate(self.builder, found) if tensor.is_conj() else found

    def note_made(self, tensor: torch.Tensor, site: Site) -> None:
        """Records where the run makes numbers that depend on no weight, as the site of constants that are read
        later."""
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
        self._made[storage._cdata] = StorageWeakRef(storage), site

    @contextmanager
    def _as_made(self, tensor: torch.Tensor) -> Iterator[None]:
        """Returns a context in which constants have the site where a tensor's numbers were made."""
        reference, site = self._made.get(storage_of(tensor), (None, None))
        outer = self.builder.site
        if reference is not None and site is not None and not reference.expired():
            self.builder.site = site
        yield
        self.builder.site = outer

    def spoil(self, tensor: torch.Tensor, error: UnknownOperation) -> None:
        """Marks the contents of a tensor, or of its memory, as unknown."""
        own = parts_of(tensor) if tensor.is_complex() else tensor
        if size := size_of(own):
            zeros = self.builder.constant(np.zeros(size))
            self._assign(own, zeros, Layout((size,), (1,), 0), np.ones(size, bool), error)

    def depends_on_weights(self, tensor: torch.Tensor) -> bool:
        return self._held(tensor) is not None and self.read(tensor).known is None

    def _check_sign(self, tensor: torch.Tensor) -> None:
        """Refuses a view of numbers that PyTorch reads as their negatives."""
        if tensor.is_neg():
            raise UnknownOperation("_neg_view", self.builder.line, "the negative of what memory holds")

    def _held(self, tensor: torch.Tensor) -> _Storage | None:
        memory = self._storages.get(storage_of(tensor))
        return None if memory is None or memory.reference.expired() else memory

    def _assign(self, tensor: torch.Tensor, value: Value, layout: Layout, *unset: Any) -> None:
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
        self._storages[storage._cdata] = _Storage(StorageWeakRef(storage), value, layout, tensor.dtype, *unset)

    def forget(self, tensor: torch.Tensor, reason: str = UNWRITTEN) -> None:
        """Marks a new tensor as unwritten, or as unreadable. Numbers that aren't floats are read from the run."""
        size = size_of(tensor)
        if tensor.is_floating_point() and size:
            zeros = self.builder.constant(np.zeros(size))
            self._assign(tensor, zeros, Layout((size,), (1,), 0), np.ones(size, bool), reason)

    def _write_complex(self, tensor: torch.Tensor, value: Complex) -> None:
        value = conjugate(self.builder, value) if tensor.is_conj() else value
        shape = (*tensor.shape, 1)
        both = [
            self.builder.broadcast(self.builder.reshape(each, (*each.shape, 1)), shape)
            for each in (value.real, value.imag)
        ]
        self.write(parts_of(tensor), self.builder.concatenate(both, len(shape) - 1))

    def write(self, tensor: torch.Tensor, value: Any) -> None:
        """Changes the storage's elements that are the tensor's."""
        self._check_sign(tensor)
        if tensor.is_complex():
            self._write_complex(tensor, as_complex(self.builder, value))
            return
        value = self._as_dtype(tensor, self.builder.broadcast(value, tuple(tensor.shape)))
        layout, size, memory = layout_of(tensor), size_of(tensor), self._held(tensor)
        if value.node is None and memory is None:
            return  # known, as the run has it
        is_whole = layout.dense_order() is not None and tensor.numel() == size
        is_unknown = memory is not None and isinstance(memory.reason, UnknownOperation)
        if is_unknown and not is_whole and not tensor.is_floating_point():
            return  # the rest stays unknown
        if is_whole:
            if value.node is None:
                del self._storages[storage_of(tensor)]  # as the run has it
            else:
                self._assign(tensor, value, layout)
            return
        unset = None
        if memory is None:
            flat = self.builder.constant(as_array(tensor.detach().as_strided((size,), (1,), 0), self.builder.line))
        else:
            if memory.dtype != tensor.dtype:
                raise UnknownOperation("view", self.builder.line, f"{memory.dtype} is written as {tensor.dtype}")
            flat, unset = self._flattened(memory, size), memory.unset
        places = layout.places()
        changed = self.builder.put(flat, places, value, adds=False)
        if unset is not None:
            unset = unset.copy()
            unset[places] = False
        unset = unset if unset is not None and unset.any() else None
        self._assign(tensor, changed, Layout((size,), (1,), 0), unset, UNWRITTEN if memory is None else memory.reason)

    def _as_dtype(self, tensor: torch.Tensor, value: Value) -> Value:
        """Returns a value in the tensor's kind of number. Integers that depend on weights have no rules."""
        if value.node is None and value.known is None:
            raise UnknownOperation("read", self.builder.line, "it reads what it was to write")
        if tensor.is_floating_point():
            return self.builder.as_float(value)
        if tensor.dtype is torch.bool and value.kind in ("bool", "indicator"):
            return value
        if value.table is not None and tensor.dtype is not torch.bool:
            return value
        if value.known is None:
            raise UnknownOperation("cast", self.builder.line, f"{tensor.dtype} that depend on weights")
        return self.builder.constant(as_array(tensor, self.builder.line))

    def _view(self, memory: _Storage, layout: Layout) -> Value:
        kept = [axis for axis, stride in enumerate(layout.strides) if stride != 0 and layout.shape[axis] != 1]
        if len(kept) < len(layout.shape):
            shape, strides = (tuple(part[axis] for axis in kept) for part in (layout.shape, layout.strides))
            inner = Layout(shape, strides, layout.offset)
            sizes = [size if axis in kept else 1 for axis, size in enumerate(layout.shape)]
            value = memory.value if inner == memory.layout else self._view_of_all_axes(memory, inner)
            return self.builder.broadcast(self.builder.reshape(value, sizes), layout.shape)
        return self._view_of_all_axes(memory, layout)

    def _view_of_all_axes(self, memory: _Storage, layout: Layout) -> Value:
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

    def _flattened(self, memory: _Storage, size: int) -> Value:
        order = memory.layout.dense_order()
        assert order is not None
        return self.builder.reshape(self.builder.transpose(memory.value, order), (size,))


def layout_of(tensor: torch.Tensor) -> Layout:
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


def parts_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a complex tensor's memory as real numbers [..., 2]."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        tensor = tensor.detach()
        return torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor)


def storage_of(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata)


def size_of(tensor: torch.Tensor) -> int:
    """Returns the number of elements in the storage."""
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage().nbytes() // tensor.itemsize)


def numbers_of(tensor: torch.Tensor) -> np.ndarray:
    """Returns a copy of the bytes that a strided tensor's elements have."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
        return np.array(flat.view(torch.uint8).numpy())


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Returns a copy of an array in its own type."""
    if array.dtype == bfloat16:
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(np.array(array))


def as_array(tensor: torch.Tensor, line: str) -> np.ndarray:
    """Returns a copy of the run's numbers, in the tensor's own type."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnknownOperation("constant", line, f"a tensor of {tensor.dtype}, {tensor.layout}")
    with torch._C.DisableTorchFunction():
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        if tensor.dtype is torch.bfloat16:
            return np.array(tensor.float().numpy()).astype(bfloat16)
        is_wide = tensor.is_floating_point() and tensor.itemsize == 1
        return np.array((tensor.double() if is_wide else tensor).numpy())
