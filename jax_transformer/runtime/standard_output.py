"""Marks errors of standard output as its own."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from jax_transformer.runtime.files import naming_errors

NAME = "standard output"


class NamedOutput(io.TextIOWrapper):
    """Writes text as standard output does; its errors name the file "standard output"."""

    def write(self, text: str) -> int:
        with naming_errors(NAME):
            return super().write(text)

    def flush(self) -> None:
        with naming_errors(NAME):
            super().flush()


@contextmanager
def named_output() -> Iterator[None]:
    """Names the errors of standard output during the block, at whose end all is written out.

    Unwritable output is discarded then, or Python would fail on it again at exit. Another object in the place of
    standard output, such as a test's, is left alone.

    Raises:
      OSError: standard output can't be written, as on a full disk.
    """
    before = sys.stdout
    if type(before) is not io.TextIOWrapper:
        yield
        return
    before.flush()
    sys.stdout = NamedOutput(
        before.buffer, before.encoding, before.errors, line_buffering=before.line_buffering,
        write_through=before.write_through,
    )  # fmt: skip
    try:
        yield
        sys.stdout.flush()
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            discard_output()
        sys.stdout.detach()
        sys.stdout = before


def discard_output() -> None:
    """Discards the rest of standard output, buffered or future."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
