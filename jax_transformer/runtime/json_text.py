"""Parsing JSON that comes from outside."""

from __future__ import annotations

import json
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
