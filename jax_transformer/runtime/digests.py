"""Keeps digests of the files of a directory in the directory, to detect later changes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path

from jax_transformer.runtime.files import naming_errors, open_regular, read_text
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.limits import JSON_BYTES

DIGESTS = "digests.json"


def sha256(path: str | os.PathLike[str]) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal.

    Raises:
      OSError: it can't be read, or is a device or a pipe, which may have no end.

    Example:
      >>> import tempfile
      >>> from pathlib import Path
      >>> from jax_transformer.runtime.digests import sha256
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = Path(folder, "empty").write_bytes(b"")
      ...     sha256(Path(folder, "empty"))[:8]
      'e3b0c442'
    """
    with naming_errors(path), open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_digests(directory: str | os.PathLike[str]) -> None:
    """Writes `digests.json`, with the SHA-256 of every file in a directory and below it, and flushes it to the disk.

    Raises:
      OSError: a file can't be read or written.

    Example:
      >>> import tempfile
      >>> from pathlib import Path
      >>> from jax_transformer.runtime.digests import changes, write_digests
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = Path(folder, "weights").write_bytes(b"0123")
      ...     write_digests(folder)
      ...     _ = Path(folder, "weights").write_bytes(b"0122")
      ...     changes(folder)
      ['weights: altered (sha256 expected 1be2e452b46d…, received d84edde5ff3c…)']
    """
    directory = Path(directory)
    digests = {name: sha256(directory / name) for name in _files(directory)}
    with naming_errors(directory / DIGESTS), open(directory / DIGESTS, "w", encoding="utf-8") as file:
        json.dump({"sha256": digests}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def changes(directory: str | os.PathLike[str], without: Collection[str] = ()) -> list[str]:
    """Lists the differences from the directory's digests, a line for each file: altered, missing, added, not readable.

    Args:
      without: names of files in the directory that may be under no digest.
    """
    directory = Path(directory)
    try:
        expected = parse_json(read_text(directory / DIGESTS, JSON_BYTES))["sha256"].items()
    except FileNotFoundError:
        return [f"{DIGESTS}: missing"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return [f"{DIGESTS}: can't be read"]
    problems = []
    for name, digest in expected:
        try:
            received = sha256(directory / name)
        except FileNotFoundError:
            problems.append(f"{name}: missing")
        except OSError as error:
            problems.append(f"{name}: can't be read ({error.strerror})")
        else:
            if received != digest:
                problems.append(f"{name}: altered (sha256 expected {digest[:12]}…, received {received[:12]}…)")
    known = {name for name, _ in expected}
    return problems + [f"{name}: added" for name in _files(directory) if name not in known and name not in without]


def _files(directory: Path) -> list[str]:
    """Returns the names of all files, relative to the directory, but for its digests."""
    names = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    return sorted(name for name in names if name != DIGESTS)
