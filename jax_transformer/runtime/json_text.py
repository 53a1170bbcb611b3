"""Parses JSON from outside, and writes JSON for readers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from jax_transformer.runtime.files import read_bytes, read_text
from jax_transformer.runtime.limits import JSON_BYTES


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text.

    Raises:
      ValueError: it isn't JSON, or is nested deeper than Python's recursion goes.

    Example:
      >>> from jax_transformer.runtime.json_text import parse_json
      >>> parse_json('{"step": 3}')
      {'step': 3}
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(file: str | os.PathLike[str], error: type[ValueError] = ValueError) -> Any:
    """Returns the value of the JSON text in a file.

    Raises:
      OSError: it can't be read.
      ValueError: it isn't JSON or UTF-8; it is larger than JSON_BYTES, of the class `error`.

    Example:
      >>> import tempfile
      >>> from pathlib import Path
      >>> from jax_transformer.runtime.json_text import read_json
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = Path(folder, "steps.json").write_text("[3, 4]")
      ...     read_json(Path(folder, "steps.json"))
      [3, 4]
    """
    return parse_json(read_text(file, JSON_BYTES, error))


def read_json_object(file: str | os.PathLike[str], error: type[ValueError] = ValueError) -> dict[str, Any]:
    """Returns the JSON object in a file.

    Raises:
      OSError: it can't be read.
      ValueError: it isn't a JSON object, or is larger than JSON_BYTES; of the class `error`.

    Example:
      >>> import tempfile
      >>> from pathlib import Path
      >>> from jax_transformer.runtime.json_text import read_json_object
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = Path(folder, "data.json").write_text('{"step": 3}')
      ...     read_json_object(Path(folder, "data.json"))
      {'step': 3}
    """
    text = read_bytes(file, JSON_BYTES, error)
    try:
        content = parse_json(text)
    except ValueError as problem:
        raise error(f"{file}: expected a JSON object; received text that isn't JSON ({problem})") from None
    if not isinstance(content, dict):
        raise error(f"{file}: expected a JSON object; received {type(content).__name__}")
    return content


def indented_json(content: Mapping[str, Any]) -> str:
    """Returns an object as indented JSON with a line end.

    Example:
      >>> from jax_transformer.runtime.json_text import indented_json
      >>> print(indented_json({"step": 3}), end="")
      {
        "step": 3
      }
    """
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
