"""Tensors of files and state_dicts as mappings from names to NumPy arrays, read on access."""

from __future__ import annotations

import argparse
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.runtime.limits import HEADER_BYTES, TENSORS
from jax_transformer.storage.tensors import PortingError, Tensors
from jax_transformer.storage.torch_files import MOST_PROTOCOL, check_archive, check_tensors, pickle_protocol

SETTINGS = "jax_transformer"
"""Name of this project's entry in a file's metadata."""


MAPPED_BYTES = {"safetensors": 8 * 2**20, "torch": 32 * 2**20}
"""Bytes read of a file, about, before it is mapped into memory anew: pages that were read stay part of the process's
memory. To open a torch file again takes longer, since it is unpickled."""


class Relocated(Mapping[str, np.ndarray]):
    """Presents tensors of one or several other mappings, under their names or new ones; each access reads one."""

    def __init__(self, places: Mapping[str, tuple[Tensors, str]]) -> None:
        """Stores `places`, the mapping that has each tensor and its name there."""
        self._places = places

    def __getitem__(self, name: str) -> np.ndarray:
        tensors, name_there = self._places[name]
        return tensors[name_there]

    def __contains__(self, name: object) -> bool:  # without reading it
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class SafetensorsFile(Mapping[str, np.ndarray]):
    """Presents the tensors of one `.safetensors` file; each access reads one, as a new array."""

    def __init__(self, path: Path) -> None:
        """Reads the header only. Raises PortingError if it doesn't describe the file."""
        self.path = path
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if length < path.stat().st_size:  # shorter ones are truncated, or of another kind
            HEADER_BYTES.check(length, os.fspath(path), PortingError)
        self._file, self._bytes_read = self._open(), 0
        TENSORS.check(len(self._file.keys()), os.fspath(path), PortingError)
        self._names: dict[str, None] = dict.fromkeys(self._file.offset_keys())

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        try:
            array = self._file.get_tensor(name)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise PortingError(
                f"{self.path}: tensor {name} has a dtype that NumPy doesn't have ({first_line(error)})"
            ) from None
        self._bytes_read += array.nbytes
        if self._bytes_read > MAPPED_BYTES["safetensors"]:
            self._file, self._bytes_read = self._open(), 0
        return array

    @property
    def settings(self) -> str | None:
        """Returns the text that `write_tensors` kept in the header."""
        text: str | None = (self._file.metadata() or {}).get(SETTINGS)
        return text

    def __contains__(self, name: object) -> bool:  # without reading it
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _open(self) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            return safe_open(self.path, framework="np")
        except (SafetensorError, OSError, MemoryError) as error:  # the last: it can't be mapped
            raise PortingError(f"{self.path}: truncated, or no safetensors file ({first_line(error)})") from None


class StateDict(Mapping[str, np.ndarray]):
    """Presents a state_dict whose values become NumPy arrays on access."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = tensors

    @property
    def settings(self) -> str | None:
        """Returns the text that `write_tensors` kept on the state_dict."""
        metadata = getattr(self._tensors, "_metadata", None)
        entry = metadata.get(SETTINGS) if isinstance(metadata, Mapping) else None
        return entry.get("text") if isinstance(entry, Mapping) else None

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return as_array(self._tensors[name])
        except TypeError as error:
            raise PortingError(f"tensor {name} has a dtype that NumPy doesn't have ({first_line(error)})") from None

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class TorchFile(StateDict):
    """Presents a state_dict in a torch file that is mapped into memory; each access reads one tensor, as a read-only
    array."""

    def __init__(self, path: Path, tensors: Mapping[str, Any], key: str | None = None) -> None:
        """Stores the loaded `tensors`, and their `key` in the file's dict."""
        super().__init__(tensors)
        self._path, self._key, self._bytes_read = path, key, 0
        self._most = max(
            MAPPED_BYTES["torch"], path.stat().st_size // 8
        )  # a large one is opened at most 8 times in one reading

    def __getitem__(self, name: str) -> np.ndarray:
        array = super().__getitem__(name)
        self._bytes_read += array.nbytes
        if self._bytes_read > self._most:
            content = load_torch(self._path)
            self._tensors, self._bytes_read = content if self._key is None else content[self._key], 0
        return array


def as_arrays(state_dict: Mapping[str, Any], what: str = "state_dict") -> Tensors:
    """Presents a state_dict of torch tensors, NumPy or JAX arrays as NumPy arrays, without copies of those in main
    memory.

    Raises:
      PortingError: the mapping isn't flat, from names to arrays.
    """
    if isinstance(state_dict, SafetensorsFile | Relocated | StateDict):
        return state_dict
    odd = [name for name, value in state_dict.items() if not _is_named_tensor(name, value)]
    if odd:
        kinds = ", ".join(f"{name!r} ({type(state_dict[name]).__name__})" for name in odd[:5]) + (
            ", …" if len(odd) > 5 else ""
        )
        raise PortingError(
            f"{what}: expected a state_dict, names with tensors (save model.state_dict() alone); received also {kinds}"
        )
    return StateDict(state_dict)


def settings_of(tensors: Tensors) -> str | None:
    """Returns the text that `write_tensors` kept with these tensors, or None."""
    return tensors.settings if isinstance(tensors, SafetensorsFile | StateDict) else None


def is_state_dict(content: Mapping[str, Any]) -> bool:
    """Returns whether it is a flat mapping from names to tensors or arrays."""
    if isinstance(content, SafetensorsFile | Relocated | StateDict):
        return True
    return all(_is_named_tensor(name, value) for name, value in content.items())


def is_inner_state_dict(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and is_state_dict(value)


def _is_named_tensor(name: object, value: object) -> bool:
    return isinstance(name, str) and hasattr(value, "shape") and hasattr(value, "dtype")


def as_array(value: Any) -> np.ndarray:
    """Returns a torch tensor, or any array, as a NumPy array, without a copy of one in main memory."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    import torch

    tensor = value.detach().cpu()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    import ml_dtypes

    return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)  # NumPy has no bfloat16 of its own


def load_torch(path: Path) -> Any:
    import torch

    check_archive(path)
    try:
        # only the zip format, torch's own since 1.6, can be mapped into memory
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")  # any protocol that loads is right
            with torch.serialization.safe_globals(
                [argparse.Namespace]
            ):  # options, as fairseq keeps: values and no code
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # foreign bytes, unpickled, end in any exception
        wanted = _wanted_code(path, error)
        if wanted:
            raise PortingError(
                f"{path}: holds Python objects as well as tensors ({', '.join(wanted)}), which are not loaded; save "
                "model.state_dict() alone"
            ) from None
        protocol = pickle_protocol(path)
        if MOST_PROTOCOL < protocol <= pickle.HIGHEST_PROTOCOL:
            raise PortingError(
                f"{path}: expected pickle protocol 2, the default of torch.save; received {protocol}, which torch "
                "loads only with weights_only=False; save it again without pickle_protocol"
            ) from None
        raise PortingError(
            f"{path}: truncated, or no torch file ({type(error).__name__}: {first_line(error)})"
        ) from None
    check_tensors(path, content)
    return content


def _wanted_code(path: Path, error: Exception) -> list[str]:
    """Returns the names that a torch file would import and call, as far as they show without doing so."""
    import torch

    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # the old format, or foreign bytes
        return re.findall(r"(?i)unsupported (?:global|class):?\s+(?:GLOBAL )?([A-Za-z_][\w.]*)", str(error))


def first_line(error: BaseException) -> str:
    """Returns an exception's message up to the end of its first sentence."""
    return (str(error).splitlines() or ["no message"])[0].split(". ")[0]
