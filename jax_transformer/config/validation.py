"""Validates frozen dataclasses: every value must have the type, or be among the choices, of its annotation."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any


class ConfigError(ValueError):
    """Raised when a config can't be used; the message lists every problem."""


class Spec:
    """Checks the types of a part's values when it is created. The config checks their ranges."""

    def __post_init__(self) -> None:
        check_field_types(self)


def require(config: Any, problems: list[str]) -> None:
    """Raises ConfigError with all `problems`, if there are any."""
    if problems:
        raise ConfigError(f"{type(config).__name__}: " + "; ".join(problems))


def check_field_types(config: Any) -> None:
    """Raises ConfigError unless every field of the dataclass has a value that its annotation allows."""
    kind: Any = type(config)
    hints = _hints(kind)
    problems = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not matches(value, hints[field.name]):
            problems.append(f"{field.name} must be {describe(hints[field.name])}; received {value!r}")
    require(config, problems)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def describe(hint: Any) -> str:
    """Describes an annotation in words, such as 'one of pre, post' or 'an integer or null'."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(str(choice) for choice in typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(option) for option in typing.get_args(hint))
    if origin is tuple:
        return "a list of " + describe(typing.get_args(hint)[0]) + " values"
    if origin is dict:
        return "an object with " + describe(typing.get_args(hint)[1]) + " values"
    words = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def check_types(values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    """Raises ConfigError for values, by name, that their annotations don't allow."""
    problems = [
        f"{name} must be {describe(hints[name])}; received {value!r}"
        for name, value in values.items()
        if not matches(value, hints[name])
    ]
    if problems:
        raise ConfigError("; ".join(problems))


def matches(value: Any, hint: Any) -> bool:
    """Returns whether an annotation allows a value."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return any(value == choice and type(value) is type(choice) for choice in typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return any(matches(value, option) for option in typing.get_args(hint))
    if origin is tuple:
        item = typing.get_args(hint)[0]
        return isinstance(value, tuple) and all(matches(element, item) for element in value)
    if origin is dict:
        keys, values = typing.get_args(hint)
        return isinstance(value, dict) and all(matches(k, keys) and matches(v, values) for k, v in value.items())
    if hint is float:  # 1 is a fine 1.0
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)
