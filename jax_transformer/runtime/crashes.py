"""Writes the traceback of an unexpected error to a file, so that the terminal shows one line."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path

MOST = 240
"""The most characters of an error's text that the line shows."""


def write_traceback(error: BaseException) -> str:
    """Writes an error's traceback to a new file in the temporary directory, and returns a line that names the file.

    Without a file, as on a full disk, the line is followed by the traceback.
    """
    whole = "".join(traceback.format_exception(error))
    text = " ".join(str(error).split())
    line = f"{type(error).__name__}: {text[:MOST]}{' …' if len(text) > MOST else ''}" if text else type(error).__name__
    line += "; this is a bug in jax-transformer, please report it"
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="replace", prefix="jax-transformer-", suffix=".txt", delete=False
        ) as file:
            file.write(whole)
    except OSError as reason:
        return f"{line} (the traceback couldn't be written: {reason})\n{whole}"
    return f"{line} with the traceback in {Path(file.name)}"
