"""Reads flat arrays from files piece by piece.

Unlike a memory map, which would crash the process, reading raises an error for a truncated or unreadable file.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jax_transformer.data.text_files import CorpusError


class StoredArray:
    """Presents a file of numbers as a read-only array of one axis; indexing reads from the file, and nothing is kept.

    Example:
      >>> import tempfile
      >>> from jax_transformer.data.stored_array import StoredArray
      >>> with tempfile.NamedTemporaryFile() as file:
      ...     np.arange(9, dtype="<i4").tofile(file.name)
      ...     array = StoredArray(file.name, "<i4")
      ...     array[2], array[3:5].tolist(), array[[8, 0, 1]].tolist(), np.diff(array).sum()
      (np.int32(2), [3, 4], [8, 0, 1], np.int64(8))
    """

    def __init__(self, path: str | os.PathLike[str], dtype: npt.DTypeLike) -> None:
        """Opens the file. Raises CorpusError if it can't be read."""
        self.path, self.dtype = Path(path), np.dtype(dtype)
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from None
        weakref.finalize(self, os.close, self._file)
        self._stamp = self._stamped()
        self._size = self._stamp[0] // self.dtype.itemsize

    def __len__(self) -> int:
        return self._size

    @property
    def shape(self) -> tuple[int]:
        return (self._size,)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Returns the whole array in memory."""
        return self[:].astype(dtype or self.dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        """Returns the element, slice (of step 1) or elements, in memory.

        Raises:
          CorpusError: the file was changed since it was opened, or can't be read.
          IndexError: there is no such element.
        """
        if self._stamped() != self._stamp:
            raise self._failed("another one: it was changed since")
        if isinstance(key, slice):
            start, stop, step = key.indices(self._size)
            assert step == 1
            return self._read(start, max(stop - start, 0))
        if np.ndim(key) == 0:
            return self._read(range(self._size)[key], 1)[0]
        return self._gather(np.asarray(key))

    def _gather(self, places: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns elements by their indices; neighbours are read together."""
        if places.dtype == np.bool_:
            places = np.flatnonzero(places)
        if not places.size:
            return np.zeros(0, self.dtype)
        if places.min() < 0 or places.max() >= self._size:
            raise IndexError(f"{self.path}: expected places from 0 to {self._size - 1}")
        begins = np.flatnonzero(np.diff(places, prepend=places[0] - 2) != 1)
        return self._read(places[begins], np.diff(begins, append=len(places)))

    def _read(self, starts: npt.ArrayLike, counts: npt.ArrayLike) -> npt.NDArray[Any]:
        """Reads runs of elements, and concatenates them."""
        size = self.dtype.itemsize
        begins, sizes = (np.atleast_1d(part) * size for part in (starts, counts))
        result = np.empty(int(sizes.sum()), np.uint8)
        whole, file, done = memoryview(result.data), self._file, 0
        try:
            for at, length in zip(begins.tolist(), sizes.tolist(), strict=True):
                end = done + length
                while done < end:
                    received = os.preadv(file, [whole[done:end]], at + length - (end - done))
                    if not received:
                        raise self._failed("one that was cut")
                    done += received
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from None
        return result.view(self.dtype)

    def _stamped(self) -> tuple[int, int]:
        """Returns the file's size and modification time."""
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    def _failed(self, what: str) -> CorpusError:
        return CorpusError(
            f"{self.path}: expected the prepared corpus as it was opened; received {what}. Run again, or resume the "
            "run: the corpus is prepared anew where it is damaged."
        )
