"""Checks JSON against a schema, and says in a line what is wrong: the part of draft 2020-12 that this package uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
NOTES = frozenset(("$schema", "$id", "$defs", "title", "description"))
"""Keywords that check nothing."""
TOP = "the top level"
LONGEST = 60
"""The most characters of a value that a message shows."""


def first_problem(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with a value: where, what was expected and received; None if it fits.

    Args:
      schema: with the keywords type, enum, const, properties, required, additionalProperties, items, minimum, maximum,
        pattern and $ref.

    Raises:
      NotImplementedError: the schema has another keyword.

    Example:
      >>> from jax_transformer.runtime.json_schema import first_problem
      >>> schema = {"properties": {"steps": {"type": "array", "items": {"type": "integer", "minimum": 0}}}}
      >>> first_problem({"steps": [1, -3]}, schema)
      'steps[1]: expected at least 0; received -3'
    """
    return next(_problems(value, schema, schema, ""), None)


def _problems(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], path: str) -> Iterator[str]:
    for keyword, rule in schema.items():
        if keyword in NOTES:
            continue
        if keyword == "$ref":
            yield from _problems(value, _referred(rule, root), root, path)
        elif keyword in ("properties", "required", "additionalProperties"):
            if isinstance(value, dict):
                yield from _of_object(value, keyword, rule, schema, root, path)
        elif keyword == "items":
            for number, item in enumerate(value if isinstance(value, list) else ()):
                yield from _problems(item, rule, root, f"{path}[{number}]")
        elif (expected := _unmet(value, keyword, rule)) is not None:
            yield f"{path or TOP}: expected {expected}; received {_shown(value)}"


def _of_object(
    value: dict[str, Any], keyword: str, rule: Any, schema: Mapping[str, Any], root: Mapping[str, Any], path: str
) -> Iterator[str]:
    if keyword == "required":
        for name in rule:
            if name not in value:
                yield f"{path or TOP}: expected the field {name}; there is none"
        return
    known = schema.get("properties", {})
    chosen = {name: rule for name in value if name not in known} if keyword == "additionalProperties" else rule
    for name, of_name in chosen.items():
        if name in value and of_name is False:
            yield f"{path or TOP}: expected no field {name!r}"
        elif name in value:
            yield from _problems(value[name], of_name, root, f"{path}.{name}" if path else name)


def _unmet(value: Any, keyword: str, rule: Any) -> str | None:
    """Returns what a keyword expects and a value isn't; None if it is."""
    is_number = _is_a(value, "number")
    if keyword == "type":
        names = [rule] if isinstance(rule, str) else rule
        return None if any(_is_a(value, name) for name in names) else " or ".join(names)
    if keyword == "enum":
        return None if any(_is_same(value, one) for one in rule) else f"one of {', '.join(map(json.dumps, rule))}"
    if keyword == "const":
        return None if _is_same(value, rule) else json.dumps(rule)
    if keyword == "minimum":
        return f"at least {rule}" if is_number and value < rule else None
    if keyword == "maximum":
        return f"at most {rule}" if is_number and value > rule else None
    if keyword == "pattern":
        return f"text like {rule}" if isinstance(value, str) and not re.search(rule, value) else None
    raise NotImplementedError(f"the keyword {keyword} of a JSON schema")


def _is_a(value: Any, name: str) -> bool:
    if isinstance(value, bool) or name == "boolean":
        return isinstance(value, bool) and name == "boolean"
    return isinstance(value, TYPES[name]) or (name == "integer" and isinstance(value, float) and value.is_integer())


def _is_same(value: Any, other: Any) -> bool:
    """Returns whether two values without parts are equal. Python's True is 1, and JSON's true isn't."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
