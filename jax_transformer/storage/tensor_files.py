"""Reads and writes files of named tensors: `.safetensors`, and PyTorch's `.pt`, `.pth`, `.bin`.

Everything the project saves in these formats is saved here. Tensors of files and state_dicts are mappings from names to
NumPy arrays, read on access.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.runtime.files import atomic_write
from jax_transformer.runtime.json_text import parse_json, read_json
from jax_transformer.runtime.limits import (
    HEADER_BYTES,
    PICKLE_BYTES,
    TENSOR_FREE_BYTES,
    TENSOR_RATIO,
    TENSORS,
)
from jax_transformer.runtime.memory import check_fits
from jax_transformer.storage.deferred import Deferred
from jax_transformer.storage.safetensors_writer import SAFETENSORS_DTYPES, save_safetensors
from jax_transformer.storage.tensors import DTYPES, Placed, PortingError, Tensors

TORCH_SUFFIXES = (".pt", ".pth", ".bin")
SUFFIXES = (".safetensors", *TORCH_SUFFIXES)
INDEX = ".index.json"
"""End of the name of a file that says which tensor is in which of several."""
SETTINGS = "jax_transformer"
"""Name of this project's entry in a file's metadata."""
MAPPED_BYTES = {"safetensors": 8 * 2**20, "torch": 32 * 2**20}
"""Bytes read of a file, about, before it is mapped into memory anew: pages that were read stay part of the process's
memory. To open a torch file again takes longer, since it is unpickled."""
STOOD_FOR = ("fairseq.", "omegaconf.", "typing.")
"""Beginnings of the classes in whose place a torch file's other content may hold `Unread`: counters and settings."""
MOST_PROTOCOL = 3
"""The newest pickle protocol that torch.load reads with weights_only. torch.save writes 2 by default."""


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
        return read_shards(path, lambda shard: as_arrays(read_tensors(shard), str(shard)))
    if path.suffix == ".safetensors":
        return SafetensorsFile(path)
    content = load_torch(path)
    if not isinstance(content, Mapping):
        raise PortingError(f"{path}: expected a state_dict, names with tensors; received {type(content).__name__}")
    if not zipfile.is_zipfile(path):  # read, and not mapped
        return as_arrays(content, str(path)) if is_state_dict(content) else content
    if is_state_dict(content):
        return TorchFile(path, content)
    return {key: TorchFile(path, value, key) if is_inner_state_dict(value) else value for key, value in content.items()}


def read_shards(index: Path, read: Callable[[Path], Tensors]) -> Tensors:
    """Opens the tensors of the files that an index names, in its order.

    Args:
      read: opens one of the files.

    Raises:
      PortingError: an index that names a file elsewhere, one that can't be read, or tensors that aren't in it.
    """
    try:
        places = read_json(index)["weight_map"]
        if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
            raise ValueError("weight_map names no files")
    except (ValueError, KeyError, TypeError) as error:
        raise PortingError(
            f"{index}: expected JSON with a weight_map, from tensors to files; received {first_line(error)}"
        ) from None
    names = dict.fromkeys(places.values())
    elsewhere = [name for name in names if Path(name).name != name or name in ("", ".", "..") or name.endswith(INDEX)]
    if elsewhere:
        raise PortingError(
            f"{index}: expected names of files in its own folder; received {', '.join(map(repr, elsewhere))}"
        )
    problems = [
        f"{name}: a link to {os.path.realpath(index.with_name(name))}, outside of the directory"
        for name in names
        if not _is_in_folder(index, name)
    ]
    if problems:
        raise PortingError(f"{index}: expected files in its folder", problems)
    shards = {}
    for name in names:
        try:
            shards[name] = read(index.with_name(name))
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
    return Relocated({name: (shards[place], name) for name, place in places.items()})


def _is_in_folder(index: Path, name: str) -> bool:
    """Returns whether a file is in the index's directory, wherever links lead. The Hub's cache, in which snapshots are
    folders of links, keeps files in a folder of its own."""
    folder, file = Path(os.path.realpath(index.parent)), Path(os.path.realpath(index.with_name(name)))
    blobs = folder.parent.parent / "blobs"
    return file.is_relative_to(folder) or (folder.parent.name == "snapshots" and file.parent == blobs)


def _check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise PortingError(
            f"{path}: expected a name that ends in {', '.join(SUFFIXES)}; received {path.suffix or 'no suffix'}"
        )


def map_tensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Maps the tensors of a `.safetensors` file as read-only views; nothing is read before use.

    Raises:
      PortingError: see `read_tensors`.
    """
    path = Path(path)
    names = SafetensorsFile(path)  # checks the header
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = parse_json(file.read(length))
    bytes_ = (
        np.memmap(path, np.uint8, "r", offset=8 + length) if path.stat().st_size > 8 + length else np.empty(0, np.uint8)
    )
    kinds = {SAFETENSORS_DTYPES[name]: numpy_dtype(name) for name in DTYPES}
    odd = [name for name in names if header[name]["dtype"] not in kinds]
    if odd:
        raise PortingError(f"{path}: tensor {odd[0]} has a dtype that no parameter has ({header[odd[0]]['dtype']})")
    tensors = {}
    for name in names:
        start, end = header[name]["data_offsets"]
        tensors[name] = np.asarray(bytes_[start:end]).view(kinds[header[name]["dtype"]]).reshape(header[name]["shape"])
    return tensors


def numpy_dtype(name: str) -> np.dtype:
    """Returns NumPy's dtype of this name, which for bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def read_array(path: str | os.PathLike[str]) -> np.ndarray:
    """Reads the only array of a file: .npy, or a file that `read_tensors` reads, with a bare tensor or one name.

    Raises:
      PortingError: see `read_tensors`; a file with several arrays, or none.
    """
    path = Path(path)
    if path.suffix == ".npy":
        try:
            check_fits(path.stat().st_size if path.exists() else 0, str(path), PortingError)
            return np.load(path, allow_pickle=False)
        except MemoryError as error:
            raise PortingError(f"{path}: expected an array that fits into memory ({first_line(error)})") from None
        except PortingError:
            raise
        except (OSError, ValueError) as error:
            raise PortingError(f"{path}: truncated, or no .npy file ({first_line(error)})") from None
    content = load_torch(path) if path.suffix in TORCH_SUFFIXES and path.is_file() else read_tensors(path)
    named = content if isinstance(content, Mapping) else {"": content}
    if len(named) != 1:
        raise PortingError(f"{path}: expected one array; received {len(named)} named ones")
    return next(iter(as_arrays(named, str(path)).values()))


# --- tensors read on access


class Relocated(Placed):
    """Presents tensors of one or several other mappings, under their names or new ones; each access reads one."""

    def __init__(self, places: Mapping[str, tuple[Tensors, str]]) -> None:
        """Stores `places`, the mapping that has each tensor and its name there."""
        self._places = places

    def __getitem__(self, name: str) -> np.ndarray:
        tensors, name_there = self._places[name]
        return tensors[name_there]


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
    """Presents a state_dict of torch tensors, NumPy or JAX arrays as NumPy arrays, without copying arrays in main
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


# --- torch files


class Unread:
    """Stands for an object of a program that isn't imported: it holds what was pickled of it, and does nothing."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


def load_torch(path: Path, stood_for: tuple[str, ...] = ()) -> Any:
    """Loads a torch file with weights_only: nothing in it is executed.

    Args:
      stood_for: names of classes in whose place it gets `Unread`.

    Raises:
      PortingError: a truncated or foreign file, or one with objects that aren't loaded.
    """
    import torch

    check_archive(path)
    allowed: list[Any] = [argparse.Namespace]  # options, as fairseq keeps: values and no code
    allowed += [(Unread, name) for name in stood_for]
    try:
        # only the zip format, torch's own since 1.6, can be mapped into memory
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")  # any protocol that loads is right
            with torch.serialization.safe_globals(allowed):
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # foreign bytes, unpickled, end in any exception
        wanted = [name for name in _wanted_code(path, error) if name not in (*stood_for, "argparse.Namespace")]
        if wanted and all(name.startswith(STOOD_FOR) for name in wanted):
            return load_torch(path, (*stood_for, *wanted))
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


def check_archive(path: Path) -> None:
    """Checks the parts of a file in torch's zip format before it is unpickled.

    Raises:
      PortingError: a part is compressed: torch.save never does that, torch.load maps what it finds as if it weren't,
        and a small file could become any number of bytes; the pickled names and shapes exceed PICKLE_BYTES.
    """
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return  # torch.load reports the error
    odd = [part.filename for part in parts if part.compress_type != zipfile.ZIP_STORED]
    if odd:
        raise PortingError(
            f"{path}: expected parts as torch.save stores them; received a compressed {odd[0]}. Unpack the archive, "
            "and pack it without compression (zip -0)"
        )
    for part in parts:
        if part.filename.endswith("data.pkl"):
            PICKLE_BYTES.check(part.file_size, f"{path}: {part.filename}", PortingError)


def pickle_protocol(path: Path) -> int:
    """Returns the protocol in which the names and shapes of a torch file are pickled; 0 where the file doesn't say."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                name = next((name for name in archive.namelist() if name.endswith("data.pkl")), "")
                with archive.open(name) as part:
                    head = part.read(2)
        else:
            with path.open("rb") as file:
                head = file.read(2)
    except (
        zipfile.BadZipFile,
        OSError,
        ValueError,
        KeyError,
        NotImplementedError,
        RuntimeError,
    ):  # the last: encrypted
        return 0
    return head[1] if len(head) == 2 and head[:1] == pickle.PROTO else 0


def check_tensors(path: Path, content: Any) -> None:
    """Checks the tensors that a file gave. None of their values has been read yet.

    Raises:
      PortingError: there are more than TENSORS; they have more bytes than TENSOR_RATIO times the file's, since each
        value of the file may stand for any number of theirs; a dict holds itself.
    """
    most, total = max(TENSOR_FREE_BYTES, TENSOR_RATIO.value * os.path.getsize(path)), 0
    for count, (name, tensor) in enumerate(_tensors(path, content, (), frozenset()), start=1):
        TENSORS.check(count, os.fspath(path), PortingError, or_more=True)
        total += tensor.numel() * tensor.element_size()
        if total > most:
            raise PortingError(
                f"{path}: {name} {list(tensor.shape)}: expected tensors of at most {most:,} bytes in all, "
                f"{TENSOR_RATIO.value} times the file's; received {total:,} or more, of which most repeat. If that is "
                f"meant, set {TENSOR_RATIO.variable}."
            )


def _tensors(path: Path, content: Any, keys: tuple[str, ...], around: frozenset[int]) -> Iterator[tuple[str, Any]]:
    """Yields the tensors in a dict, and in dicts in it, with their names."""
    if hasattr(content, "element_size"):
        yield ".".join(keys) or "the tensor", content
    elif isinstance(content, Mapping):
        if id(content) in around or len(around) > 50:
            raise PortingError(
                f"{path}: {'.'.join(keys[:5])}: expected dicts of tensors; received one that holds itself"
            )
        for key, value in content.items():
            yield from _tensors(path, value, (*keys, str(key)), around | {id(content)})


# --- writing


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray | Deferred], settings: str | None = None
) -> str:
    """Writes named arrays: under another name first, which then replaces `path`, so that no half-written file ever has
    that name.

    Args:
      settings: a text to keep with the tensors, which `settings_of` reads: in the header's metadata (.safetensors),
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
        _save_torch(state_dict_of_tensors(tensors, settings), temporary)
        with temporary.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def write_torch(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Writes a dict of anything that torch.load reads with weights_only=True, its arrays as tensors, as `write_tensors`
    writes files."""
    with atomic_write(Path(path), durable=True) as temporary:
        _save_torch(_with_tensors(content, {}), temporary)


def state_dict_of_tensors(arrays: Mapping[str, np.ndarray | Deferred], settings: str | None = None) -> dict[str, Any]:
    """Returns torch tensors of arrays; the same array under two names becomes one tensor, tied in a file too.

    Args:
      settings: a text that the state_dict keeps under a name that no module has: load_state_dict passes it by.
    """
    state_dict = OrderedDict(_with_tensors(arrays, {}))
    if settings is not None:
        state_dict._metadata = {SETTINGS: {"text": settings}}  # type: ignore[attr-defined]
    return state_dict


def _with_tensors(value: Any, made: dict[int, Any]) -> Any:
    """Returns a value with a tensor in place of each array in it.

    Args:
      made: the tensors so far, by the identity of their arrays.
    """
    if hasattr(value, "shape") and not hasattr(value, "detach"):
        if id(value) not in made:
            made[id(value)] = _tensor(np.asarray(value, order="C"))
        return made[id(value)]
    if isinstance(value, OrderedDict) or not isinstance(value, Mapping | list | tuple):
        return value  # one of `state_dict_of_tensors`, or anything else that isn't an array
    if isinstance(value, Mapping):
        return {key: _with_tensors(one, made) for key, one in value.items()}
    return type(value)(_with_tensors(one, made) for one in value)


def _tensor(array: np.ndarray) -> Any:
    import torch

    own = array if array.flags.writeable else array.copy()  # torch has no read-only tensors
    if own.dtype.name == "bfloat16":
        return torch.from_numpy(own.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(own)


def _save_torch(content: Mapping[str, Any], path: Path) -> None:
    import torch

    with path.open("wb") as file:  # by its path, it would keep the temporary name inside
        try:
            torch.save(content, file)
        except RuntimeError as error:  # ending the archive failed because a write had failed before
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None
