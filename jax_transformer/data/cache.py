"""The cache of prepared corpora: directories that are either complete or absent.

An entry is built under a temporary name and renamed when complete. Its manifest, written last, has the size and a
digest of each file, so that an entry damaged afterwards is detected and rebuilt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jax_transformer.data.text_files import CorpusError

MANIFEST = "manifest.json"
BUILDING = "building-"
BLOCK = 1 << 16
BLOCKS = 16
"""Number of blocks, spread over a file, that its digest covers; smaller files are digested whole."""
PUBLISH_ATTEMPTS = 3
STALE_SECONDS = 24 * 3600


@contextlib.contextmanager
def building_directory(cache: Path) -> Iterator[Path]:
    """Yields an empty directory in the cache, removes it afterwards unless it was published, and removes stale ones of
    killed processes.

    Raises:
      CorpusError: the cache can't be written.
    """
    building = cache / f"{BUILDING}{uuid.uuid4().hex}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _remove_stale(cache)
        building.mkdir()
    except OSError as error:
        raise CorpusError(
            f"cache_dir: expected a directory that can be written; received {cache} ({error.strerror})."
        ) from None
    try:
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)


def seal(directory: Path) -> None:
    """Writes the manifest of an entry whose other files are complete."""
    files = {path.name: [path.stat().st_size, _digest(path)] for path in sorted(directory.iterdir())}
    (directory / MANIFEST).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")


def is_whole(entry: Path) -> bool:
    """Returns whether the entry exists and its files have the sizes and digests of its manifest."""
    try:
        manifest: dict[str, Any] = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"].items()
        return all((entry / name).stat().st_size == size for name, (size, _) in files) and all(
            _digest(entry / name) == digest for name, (_, digest) in files
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def publish(building: Path, entry: Path) -> None:
    """Renames a sealed directory to its entry. An existing entry stays if it is complete; otherwise it is replaced."""
    for attempt in range(PUBLISH_ATTEMPTS):
        try:
            os.rename(building, entry)
            return
        except OSError:  # the name is taken
            if is_whole(entry):
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
    """Returns the SHA-256 of a file, or, if it is large, of blocks spread over it, after its size.

    Raises:
      CorpusError: it can't be read.
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
    with open(path, "rb") as file:
        if size <= BLOCKS * BLOCK:
            digest.update(file.read())
        else:
            for k in range(BLOCKS):
                file.seek(k * (size - BLOCK) // (BLOCKS - 1))
                digest.update(file.read(BLOCK))
    return digest.hexdigest()


def _remove_stale(cache: Path) -> None:
    """Removes the directories of builds killed long ago."""
    for path in cache.glob(f"{BUILDING}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
