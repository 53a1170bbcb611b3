"""Read weights by name when an operation needs them, from memory or from a file, and move them in their last bit."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.storage.tensor_files import INDEX, read_tensors

FLOATS = ("float64", "float32", "bfloat16", "float16")
"""Dtypes of weights that can be compared."""
CHUNK = 2**21
"""Elements that are moved at a time."""
FILES = ("model.safetensors", f"model.safetensors{INDEX}")
"""Names of a checkpoint in a directory."""


class Nudge(NamedTuple):
    """Says how weights are rounded otherwise: each is moved to the next number of a dtype, at random which."""

    draw: int
    dtype: str = ""
    """float32, also for narrower weights; "": each weight's own."""


@dataclass(frozen=True)
class Weight:
    """Describes a weight before it is read."""

    shape: tuple[int, ...]
    dtype: str
    held: Any = None
    """Its numbers, if the program holds them."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * dtype_of(self.dtype).itemsize


class Weights:
    """Reads the weights of one side.

    Args:
      side: the side's name in messages.
      known: all weights by name.
      read: returns the numbers of a weight that the program doesn't hold; None if it holds all.
    """

    def __init__(self, side: str, known: Mapping[str, Weight], read: Callable[[str], Any] | None = None) -> None:
        self.side, self.known, self._read = side, known, read
        for name, weight in known.items():
            if weight.dtype not in FLOATS:
                raise ParityError(
                    f"{side}: {name} is {weight.dtype}: quantised weights aren't supported; expected weights in one of "
                    f"{', '.join(FLOATS)}, such as those of the model before it was quantised"
                )
        absent = [name for name, weight in known.items() if weight.held is None]
        if absent and read is None:
            raise ParityError(
                f"{side}: {absent[0]} has no numbers; expected Side(…, checkpoint=…), a file or a function that reads "
                "a weight by its name"
            )

    def array(self, name: str, nudge: Nudge | None = None) -> np.ndarray:
        """Reads a weight in its own dtype, or in that of the nudge. Raises ParityError if there is none of its
        shape."""
        weight = self.known[name]
        held = self._from_file(name) if weight.held is None else np.asarray(weight.held)
        if held.shape != weight.shape:
            raise ParityError(f"{self.side}: {name}: expected {list(weight.shape)}; read {list(held.shape)}")
        array = held if held.dtype == dtype_of(weight.dtype) else held.astype(dtype_of(weight.dtype))
        return array if nudge is None else nudged_array(array, nudge, name)

    def _from_file(self, name: str) -> np.ndarray:
        assert self._read is not None
        try:
            return np.asarray(self._read(name))
        except (KeyError, IndexError, OSError, ValueError, TypeError) as error:
            raise ParityError(f"{self.side}: {name} can't be read: {type(error).__name__}: {error}") from error


def dtype_of(name: str) -> np.dtype[Any]:
    """Returns NumPy's dtype of a name, bfloat16 among them."""
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def nudged_array(array: np.ndarray, nudge: Nudge, name: str) -> np.ndarray:
    """Returns a weight with each number moved to the next one, away from zero or towards it at random; in the weight's
    dtype, or in the nudge's. Zeros, and what isn't finite, stay.

    A billion weights take seconds: the next number is the next integer of the same bits.
    """
    dtype = dtype_of(nudge.dtype or array.dtype.name)
    rng = np.random.default_rng([nudge.draw, zlib.crc32(name.encode())])
    found = np.array(array.astype(dtype), order="C").reshape(-1)
    bits = found.view(f"i{dtype.itemsize}")
    sign = bits.dtype.type(np.iinfo(bits.dtype).max)  # all bits but that of the sign
    largest = np.asarray(ml_dtypes.finfo(dtype).max, dtype).view(bits.dtype)
    for start in range(0, bits.size, CHUNK):
        part = bits[start : start + CHUNK]
        ups = np.unpackbits(np.frombuffer(rng.bytes(-(-part.size // 8)), np.uint8), count=part.size)
        size = part & sign
        part += np.where((size > 0) & (size < largest), 2 * ups.astype(np.int8) - 1, 0).astype(bits.dtype)
    return found.reshape(array.shape)


def reader(checkpoint: Any, side: str) -> Callable[[str], Any]:
    """Returns a function that reads a weight by name.

    Args:
      checkpoint: such a function; a file of tensors, an index of several, or a directory with one of these.

    Raises:
      ParityError: no such file.
      PortingError: a file that can't be read.
    """
    if callable(checkpoint):
        return checkpoint
    if not isinstance(checkpoint, str | os.PathLike):
        kind = type(checkpoint).__name__
        raise ParityError(f"{side}: checkpoint: expected a file, a directory or a function; received a {kind}")
    path = Path(checkpoint)
    if path.is_dir():
        found = [path / name for name in FILES if (path / name).is_file()]
        if not found:
            raise ParityError(f"{side}: {path}: expected {' or '.join(FILES)} in it")
        path = found[0]
    tensors = read_tensors(path)

    def read(name: str) -> Any:
        return tensors[name if name in tensors else name.replace("/", ".")]

    return read
