"""Writing a new directory whole, with the digests by which `jax-transformer verify` checks it later."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jax_transformer.exporting.options import ExportError
from jax_transformer.runtime.digests import write_digests
from jax_transformer.runtime.files import temporary_directory_beside


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yields a directory to fill, which then gets the name `path`; after an error, nothing is there.

    Raises:
      ExportError: there is something at `path`, or no directory to put it in.
    """
    check_free(path)
    with temporary_directory_beside(path) as temporary:
        yield temporary
        write_digests(temporary)
        if path.exists():
            path.rmdir()
        temporary.rename(path)


def check_free(path: Path) -> None:
    """Raises ExportError where `new_directory` could not write."""
    if not path.absolute().parent.is_dir():
        raise ExportError(f"{path}: there is no directory {path.parent}")
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ExportError(f"{path}: expected a name that is free, or an empty directory")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes an object as indented JSON."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
