"""Arrays that are made piece by piece when they are written, so that a checkpoint larger than the memory can be carried
over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

TILE = 256
"""Rows and columns of a matrix that are turned over at a time: source and copy of a tile fit the processor's cache."""


@dataclass(frozen=True, eq=False)
class Deferred:
    """Describes an array that isn't made yet. `np.asarray` makes it, each time anew."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: Callable[[], Iterator[np.ndarray]]
    """Yields the values in memory order, in arrays of any shape."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def astype(self, dtype: Any, copy: bool = True) -> Deferred:
        """Returns the array in another dtype, deferred as well."""
        dtype = np.dtype(dtype)
        return (
            self
            if dtype == self.dtype
            else Deferred(self.shape, dtype, lambda: (piece.astype(dtype) for piece in self.pieces()))
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = np.empty(self.size, self.dtype)
        start = 0
        for piece in self.pieces():
            whole[start : start + piece.size] = piece.reshape(-1)
            start += piece.size
        whole = whole.reshape(self.shape)
        return whole if dtype is None else whole.astype(dtype, copy=False)


def contiguous(array: np.ndarray) -> np.ndarray:
    """Returns the array, copied if need be, contiguous in memory.

    NumPy copies a transposed matrix row by row, each value from another cache line: five times slower than by tiles.
    """
    if array.flags.c_contiguous:
        return array
    copy = np.empty(array.shape, array.dtype)
    strides = [stride if size > 1 else np.inf for stride, size in zip(array.strides, array.shape, strict=True)]
    rows, columns = int(np.argmin(strides)), array.ndim - 1  # the axes along which the array and its copy lie in memory
    if rows == columns:
        copy[...] = array
        return copy
    tile = [slice(None)] * array.ndim
    for i in range(0, array.shape[rows], TILE):
        for j in range(0, array.shape[columns], TILE):
            tile[rows], tile[columns] = slice(i, i + TILE), slice(j, j + TILE)
            copy[tuple(tile)] = array[tuple(tile)]
    return copy
