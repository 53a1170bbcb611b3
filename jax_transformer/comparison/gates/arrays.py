"""Reads named arrays, and saves them as .npz files, in order."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.runtime.files import atomic_write
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.memory import check_fits

Arrays = Mapping[str, np.ndarray]
"""Weights, inputs, activations or gradients by name; of a trace, in execution order."""

NOTES = "__notes__"
"""The entry of a file that holds JSON notes instead of an array."""


class ParityError(ValueError):
    """Raised when two sides can't be compared. The message says what was expected and received, where, and what to do.

    Example:
      >>> from jax_transformer.parity import ParityError, compare
      >>> try:
      ...     compare({"output": "text"}, {"output": "text"})
      ... except ParityError as error:
      ...     print(error)
      candidate: expected names with arrays; 'output' is a str
    """


class ArrayFile(NamedTuple):
    """Holds the content of an .npz file."""

    arrays: dict[str, np.ndarray]
    notes: dict[str, Any]
    """The notes saved with the arrays: the framework; under `widened`, the original dtypes of arrays stored in a wider
    one."""


def save_arrays(path: str | os.PathLike[str], arrays: Arrays, notes: Mapping[str, Any] | None = None) -> None:
    """Writes an .npz, under a temporary name first. Dtypes that NumPy can't store are widened: bfloat16 to float32.

    Raises:
      ParityError: an array has the name of the notes, or holds objects.
    """
    target = Path(path)
    kept = {name: _storable(name, np.asarray(array)) for name, array in arrays.items()}
    if NOTES in kept:
        raise ParityError(f"{target}: an array can't be named {NOTES}")
    notes = notes or {}
    widened = {name: arrays[name].dtype.name for name, array in kept.items() if array.dtype != arrays[name].dtype}
    text = json.dumps({**notes, "widened": notes.get("widened", {}) | widened})
    with atomic_write(target) as temporary, temporary.open("wb") as file:
        np.savez(file, **{NOTES: np.array(text)}, **kept)  # type: ignore[arg-type]


def read_arrays(path: str | os.PathLike[str]) -> ArrayFile:
    """Reads the arrays of an .npz, in order.

    Raises:
      ParityError: there is no such file; it is no .npz, or damaged; it holds objects, whose reading could run code, or
        no arrays.
    """
    try:
        with open(path, "rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ParityError(
                    f"{path}: expected an .npz of named arrays; received a single array. Save it with numpy.savez."
                )
            parts = getattr(file, "zip", None)
            check_fits(sum(part.file_size for part in parts.infolist()) if parts else 0, str(path), ParityError)
            arrays = {name: _read(path, file, name) for name in file.files}
    except MemoryError as error:
        raise ParityError(f"{path}: expected arrays that fit into memory; it claims larger ones ({error})") from None
    except FileNotFoundError:
        raise ParityError(f"{path}: expected an .npz of named arrays; there is no such file") from None
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ParityError(f"{path}: expected an .npz of named arrays; it can't be read ({error})") from None
    except ParityError:
        raise
    except ValueError:  # NumPy's error for other files, which it would unpickle
        raise ParityError(f"{path}: expected an .npz of named arrays; received a file of another kind") from None
    try:
        notes = parse_json(str(arrays.pop(NOTES))) if NOTES in arrays else {}
    except ValueError as error:
        raise ParityError(f"{path}: {NOTES}: expected JSON; received text that isn't ({error})") from None
    if not arrays:
        raise ParityError(f"{path}: expected an .npz of named arrays; it holds none")
    return ArrayFile(arrays, notes)


def _read(path: str | os.PathLike[str], file: Any, name: str) -> np.ndarray:
    try:
        return file[name]
    except ValueError:
        raise ParityError(
            f"{path}: {name}: expected numbers; received an array of objects, which isn't read, as it may run code"
        ) from None


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.hasobject:
        raise ParityError(f"{name}: expected numbers; received an array of objects")
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)  # ml_dtypes register theirs


def named_arrays(side: Mapping[str, Any] | str | os.PathLike[str], what: str) -> ArrayFile:
    """Reads named arrays of NumPy, JAX or PyTorch, or an .npz of them, as NumPy arrays.

    Raises:
      ParityError: a value is no array of numbers; see also `read_arrays`.
    """
    if isinstance(side, str | os.PathLike):
        return read_arrays(side)
    arrays, widened = {}, {}
    for name, value in side.items():
        array, dtype = _as_numpy(value)
        if array.dtype.kind not in "biufc":
            raise ParityError(f"{what}: expected names with arrays; {name!r} is a {type(value).__name__}")
        arrays[name] = array
        if dtype != array.dtype.name:
            widened[name] = dtype
    return ArrayFile(arrays, {"widened": widened})


def _as_numpy(value: Any) -> tuple[np.ndarray, str]:
    """Converts an array of JAX or PyTorch to NumPy, bfloat16 to float32, and returns the name of its dtype too."""
    if hasattr(value, "detach"):
        value, dtype = value.detach().cpu(), str(value.dtype).removeprefix("torch.")
        return (value if hasattr(np, dtype) else value.float()).numpy(), dtype
    array = np.asarray(value)
    is_extended = array.dtype.kind == "V" and array.dtype.fields is None  # one of ml_dtypes
    return (array.astype(np.float32) if is_extended else array), array.dtype.name
