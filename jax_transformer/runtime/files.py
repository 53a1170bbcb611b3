"""Writing files and directories whole: readers see the old one or the new one, never half of either."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    there.

    Raises:
      OSError: the directory can't be made.
    """
    temporary = _temporary(Path(path))
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    """Returns a hidden path in the same directory that no other process uses."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
