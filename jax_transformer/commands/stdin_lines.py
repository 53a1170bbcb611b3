"""Reads lines in groups: from a file, or from a process that may wait for the answer to each line."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Iterator
from itertools import islice

from jax_transformer.runtime.files import naming_errors
from jax_transformer.runtime.limits import LINE_BYTES

CHUNK = 1 << 16


def arriving_lines(descriptor: int, most: int) -> Iterator[list[bytes]]:
    """Yields the lines that have arrived, without their ends: as soon as there are any, and at most `most` at once.

    Raises:
      OSError: standard input can't be read.
      ValueError: a line has more than LINE_BYTES.
    """
    lines: list[bytes] = []
    begun: list[bytes] = []
    number, length = 1, 0
    while data := _read(descriptor):
        first, *others = data.split(b"\n")
        begun.append(first)
        length += len(first)
        LINE_BYTES.check(length, f"standard input:{number}", or_more=True)
        if others:
            number, length = number + len(others), len(others[-1])
            *whole, rest = others
            lines += [b"".join(begun), *whole]
            begun = [rest]
        while len(lines) >= most or (lines and not _has_more(descriptor)):
            yield lines[:most]
            lines = lines[most:]
    if any(begun):
        lines.append(b"".join(begun))
    yield from windows(lines, most)


def windows(lines: Iterable[bytes], most: int) -> Iterator[list[bytes]]:
    """Yields groups of at most `most` lines."""
    remaining = iter(lines)
    while window := list(islice(remaining, most)):
        yield window


def _read(descriptor: int) -> bytes:
    with naming_errors("standard input"):
        return os.read(descriptor, CHUNK)


def _has_more(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])
