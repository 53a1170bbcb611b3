"""Lists, reads and writes the files below an address, by fsspec; only this module imports its file systems."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jax_transformer.buckets.address import PACKAGES, Address, BucketError
from jax_transformer.runtime.extras import require

VERSIONS = ("ETag", "etag", "generation", "blob_id", "xet_hash", "LastModified", "mtime", "updated", "created", "size")
"""Fields of fsspec's file descriptions that change whenever a file does; each file system has some of them."""
LOG_IN = {
    "gs": "log in (gcloud auth application-default login), or let GOOGLE_APPLICATION_CREDENTIALS name a key file",
    "s3": "log in (aws configure), or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; or use those of one who may",
    "hf": "log in (hf auth login), or set HF_TOKEN to a token with access to this repository",
}
DENIED = re.compile(
    r"credential|unauthori[sz]ed|forbidden|access ?denied|permission|anonymous caller|invalid.?access.?key|"
    r"signature|token.{0,40}(expired|invalid)|\b40[13]\b",
    re.IGNORECASE,
)
"""Words of the messages of those who aren't allowed; each library has its own classes."""


@dataclass(frozen=True)
class Batch:
    """Holds changes that may be made in any order."""

    puts: Mapping[str, Path] = field(default_factory=dict)
    """Local files by the names that they get below the address."""
    deletes: Sequence[str] = ()
    """Names of files to delete. One that isn't there is no error."""


class Store:
    """Reads and writes the files below an address. Every method raises BucketError, of one line, if it fails."""

    def __init__(self, address: Address) -> None:
        """Prepares the file system; makes no request.

        Raises:
          MissingPackage: the package for the scheme isn't installed.
        """
        require(PACKAGES[address.scheme], str(address))
        import fsspec

        self.address = address
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs the traceback of an error that it raises too
        with explained(address):
            self._system: Any = fsspec.filesystem(address.scheme)
            self._root = self._system._strip_protocol(str(address))

    def versions(self) -> dict[str, str]:
        """Returns the names of all files below the address, each with a text that changes when the file does. A file at
        the address itself has the name ""."""
        with explained(self.address):
            self._system.invalidate_cache()
            try:
                found = self._system.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
        files = {name: info for name, info in found.items() if info["type"] == "file" and not name.endswith("/")}
        return {name.removeprefix(self._root).lstrip("/"): _version(info) for name, info in files.items()}

    def download(self, files: Mapping[str, Path]) -> None:
        """Downloads files by their names below the address, "" for the address itself, to local paths."""
        with explained(self.address):
            self._system.get([self._path(name) for name in files], [str(path) for path in files.values()])

    def read(self, name: str) -> bytes | None:
        """Returns the content of a small file; None if there is none."""
        with explained(self.address / name):
            self._system.invalidate_cache()
            try:
                return self._system.cat_file(self._path(name))
            except FileNotFoundError:
                return None

    def apply(self, batches: Sequence[Batch], why: str) -> None:
        """Makes the changes of each batch, after those of the one before; on the Hub all in one commit.

        Args:
          why: the message of the commit.
        """
        batches = [batch for batch in batches if batch.puts or batch.deletes]
        if not batches:
            return
        with explained(self.address):
            if self.address.scheme == "hf":
                self._commit(batches, why)
                return
            for batch in batches:
                if batch.deletes:
                    self._delete(batch.deletes)
                if batch.puts:
                    local = [str(path) for path in batch.puts.values()]
                    self._system.put(local, [self._path(name) for name in batch.puts])

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                self._system.rm_file(self._path(name))
            except FileNotFoundError:
                continue

    def _commit(self, batches: Sequence[Batch], why: str) -> None:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        place = self._system.resolve_path(self._root)
        if not hasattr(place, "repo_id"):
            raise BucketError(f"{self.address}: expected a path in a repository, to write it; received one in a bucket")
        last: dict[str, Path | None] = {}
        for batch in batches:
            last |= dict.fromkeys(batch.deletes) | dict(batch.puts)
        there = self.versions() if None in last.values() else {}
        folder = f"{place.path_in_repo}/" if place.path_in_repo else ""
        self._system._api.create_commit(
            place.repo_id,
            [
                CommitOperationDelete(folder + name) if path is None else CommitOperationAdd(folder + name, str(path))
                for name, path in last.items()
                if path is not None or name in there
            ],
            commit_message=why,
            repo_type=place.repo_type,
            revision=place.revision,
        )

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


def _version(info: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={info[name]}" for name in VERSIONS if info.get(name) is not None)


@contextmanager
def explained(address: Address) -> Iterator[None]:
    """Turns errors that the libraries raise in the block into a BucketError of one line; errors of the local disk stay
    as they are."""
    try:
        yield
    except (BucketError, KeyboardInterrupt):
        raise
    except Exception as error:  # the libraries and their dependencies raise dozens of classes
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise BucketError(f"{address}: {_reason(address.scheme, error)}") from error


def _reason(scheme: str, error: BaseException) -> str:
    while isinstance(error.__cause__, Exception) and not str(error).strip():
        error = error.__cause__
    text = " ".join(str(error).split())[:200]
    received = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, PermissionError) or DENIED.search(received):
        return f"expected to be allowed to use it; received {received}; {LOG_IN.get(scheme, 'log in')}"
    if isinstance(error, FileNotFoundError):
        return f"expected a bucket or a file of this name; received none ({received}); check the name"
    return f"expected an answer; received {received}; check the network and the name, and try again"
