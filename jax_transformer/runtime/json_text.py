"""Parsing JSON that comes from outside, and writing it for readers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


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
