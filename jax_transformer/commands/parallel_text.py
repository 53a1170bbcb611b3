"""Reads and writes files whose lines correspond."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Sequence
from pathlib import Path

from jax_transformer.runtime.files import atomic_write

STANDARD_INPUT = "-"


def read_columns(paths: Sequence[str]) -> list[list[str]]:
    """Returns the lines of each file, plain or gzipped; "-" is standard input.

    Raises:
      CorpusError: a file without lines, or with another number of lines than the first; a NUL; standard input twice; or
        text that `iterate_lines` refuses.
    """
    from jax_transformer.data.corpus import CorpusError

    if paths.count(STANDARD_INPUT) > 1:
        raise CorpusError(f"expected standard input (-) for one file; received it for {paths.count(STANDARD_INPUT)}")
    columns = [_read(path) for path in paths]
    for path, lines in zip(paths, columns, strict=True):
        if not lines:
            raise CorpusError(f"{shown(path)}: expected at least one sentence; received none. Check the path.")
    for path, lines in zip(paths, columns, strict=True):
        if len(lines) != len(columns[0]):
            raise CorpusError(
                f"{shown(path)}: expected as many lines as {shown(paths[0])}; received {len(lines)}, and "
                f"{len(columns[0])} there. Line n of one must correspond to line n of the other."
            )
    return columns


def shown(path: str) -> str:
    """Returns the file's name for messages."""
    return "standard input" if path == STANDARD_INPUT else path


def check_writable(path: str) -> None:
    """Raises ValueError if `write_lines` can't write to this path."""
    if not Path(path).parent.is_dir():
        raise ValueError(f"{path}: expected a directory that exists; there is no {Path(path).parent}")
    if Path(path).is_dir():
        raise ValueError(f"{path}: expected the name of a file; it is a directory")


def write_lines(path: str, lines: Sequence[str]) -> None:
    """Writes the file atomically, gzipped if its name ends in .gz."""
    data = "".join(f"{line}\n" for line in lines).encode()
    with atomic_write(path) as temporary:
        temporary.write_bytes(gzip.compress(data) if path.endswith(".gz") else data)


def _read(path: str) -> list[str]:
    from jax_transformer.data.corpus import CorpusError, read_lines
    from jax_transformer.data.text_files import CHUNK, split_chunks

    arriving = iter(lambda: sys.stdin.buffer.read(CHUNK), b"")
    lines = split_chunks(arriving, shown(path)) if path == STANDARD_INPUT else read_lines(path)
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise CorpusError(
                f"{shown(path)}:{number}: expected text; received a NUL character. Is it a binary file, or UTF-16?"
            )
    return lines
