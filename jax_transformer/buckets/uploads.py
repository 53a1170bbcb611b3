"""Writes new files and directories to buckets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jax_transformer.buckets.address import Address, BucketError, address_of
from jax_transformer.buckets.store import Batch, Store


def check_free(address: Address) -> None:
    """Raises BucketError if there is anything at an address or below it, or the bucket can't be read."""
    if Store(address).versions():
        raise BucketError(
            f"{address}: expected a name that is free, since a directory in a bucket can't be replaced in one step; "
            "received one with files; name another, or delete it first"
        )


@contextmanager
def written(path: str | os.PathLike[str], last: str = "") -> Iterator[str]:
    """Yields a path to write a file or a directory at; if `path` is in a bucket, what the block wrote is then uploaded.

    After an error of the block nothing is uploaded.

    Args:
      path: the path to write; a local one is yielded as it is.
      last: name of the file that makes a directory complete, which is uploaded after all others.

    Raises:
      BucketError: there is something at the address already, or it can't be written.

    Example:
      >>> from jax_transformer.buckets import written
      >>> with written("model") as local:
      ...     print(local)
      model
    """
    address = address_of(path)
    if address is None:
        yield os.fspath(path)
        return
    check_free(address)
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder, address.name)
        yield str(local)
        files = (
            {"": local} if local.is_file() else {file.relative_to(local).as_posix(): file for file in local.rglob("*")}
        )
        files = {name: file for name, file in files.items() if file.is_file()}
        mark = {name: files.pop(name) for name in (last,) if name in files and len(files) > 1}
        Store(address).apply([Batch(files), Batch(mark)], f"Add {address.name}")
