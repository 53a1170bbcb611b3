"""Caches prepared corpora in directories that are either complete or absent.

An entry is built under a temporary name and renamed when complete. Digests of every file, written last, detect later
damage, after which the entry is rebuilt.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from jax_transformer.data.text_files import CorpusError
from jax_transformer.runtime.digests import changes
from jax_transformer.runtime.files import open_regular, temporary_directory

BUILDING = "building-"
ENTRY = re.compile("[0-9a-f]{64}")
"""The names of entries: digests of what a corpus is prepared from."""
BLOCK = 1 << 16
BLOCKS = 16
"""Number of blocks, spread over a file, that its digest covers; smaller files are digested whole."""
PUBLISH_ATTEMPTS = 3


@contextlib.contextmanager
def building_directory(cache: Path) -> Iterator[Path]:
    """Yields an empty directory in the cache, and removes it afterwards unless it was published.

    Raises:
      CorpusError: the cache can't be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            building = stack.enter_context(temporary_directory(cache / f"{BUILDING}{uuid.uuid4().hex}"))
        except OSError as error:
            raise CorpusError(
                f"cache_dir: expected a directory that can be written; received {cache} ({error.strerror})."
            ) from None
        yield building


def publish(building: Path, entry: Path) -> None:
    """Renames a sealed directory to its entry. An existing entry stays if it is complete; otherwise it is replaced."""
    for attempt in range(PUBLISH_ATTEMPTS):
        try:
            os.rename(building, entry)
            return
        except OSError:  # the entry exists
            if not changes(entry):
                return
            damaged = building.with_name(f"{building.name}.damaged-{attempt}")
            with contextlib.suppress(FileNotFoundError):  # another process has moved it
                os.rename(entry, damaged)
            shutil.rmtree(damaged, ignore_errors=True)
    raise CorpusError(
        f"{entry}: expected to name a prepared corpus so; it could not be renamed from {building}. Clear the cache "
        "directory."
    )


def sampled_digest(path: str | Path) -> str:
    """Returns the size of a file and the SHA-256 of its content or, if it is large, of blocks spread over it.

    Raises:
      CorpusError: the file can't be read.
    """
    try:
        return f"{Path(path).stat().st_size}-{_digest(Path(path))}"
    except OSError as error:
        raise CorpusError(
            f"{path}: expected a file that can be read; received none ({error.strerror}). Check the path."
        ) from None


def _digest(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256()
    with open_regular(path) as file:
        if size <= BLOCKS * BLOCK:
            digest.update(file.read())
        else:
            for k in range(BLOCKS):
                file.seek(k * (size - BLOCK) // (BLOCKS - 1))
                digest.update(file.read(BLOCK))
    return digest.hexdigest()
