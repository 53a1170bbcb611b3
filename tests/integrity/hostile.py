"""What tests of hostile input share: a bound on memory, the line that a command fails with, and files that lie."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jax_transformer.cli import main

MOST_BYTES = 2**30


@contextlib.contextmanager
def bounded_memory(most: int = MOST_BYTES) -> Iterator[None]:
    """Limits the further address space of this process to `most` bytes."""
    taken = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def refusal(call: Callable[[], object], error: type[ValueError] = ValueError) -> str:
    """Returns the message of the error that a call raises in bounded memory."""
    with bounded_memory(), pytest.raises(error) as raised:
        call()
    return str(raised.value)


def failed_line(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    """Returns the only line that a command fails with, in bounded memory."""
    with bounded_memory():
        code = main([str(argument) for argument in arguments])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert line.startswith("error: ")
    return line


def sparse(path: Path, size: int) -> Path:
    """Writes a file of zeros that takes no room."""
    with path.open("wb") as file:
        file.truncate(size)
    return path


def safetensors(path: Path, header: Any, size: int = 0, length: int | None = None) -> Path:
    """Writes a header that may lie, and `size` zeros after it."""
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text) if length is None else length) + text)
        file.truncate(8 + max(len(text), length or 0) + size)
    return path
