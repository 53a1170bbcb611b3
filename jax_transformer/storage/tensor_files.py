"""Reading and writing files of named tensors: `.safetensors`, and PyTorch's `.pt`, `.pth`, `.bin`.

Everything the project saves in these formats is saved here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.runtime.files import atomic_write
from jax_transformer.storage.deferred import Deferred
from jax_transformer.storage.safetensors_writer import SAFETENSORS_DTYPES, save_safetensors
from jax_transformer.storage.tensors import DTYPES, PortingError, Tensors

TORCH_SUFFIXES = (".pt", ".pth", ".bin")
SUFFIXES = (".safetensors", *TORCH_SUFFIXES)
SETTINGS = "jax_transformer"
"""Name of this project's entry in a file's metadata."""
INDEX = ".index.json"
"""End of the name of a file that says which tensor is in which of several."""
MAPPED_BYTES = {"safetensors": 8 * 2**20, "torch": 32 * 2**20}
"""How much is read of a file before it is mapped into memory anew, about: what was read of a mapping stays part of the
process's memory. To open a torch file again takes longer, since it is unpickled."""


def read_tensors(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Opens a file's tensors by name; each is read from the disk on access. A torch file with other content returns its
    dict.

    For a checkpoint in several files, pass the index, such as model.safetensors.index.json. Torch files are only read
    with weights_only=True: nothing in them is ever executed.

    Raises:
      PortingError: no such file, an unknown suffix, a truncated or foreign file, a torch file that holds no dict; an
        index that names a file elsewhere, one that isn't there, or tensors that aren't in it.
    """
    path = Path(path)
    if not path.name.endswith(INDEX):
        _check_suffix(path)
    if not path.is_file():
        raise PortingError(
            f"{path}: {'is no file' if path.exists() else 'no such file'}; expected one of "
            f"{', '.join((*SUFFIXES, INDEX))}"
        )
    if path.name.endswith(INDEX):
        return _read_shards(path)
    if path.suffix == ".safetensors":
        return SafetensorsFile(path)
    content = _load_torch(path)
    if not isinstance(content, Mapping):
        raise PortingError(f"{path}: expected a state_dict, names with tensors; received {type(content).__name__}")
    if not zipfile.is_zipfile(path):  # read, and not mapped
        return as_arrays(content, str(path)) if is_state_dict(content) else content
    if is_state_dict(content):
        return TorchFile(path, content)
    return {
        key: TorchFile(path, value, key) if _is_inner_state_dict(value) else value for key, value in content.items()
    }


def map_tensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Maps the tensors of a `.safetensors` file as read-only views; nothing is read before use.

    Raises:
      PortingError: see `read_tensors`.
    """
    path = Path(path)
    names = SafetensorsFile(path)  # checks the header
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    bytes_ = (
        np.memmap(path, np.uint8, "r", offset=8 + length) if path.stat().st_size > 8 + length else np.empty(0, np.uint8)
    )
    kinds = {SAFETENSORS_DTYPES[name]: np.dtype(name if name != "bfloat16" else _bfloat16()) for name in DTYPES}
    odd = [name for name in names if header[name]["dtype"] not in kinds]
    if odd:
        raise PortingError(f"{path}: tensor {odd[0]} has a dtype that no parameter has ({header[odd[0]]['dtype']})")
    tensors = {}
    for name in names:
        start, end = header[name]["data_offsets"]
        tensors[name] = np.asarray(bytes_[start:end]).view(kinds[header[name]["dtype"]]).reshape(header[name]["shape"])
    return tensors


def _bfloat16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16


def read_array(path: str | os.PathLike[str]) -> np.ndarray:
    """Reads the only array of a file: .npy, or a file that `read_tensors` reads, with a bare tensor or one name.

    Raises:
      PortingError: see `read_tensors`; a file with several arrays, or none.
    """
    path = Path(path)
    if path.suffix == ".npy":
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise PortingError(f"{path}: truncated, or no .npy file ({_first_line(error)})") from None
    content = _load_torch(path) if path.suffix in TORCH_SUFFIXES and path.is_file() else read_tensors(path)
    named = content if isinstance(content, Mapping) else {"": content}
    if len(named) != 1:
        raise PortingError(f"{path}: expected one array; received {len(named)} named ones")
    return next(iter(as_arrays(named, str(path)).values()))


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray | Deferred], settings: str | None = None
) -> str:
    """Writes named arrays: under another name first, which then replaces `path`, so that no half-written file ever has
    that name.

    Args:
      settings: a text to keep beside the tensors, which `settings_of` reads: in the header's metadata (.safetensors),
        or in the attribute `_metadata` that PyTorch keeps on state_dicts.

    Returns:
      The file's sha256.

    Raises:
      PortingError: an unknown suffix, or no such directory.
    """
    path = Path(path)
    _check_suffix(path)
    if not path.parent.is_dir():
        raise PortingError(f"{path}: there is no directory {path.parent}")
    with atomic_write(path, durable=True) as temporary:
        if path.suffix == ".safetensors":
            return save_safetensors(tensors, temporary, None if settings is None else {SETTINGS: settings})
        _save_torch(tensors, temporary, settings)
        with temporary.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def _read_shards(index: Path) -> Tensors:
    """Opens the tensors of the files that an index names, in its order."""
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
            raise ValueError("weight_map names no files")
    except (ValueError, KeyError, TypeError) as error:
        raise PortingError(
            f"{index}: expected JSON with a weight_map, from tensors to files; received {_first_line(error)}"
        ) from None
    names = dict.fromkeys(places.values())
    elsewhere = [name for name in names if Path(name).name != name or name in ("", ".", "..") or name.endswith(INDEX)]
    if elsewhere:
        raise PortingError(
            f"{index}: expected names of files beside it, without folders; received {', '.join(map(repr, elsewhere))}"
        )
    shards = {}
    problems = []
    for name in names:
        try:
            shards[name] = as_arrays(read_tensors(index.with_name(name)), str(index.with_name(name)))
        except PortingError as error:
            problems.append(str(error))
    problems += [
        f"{place}: no tensor {name}" for name, place in places.items() if place in shards and name not in shards[place]
    ]
    problems += [
        f"{place}: {name} isn't in the index"
        for place, shard in shards.items()
        for name in shard
        if places.get(name) != place
    ]
    if problems:
        raise PortingError(f"{index}: expected {len(places)} tensors in {len(names)} files", problems)
    return ShardedFiles({name: shards[place] for name, place in places.items()})


class ShardedFiles(Mapping[str, np.ndarray]):
    """Presents the tensors of several files; each access reads one."""

    def __init__(self, homes: Mapping[str, Tensors]) -> None:
        """Stores `homes`, the file of each tensor."""
        self._homes = homes

    def __getitem__(self, name: str) -> np.ndarray:
        return self._homes[name][name]

    def __contains__(self, name: object) -> bool:  # without reading it
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


class SafetensorsFile(Mapping[str, np.ndarray]):
    """Presents the tensors of one `.safetensors` file; each access reads one, as a new array."""

    def __init__(self, path: Path) -> None:
        """Reads the header only. Raises PortingError if it doesn't describe the file."""
        self.path = path
        self._file, self._bytes_read = self._open(), 0
        self._names: dict[str, None] = dict.fromkeys(self._file.offset_keys())

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        try:
            array = self._file.get_tensor(name)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise PortingError(
                f"{self.path}: tensor {name} has a dtype that NumPy doesn't have ({_first_line(error)})"
            ) from None
        self._bytes_read += array.nbytes
        if self._bytes_read > MAPPED_BYTES["safetensors"]:
            self._file, self._bytes_read = self._open(), 0
        return array

    @property
    def settings(self) -> str | None:
        """The text that `write_tensors` kept in the header."""
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
        except (SafetensorError, OSError) as error:
            raise PortingError(f"{self.path}: truncated, or no safetensors file ({_first_line(error)})") from None


class StateDict(Mapping[str, np.ndarray]):
    """Presents a state_dict whose values become NumPy arrays on access."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = tensors

    @property
    def settings(self) -> str | None:
        """The text that `write_tensors` kept on the state_dict."""
        metadata = getattr(self._tensors, "_metadata", None)
        entry = metadata.get(SETTINGS) if isinstance(metadata, Mapping) else None
        return entry.get("text") if isinstance(entry, Mapping) else None

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return _as_array(self._tensors[name])
        except TypeError as error:
            raise PortingError(f"tensor {name} has a dtype that NumPy doesn't have ({_first_line(error)})") from None

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
            content = _load_torch(self._path)
            self._tensors, self._bytes_read = content if self._key is None else content[self._key], 0
        return array


def as_arrays(state_dict: Mapping[str, Any], what: str = "state_dict") -> Tensors:
    """Presents a state_dict of torch tensors, NumPy or JAX arrays as NumPy arrays, without copies of those in main
    memory.

    Raises:
      PortingError: the mapping isn't flat, from names to arrays.
    """
    if isinstance(state_dict, SafetensorsFile | ShardedFiles | StateDict):
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
    """Returns the text that `write_tensors` kept beside these tensors, or None."""
    return tensors.settings if isinstance(tensors, SafetensorsFile | StateDict) else None


def is_state_dict(content: Mapping[str, Any]) -> bool:
    """Returns whether it is a flat mapping from names to tensors or arrays."""
    if isinstance(content, SafetensorsFile | ShardedFiles | StateDict):
        return True
    return all(_is_named_tensor(name, value) for name, value in content.items())


def _is_inner_state_dict(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and is_state_dict(value)


def _is_named_tensor(name: object, value: object) -> bool:
    return isinstance(name, str) and hasattr(value, "shape") and hasattr(value, "dtype")


def _as_array(value: Any) -> np.ndarray:
    if not hasattr(value, "detach"):
        return np.asarray(value)
    import torch

    tensor = value.detach().cpu()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    import ml_dtypes

    return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)  # NumPy has no bfloat16 of its own


def _check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise PortingError(
            f"{path}: expected a name that ends in {', '.join(SUFFIXES)}; received {path.suffix or 'no suffix'}"
        )


def _load_torch(path: Path) -> Any:
    import torch

    try:
        # only the zip format, torch's own since 1.6, can be mapped into memory
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # foreign bytes, unpickled, end in any exception
        wanted = _wanted_code(path, error)
        if wanted:
            raise PortingError(
                f"{path}: holds Python objects beside tensors ({', '.join(wanted)}), which are not loaded; save "
                "model.state_dict() alone"
            ) from None
        raise PortingError(
            f"{path}: truncated, or no torch file ({type(error).__name__}: {_first_line(error)})"
        ) from None
    return content


def _wanted_code(path: Path, error: Exception) -> list[str]:
    """Returns the names that a torch file would import and call, as far as they show without doing so."""
    import torch

    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # the old format, or foreign bytes
        return re.findall(r"(?i)unsupported (?:global|class):?\s+(?:GLOBAL )?([A-Za-z_][\w.]*)", str(error))


def _save_torch(arrays: Mapping[str, Any], path: Path, settings: str | None) -> None:
    import torch

    converted: dict[int, torch.Tensor] = {}  # the same array under two names becomes one tensor: tied in the file too
    for array in arrays.values():
        if id(array) in converted:
            continue
        own = np.asarray(array, order="C")
        own = own if own.flags.writeable else own.copy()  # torch has no read-only tensors
        is_bfloat16 = own.dtype.name == "bfloat16"
        converted[id(array)] = (
            torch.from_numpy(own.view(np.uint16)).view(torch.bfloat16) if is_bfloat16 else torch.from_numpy(own)
        )
    state_dict = OrderedDict((name, converted[id(array)]) for name, array in arrays.items())
    if settings is not None:  # under a name that no module has: load_state_dict passes it by
        state_dict._metadata = {SETTINGS: {"text": settings}}  # type: ignore[attr-defined]
    torch.save(state_dict, path)


def _first_line(error: BaseException) -> str:
    """Returns an exception's message up to the end of its first sentence."""
    return (str(error).splitlines() or ["no message"])[0].split(". ")[0]
