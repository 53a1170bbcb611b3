"""Keeps a run directory in a bucket equal to a local one, so that a run may be killed at any moment.

A run reads and writes its local side only. `push` uploads what has changed: first the loose files, such as metrics,
then each checkpoint and the model, of which a last file, the mark, makes a directory complete. A directory without its
mark isn't there. Marks are deleted before the other files of a directory change.

The bucket holds the name of the run's latest process, its owner. A local side of the same owner contains everything
that the bucket has, and perhaps more, which a failed `push` left; any other is outdated, and is replaced.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from jax_transformer.buckets.address import Address, BucketError
from jax_transformer.buckets.copies import cache, digest
from jax_transformer.buckets.store import Batch, Store
from jax_transformer.runtime.files import naming_errors

OWNER = ".owner"
"""File with the name of the process that wrote last."""


class Mirror:
    """Uploads a run's local directory to an address, and downloads it."""

    def __init__(
        self, address: Address, *, units: re.Pattern[str], marks: Iterable[str], left_out: re.Pattern[str]
    ) -> None:
        """Prepares the local directory's name; makes no request.

        Args:
          address: the directory in the bucket.
          units: matches how the names of files begin that are in a directory with a mark, such as `model/`.
          marks: names of the files that complete such a directory.
          left_out: matches how the names of files begin that stay on this machine.
        """
        self.address = address
        self.directory = cache() / "runs" / digest(str(address)) / address.name
        self._units, self._marks, self._left_out = units, frozenset(marks), left_out
        self._store = Store(address)
        self._there: set[str] = set()  # names in the bucket
        self._complete: dict[str, bytes] = {}  # directory → its mark, as it is in the bucket
        self._loose: dict[str, tuple[int, int]] = {}  # other file → size and time of what was uploaded

    def names(self) -> set[str]:
        """Returns the names of the files in the bucket, without the owner's."""
        return {*self._store.versions()} - {OWNER}

    def begin(self) -> None:
        """Empties the local directory for a new run, and becomes the owner of the address."""
        self._empty()
        self._there = {*self._store.versions()}
        self._claim()

    def pull(self, edited: str) -> None:
        """Makes the local directory what the run is now, and becomes the owner of the address.

        Args:
          edited: name of a file that users may edit in the bucket; it is downloaded in any case.

        Raises:
          BucketError: the bucket can't be read or written.
        """
        self._there = {*self._store.versions()}
        marked = {self._unit(name): name for name in self._there if self._is_mark(name)}
        if not self._is_ours():
            self._empty()
            whole = [name for name in self._there - {OWNER} if not self._unit(name) or self._unit(name) in marked]
            self._download(whole)
            self._loose = {name: _state(self.directory / name) for name in whole if not self._unit(name)}
        elif edited in self._there:
            self._download([edited])
        self._complete = {unit: self._store.read(mark) or b"" for unit, mark in marked.items()}
        self._claim()

    def push(self, why: str) -> None:
        """Uploads what has changed since the last time, and deletes checkpoints that are gone.

        Args:
          why: a few words for the Hub, where it is a commit.

        Raises:
          BucketError: the bucket can't be written, or another process has resumed the run; what was uploaded before
            is unharmed, and the local directory holds everything.
        """
        try:
            if not self._is_ours():
                raise BucketError(
                    f"{self.address}: expected to be the only process of this run; received another that has resumed "
                    "it; this one stops"
                )
            self._upload(why)
        except BucketError as error:
            raise BucketError(
                f"{error}. The bucket keeps what it had, and {self.directory} what it lacks; to upload that and go "
                f"on: jax-transformer train --resume {self.address}"
            ) from error

    def remove(self) -> None:
        """Deletes the run in the bucket."""
        self._store.apply([Batch(deletes=sorted(self._there))], "Remove the run")

    def _upload(self, why: str) -> None:
        files = self._files()
        loose = {name: _state(path) for name, path in files.items() if not self._unit(name)}
        marks = {self._unit(name): path.read_bytes() for name, path in files.items() if self._is_mark(name)}
        changed = {unit for unit, mark in marks.items() if self._complete.get(unit) != mark}
        new = {name: path for name, path in files.items() if self._unit(name) in changed}
        new_marks = {name: path for name, path in new.items() if self._is_mark(name)}
        old = {name for name in self._there if self._unit(name) and name not in files}
        remains = {name for name in old if self._unit(name) in changed}
        gone = old - remains
        batches = [
            Batch({name: files[name] for name, state in loose.items() if self._loose.get(name) != state}),
            Batch(deletes=sorted(new_marks.keys() & self._there)),
            Batch({name: path for name, path in new.items() if name not in new_marks}, sorted(remains)),
            Batch(new_marks),
            Batch(deletes=sorted(name for name in gone if self._is_mark(name))),
            Batch(deletes=sorted(name for name in gone if not self._is_mark(name))),
        ]
        self._store.apply(batches, why)
        self._there = self._there - old | {*files}
        self._complete, self._loose = marks, loose

    def _claim(self) -> None:
        name = uuid.uuid4().hex
        with naming_errors(self.directory):
            (self.directory / f"{OWNER}.new").write_text(name, encoding="utf-8")
            self._store.apply([Batch({OWNER: self.directory / f"{OWNER}.new"})], "Begin or resume the run")
            os.replace(self.directory / f"{OWNER}.new", self.directory / OWNER)
        self._there.add(OWNER)

    def _is_ours(self) -> bool:
        own = self.directory / OWNER
        return own.is_file() and self._store.read(OWNER) == own.read_bytes()

    def _download(self, names: list[str]) -> None:
        places = {name: self.directory / name for name in names}
        for place in places.values():
            place.parent.mkdir(parents=True, exist_ok=True)
        if places:
            self._store.download(places)

    def _empty(self) -> None:
        """Removes the files of an earlier run or an outdated copy; the lock is held, and stays."""
        (self.directory / OWNER).unlink(missing_ok=True)  # first: without it, nothing here counts
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name in self._files():
                path.unlink()

    def _files(self) -> dict[str, Path]:
        """Returns the local files that belong to the run, by name."""
        found = {path.relative_to(self.directory).as_posix(): path for path in self.directory.rglob("*")}
        return {name: path for name, path in found.items() if not self._left_out.match(name) and path.is_file()}

    def _unit(self, name: str) -> str:
        """Returns the directory with a mark that a file is in; "" for none."""
        found = self._units.match(name)
        return found[0].rstrip("/") if found else ""

    def _is_mark(self, name: str) -> bool:
        return bool(self._unit(name)) and name.removeprefix(f"{self._unit(name)}/") in self._marks


def _state(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns
