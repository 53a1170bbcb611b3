"""Configs that differ from others in single options of single parts."""

from __future__ import annotations

import dataclasses
import itertools
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.validation import ConfigError

NUMBERS: dict[str, tuple[float, ...]] = {
    "max_length": (10,),
    "masked_value": (-7.0,),
    "buckets": (9,),
    "max_distance": (4,),
}
"""Other numbers of an option; of the rest, those below that a config may have."""


def with_paths(config: TransformerConfig, changes: Mapping[str, Any]) -> TransformerConfig:
    """The config with other values at paths such as encoder.norm.eps, all of them at once."""
    parts = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for path, value in changes.items():
        first, *rest = path.split(".")
        parts[first] = _changed(parts[first], rest, value)
    return TransformerConfig(**parts)


def _changed(part: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    return dataclasses.replace(part, **{path[0]: _changed(getattr(part, path[0]), path[1:], value)})


def single_changes(config: TransformerConfig, stack: str) -> Iterator[tuple[str, Any]]:
    """Every path of an option of a stack, and every other value that it may have, all else alike."""
    for path, value in _other_values(config, stack):
        if is_allowed(config, {path: value}):
            yield path, value


def joint_changes(config: TransformerConfig, stack: str) -> Iterator[dict[str, Any]]:
    """For every option of a stack that may have no other value by itself, one that it may have beside another option of
    its part, if there is one."""
    values = list(_other_values(config, stack))
    alone = {path for path, _ in single_changes(config, stack)}
    for path in dict.fromkeys(path for path, _ in values if path not in alone):
        beside = [one for one in values if one[0] in alone and one[0].rpartition(".")[0] == path.rpartition(".")[0]]
        pairs = ({path: value, other: its} for own, value in values if own == path for other, its in beside)
        yield from itertools.islice((both for both in pairs if is_allowed(config, both)), 1)


def _other_values(config: TransformerConfig, stack: str) -> Iterator[tuple[str, Any]]:
    """Every path of an option of a stack, and every other value of its type."""
    for path, part in _parts(getattr(config, stack), stack):
        hints = typing.get_type_hints(type(part))
        for field in dataclasses.fields(part):
            own = getattr(part, field.name)
            if field.init and not dataclasses.is_dataclass(own):
                for value in _others(hints[field.name], field.name, own):
                    yield f"{path}.{field.name}", value


def _parts(part: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, part
    for field in dataclasses.fields(part):
        inner = getattr(part, field.name)
        if dataclasses.is_dataclass(inner):
            yield from _parts(inner, f"{path}.{field.name}")


def _others(hint: Any, name: str, own: Any) -> tuple[Any, ...]:
    """Other values of an option than its own, by its type."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) is not typing.Literal else (hint,)
    choices: tuple[Any, ...] = ()
    for kind in kinds or (hint,):
        if typing.get_origin(kind) is typing.Literal:
            choices += typing.get_args(kind)
        elif name in NUMBERS and kind in (int, float):
            choices += NUMBERS[name]
        else:
            choices += {bool: (False, True), int: (2, 1), float: (0.37,)}.get(kind, ())
    return tuple(value for value in choices if value != own)


def is_allowed(config: TransformerConfig, changes: Mapping[str, Any]) -> bool:
    """Whether a config may have all these values."""
    try:
        with_paths(config, changes)
    except ConfigError:
        return False
    return True
