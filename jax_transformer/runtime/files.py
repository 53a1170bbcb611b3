"""Reads files up to a limit, and writes files and directories whole: readers see the old one or the new one, never half
of either."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from jax_transformer.runtime.limits import Limit

YOUNG_SECONDS = 60
"""Seconds after which an unlocked file counts as abandoned: a younger one may be about to be locked."""
OLD_SECONDS = 24 * 3600
"""Seconds after which a directory that can't be locked counts as abandoned."""


@contextmanager
def naming_errors(path: str | os.PathLike[str], temporary: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Adds the name `path` to errors of the block that name no file, such as errors of writing and flushing.

    Args:
      temporary: errors that name this file, or one below it, get the name `path` as well.

    Raises:
      OSError: of the same kind, with a name.

    Example:
      >>> from jax_transformer.runtime.files import naming_errors
      >>> with naming_errors("scores.txt"):
      ...     raise OSError(28, "No space left on device")
      Traceback (most recent call last):
      OSError: [Errno 28] No space left on device: 'scores.txt'
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or not _needs_a_name(error.filename, temporary):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def read_bytes(path: str | os.PathLike[str], limit: Limit, error: type[ValueError] = ValueError) -> bytes:
    """Returns the content of a file, of which no more than the limit is ever read.

    Raises:
      OSError: it can't be read.
      ValueError: it has more bytes; of the class `error`.

    Example:
      >>> import tempfile
      >>> from pathlib import Path
      >>> from jax_transformer.runtime.files import read_bytes
      >>> from jax_transformer.runtime.limits import JSON_BYTES
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = Path(folder, "config.json").write_bytes(b"{}")
      ...     read_bytes(Path(folder, "config.json"), JSON_BYTES)
      b'{}'
    """
    with naming_errors(path), Path(path).open("rb") as file:
        limit.check(os.fstat(file.fileno()).st_size, os.fspath(path), error)
        data = file.read(limit.value + 1)  # a device or a pipe has no size
    limit.check(len(data), os.fspath(path), error, or_more=True)
    return data


def read_text(path: str | os.PathLike[str], limit: Limit, error: type[ValueError] = ValueError) -> str:
    """Returns the UTF-8 text of a file as `read_bytes` reads it, with line ends as they are.

    Raises:
      OSError: it can't be read.
      ValueError: it has more bytes, of the class `error`; or isn't UTF-8 (UnicodeDecodeError).
    """
    return read_bytes(path, limit, error).decode("utf-8")


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Opens a file to read its bytes, if it is one that ends: no device, pipe or socket, not even by a link.

    Raises:
      OSError: it can't be opened, or is none.

    Example:
      >>> from jax_transformer.runtime.files import open_regular
      >>> open_regular("/dev/zero")
      Traceback (most recent call last):
      OSError: [Errno 22] expected a regular file, not a device, a pipe or a socket: '/dev/zero'
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # asked first, since opening a pipe may wait forever
        reason = "expected a regular file, not a device, a pipe or a socket"
        raise OSError(errno.EINVAL, reason, os.fspath(path))
    return open(path, "rb")


def _needs_a_name(filename: Any, temporary: str | os.PathLike[str] | None) -> bool:
    if not isinstance(filename, (str, bytes, os.PathLike)):  # none, or the number of an open file
        return True
    return temporary is not None and Path(os.fsdecode(filename)).is_relative_to(temporary)


@contextmanager
def atomic_write(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[Path]:
    """Yields a temporary path in the same directory; renames it to `path` when the block ends, or removes it on error.

    The temporary name is unique, hidden and ends in .tmp. The file that the block writes there gets its mode from the
    umask, as any new file does, and replaces an old one in a single step.

    Args:
      path: the file to write.
      durable: flush the content to the disk before the rename, so that a power failure leaves no empty file under the
        name.

    Raises:
      OSError: the file can't be written or renamed; an old file is left as it was.

    Example:
      >>> import os, tempfile
      >>> from jax_transformer.runtime.files import atomic_write
      >>> with tempfile.TemporaryDirectory() as directory:
      ...     with atomic_write(os.path.join(directory, "scores.txt")) as temporary:
      ...         _ = temporary.write_text("28.4")
      ...     os.listdir(directory)
      ['scores.txt']
    """
    target = Path(path)
    temporary = _temporary(target)
    with naming_errors(target, temporary):
        try:
            yield temporary
            if durable:
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def temporary_directory_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a new directory next to `path`, for the block to fill and rename to `path`; removes it if it is still
    there, and leftovers of killed processes.

    Raises:
      OSError: the directory can't be made.
    """
    target = Path(path)
    remove_abandoned(target.parent.glob(f".{glob.escape(target.name)}.*.tmp"))
    temporary = _temporary(target)
    with naming_errors(target, temporary), temporary_directory(temporary):
        yield temporary


@contextmanager
def temporary_directory(path: Path) -> Iterator[Path]:
    """Yields a new directory, locked for as long as the block runs; removes it if it is still there.

    Raises:
      OSError: the directory can't be made.
    """
    path.mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, path, ignore_errors=True)
        handle = os.open(path, os.O_RDONLY)
        stack.callback(os.close, handle)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield path


def remove_abandoned(paths: Iterable[Path]) -> None:
    """Removes directories of `temporary_directory` and files of `atomic_write` whose process was killed, once
    nobody has changed them for a minute; directories on a file system without locks, for a day."""
    for path in paths:
        with suppress(OSError):  # it was renamed or removed meanwhile
            age = time.time() - path.stat().st_mtime
            if age < YOUNG_SECONDS:
                continue
            if not path.is_dir():
                path.unlink()
            elif not _is_in_use(path, age):
                shutil.rmtree(path, ignore_errors=True)


def _is_in_use(path: Path, age: float) -> bool:
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return age < OLD_SECONDS
    finally:
        os.close(handle)
    return False


def _temporary(path: Path) -> Path:
    """Returns a hidden path in the same directory that no other process uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
