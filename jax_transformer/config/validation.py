"""Validates frozen dataclasses: every value must have the type, or be among the choices, of its annotation."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
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
    require(config, _type_problems({name: getattr(config, name) for name in hints}, hints))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Returns the annotation of each field of a dataclass, by name."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


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
    problems = _type_problems(values, hints)
    if problems:
        raise ConfigError("; ".join(problems))


def _type_problems(values: Mapping[str, Any], hints: Mapping[str, Any]) -> list[str]:
    """Returns one message for each value that its annotation doesn't allow."""
    return [
        f"{name} must be {describe(hints[name])}; received {value!r}"
        for name, value in values.items()
        if not _check_of(hints[name])(value)
    ]


@functools.cache
def _check_of(hint: Any) -> Callable[[Any], bool]:
    """Returns the function that tells whether an annotation allows a value."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return lambda value: any(type(value) is type(choice) and value == choice for choice in args)
    if origin in (typing.Union, types.UnionType):
        options = [_check_of(option) for option in args]
        return lambda value: any(option(value) for option in options)
    if origin is tuple:
        item = _check_of(args[0])
        return lambda value: isinstance(value, tuple) and all(map(item, value))
    if origin is dict:
        key, item = map(_check_of, args)
        return lambda value: isinstance(value, dict) and all(key(k) and item(v) for k, v in value.items())
    if hint is float:  # 1 is a fine 1.0
        return lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    return lambda value: isinstance(value, hint)
