"""Writes a new directory whole, with the digests by which `jax-transformer verify` checks it later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jax_transformer.runtime.digests import write_digests
from jax_transformer.runtime.files import temporary_directory_beside


@contextmanager
def new_directory(path: str | os.PathLike[str], error: type[ValueError] = ValueError) -> Iterator[Path]:
    """Yields a directory to fill, which then gets digests and the name `path`; after an error, nothing is there.

    Args:
      path: a name that is free, or an empty directory, which is replaced. A symbolic link stays, and its target is
        written.
      error: the class to raise.

    Raises:
      ValueError: of the class `error`: there is something at `path`, or no directory to put it in.
      OSError: it can't be written.

    Example:
      >>> import os, tempfile
      >>> from jax_transformer.runtime.directories import new_directory
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with new_directory(f"{folder}/model") as temporary:
      ...         _ = (temporary / "weights").write_bytes(b"0123")
      ...     sorted(os.listdir(f"{folder}/model"))
      ['digests.json', 'weights']
    """
    check_free(path, error)
    target = Path(os.path.realpath(path))
    with temporary_directory_beside(target) as temporary:
        yield temporary
        write_digests(temporary)
        if target.exists():
            target.rmdir()
        temporary.rename(target)


def check_free(path: str | os.PathLike[str], error: type[ValueError] = ValueError) -> None:
    """Raises `error`, a ValueError, where `new_directory` could not write."""
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise error(f"{path}: there is no directory {target.parent}")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise error(f"{path}: expected a name that is free, or an empty directory")
