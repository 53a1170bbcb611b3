"""Reads and writes files of named tensors: `.safetensors`, and PyTorch's `.pt`, `.pth`, `.bin`.

Everything the project saves in these formats is saved here.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.runtime.files import atomic_write
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.limits import JSON_BYTES, read_text
from jax_transformer.runtime.memory import check_fits
from jax_transformer.storage.deferred import Deferred
from jax_transformer.storage.safetensors_writer import SAFETENSORS_DTYPES, save_safetensors
from jax_transformer.storage.tensor_mappings import (
    SETTINGS,
    Relocated,
    SafetensorsFile,
    TorchFile,
    as_arrays,
    first_line,
    is_inner_state_dict,
    is_state_dict,
    load_torch,
)
from jax_transformer.storage.tensors import DTYPES, PortingError, Tensors

TORCH_SUFFIXES = (".pt", ".pth", ".bin")
SUFFIXES = (".safetensors", *TORCH_SUFFIXES)
INDEX = ".index.json"
"""End of the name of a file that says which tensor is in which of several."""


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


def read_shards(index: Path, read: Callable[[Path], Tensors]) -> Tensors:
    """Opens the tensors of the files that an index names, in its order.

    Args:
      read: opens one of the files.

    Raises:
      PortingError: an index that names a file elsewhere, one that can't be read, or tensors that aren't in it.
    """
    try:
        places = parse_json(read_text(index, JSON_BYTES))["weight_map"]
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
        if not _is_beside(index, name)
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


def _is_beside(index: Path, name: str) -> bool:
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
