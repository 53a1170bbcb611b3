"""Parses strict JSON: no NaN, no numbers beyond float64, no repeated names, no lone surrogates, only UTF-8."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def parse_body(body: bytes) -> Any:
    """Returns the value of a JSON text in UTF-8.

    Raises:
      ValueError: it isn't UTF-8 or strict JSON, or is nested deeper than Python's recursion goes.

    Example:
      >>> parse_body(b'{"texts": ["Who sleeps?"]}')
      {'texts': ['Who sleeps?']}
      >>> parse_body(b'{"temperature": NaN}')
      Traceback (most recent call last):
      ...
      ValueError: expected JSON; received NaN, which JSON doesn't have
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8; received byte 0x{body[error.start]:02x} at byte {error.start + 1}") from None
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("expected JSON of a few levels; received one that is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON; received a text that isn't: {error}") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"expected JSON; received {name}, which JSON doesn't have")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"expected a number that float64 has; received {text[:40]}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"expected each name once; received {twice[:40]!r} twice")
    return found
