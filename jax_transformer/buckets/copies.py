"""Copies files from buckets into a cache on this machine, once for each version of a file.

files/DIGEST            a file's content; the digest is that of its address and its version
copies/DIGEST/NAME      a directory, or a single file, whose files are links to those; never changed
runs/DIGEST/NAME        the local side of a run that writes to a bucket: see `mirror`
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from jax_transformer.buckets.address import Address, address_of
from jax_transformer.buckets.store import Store
from jax_transformer.runtime.files import naming_errors, remove_abandoned, temporary_directory_beside

PLACE = "JAX_TRANSFORMER_BUCKETS"
"""Environment variable that names another folder for the copies."""


def cache() -> Path:
    """Returns the folder of all copies: ~/.cache/jax_transformer/buckets, or the one that JAX_TRANSFORMER_BUCKETS
    names."""
    return Path(os.environ.get(PLACE) or "~/.cache/jax_transformer/buckets").expanduser()


def local_file(path: str | os.PathLike[str]) -> Path:
    """Returns the local path of a file, which is downloaded if it is in a bucket and has changed since.

    A local path is returned as it is, whether there is a file or not; "~" is expanded.

    Raises:
      FileNotFoundError: there is no such file in the bucket.
      IsADirectoryError: it is a directory there.
      BucketError: the bucket can't be read.

    Example:
      >>> from jax_transformer.buckets import local_file
      >>> local_file("train.en")
      PosixPath('train.en')
    """
    address = address_of(path)
    if address is None:
        return Path(path).expanduser()
    store = Store(address)
    versions = store.versions()
    if "" not in versions:
        kind = IsADirectoryError if versions else FileNotFoundError
        raise kind(21 if versions else 2, "Is a directory" if versions else "No such file or directory", str(address))
    return _copy(store, {"": versions[""]})


def local_directory(path: str | os.PathLike[str], is_wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """Returns the local path of a directory, whose files are downloaded if it is in a bucket, unless they are here.

    A local path is returned as it is, whether there is a directory or not.

    Args:
      path: the directory.
      is_wanted: selects which files of a bucket are needed, by their names in the directory.

    Raises:
      FileNotFoundError: there is no such directory in the bucket, or none of the files that are wanted.
      BucketError: the bucket can't be read.

    Example:
      >>> from jax_transformer.buckets import local_directory
      >>> local_directory("runs/demo")
      PosixPath('runs/demo')
    """
    address = address_of(path)
    if address is None:
        return Path(path)
    store = Store(address)
    versions = {name: version for name, version in store.versions().items() if name and is_wanted(name)}
    if not versions:
        raise FileNotFoundError(2, "No such directory", str(address))
    return _copy(store, versions)


def _copy(store: Store, versions: Mapping[str, str]) -> Path:
    """Returns a directory with the files of these versions, or the file if it has the name "". Downloads those that
    aren't here."""
    whole = "\n".join(f"{name}\t{version}" for name, version in sorted(versions.items()))
    copy = cache() / "copies" / digest(f"{store.address}\n{whole}") / store.address.name
    if copy.exists():
        return copy
    with naming_errors(cache()):
        files = cache() / "files"
        files.mkdir(parents=True, exist_ok=True)
        remove_abandoned(files.glob("*.tmp"))
        copy.parent.mkdir(parents=True, exist_ok=True)
        stored = {name: files / digest(f"{_at(store.address, name)}\n{version}") for name, version in versions.items()}
        _download(store, {name: file for name, file in stored.items() if not file.exists()})
        with temporary_directory_beside(copy) as temporary:
            for name, file in stored.items():
                place = temporary / (name or store.address.name)
                place.parent.mkdir(parents=True, exist_ok=True)
                _link(file, place)
            with suppress(OSError):  # another process was faster
                (temporary if "" not in stored else temporary / store.address.name).rename(copy)
    return copy


def _download(store: Store, missing: Mapping[str, Path]) -> None:
    """Downloads files under temporary names, which are removed if it fails."""
    unfinished = {name: file.with_name(f"{file.name}.{uuid.uuid4().hex[:8]}.tmp") for name, file in missing.items()}
    try:
        if unfinished:
            store.download(unfinished)
        for name, file in missing.items():
            os.replace(unfinished[name], file)
    finally:
        for file in unfinished.values():
            file.unlink(missing_ok=True)


def _link(file: Path, place: Path) -> None:
    try:
        os.link(file, place)
    except OSError:  # a file system without links
        shutil.copyfile(file, place)


def _at(address: Address, name: str) -> str:
    return str(address / name if name else address)


def digest(text: str) -> str:
    """Returns a name for a file or a folder of the cache."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
