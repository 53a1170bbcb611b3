"""Describes in one line the first error that `jsonschema` finds in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

TOP = "the top level"
LONGEST = 60
"""The most characters of a value that a message shows."""


def first_problem(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Returns the first error of a value: place, expected and received; None if it fits.

    Args:
      schema: a JSON Schema of draft 2020-12.

    Example:
      >>> from jax_transformer.runtime.json_schema import first_problem
      >>> schema = {"properties": {"steps": {"type": "array", "items": {"type": "integer", "minimum": 0}}}}
      >>> first_problem({"steps": [1, -3]}, schema)
      'steps[1]: expected at least 0; received -3'
    """
    from jsonschema import Draft202012Validator

    error = next(iter(Draft202012Validator(schema).iter_errors(value)), None)
    if error is None:
        return None
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    return f"{path.removeprefix('.') or TOP}: {_said(error)}"


def _said(error: Any) -> str:
    rule, found = error.validator_value, error.instance
    if error.validator == "required":
        return f"expected the field {next(name for name in rule if name not in found)}; there is none"
    if error.validator == "additionalProperties":
        return f"expected no field {next(name for name in found if name not in error.schema['properties'])!r}"
    expected = {
        "type": lambda: rule if isinstance(rule, str) else " or ".join(rule),
        "enum": lambda: f"one of {', '.join(map(json.dumps, rule))}",
        "const": lambda: json.dumps(rule),
        "minimum": lambda: f"at least {rule}",
        "maximum": lambda: f"at most {rule}",
        "pattern": lambda: f"text like {rule}",
    }
    if error.validator not in expected:
        return str(error.message)
    text = json.dumps(found, ensure_ascii=False)
    return f"expected {expected[error.validator]()}; received {text if len(text) <= LONGEST else f'{text[:LONGEST]}…'}"
