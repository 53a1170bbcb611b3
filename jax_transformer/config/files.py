"""Reads and writes configs as YAML files; errors name the line."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import yaml

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.model_validation import NOT_COMPUTED
from jax_transformer.config.validation import ConfigError
from jax_transformer.runtime.limits import YAML_BYTES, read_text
from jax_transformer.runtime.yaml_text import compose

Config = TypeVar("Config")


def dump_config(config: Any) -> str:
    """Returns a dataclass as YAML with every field."""
    return yaml.safe_dump(_plain(dataclasses.asdict(config)), sort_keys=False, allow_unicode=True)


def load_config(path: str | Path, default: Config) -> Config:
    """Returns `default` with the values of the YAML file.

    Raises:
      ConfigError: no such file, no YAML, no mapping; an unknown field (with its line and the nearest name); a value
        that the dataclass refuses.
    """
    node = _read(path)
    return default if node is None else _load(path, default, node)


def load_part(path: str | Path, key: str, default: Config, *, of: type) -> Config | None:
    """Returns `default` with the values under this key of a YAML file; None if the file doesn't have the key.

    Args:
      of: the dataclass whose fields the file's other keys are. Their values aren't read.

    Raises:
      ConfigError: as of `load_config`.
    """
    node = _read(path)
    entries = node.value if isinstance(node, yaml.MappingNode) else []
    if all(name.value != key for name, _ in entries):
        return None
    fields = {field.name for field in dataclasses.fields(of)}
    for name, _ in entries:
        if name.value not in fields:
            raise ConfigError(f"{path}:{name.start_mark.line + 1}: {_unknown(name.value, name.value, fields)}")
    value = next(value for name, value in entries if name.value == key)
    return _load(path, default, value, f"{key}.")


def _read(path: str | Path) -> yaml.Node | None:
    """Returns the nodes of a YAML file; None for an empty one."""
    try:
        text = read_text(path, YAML_BYTES, ConfigError)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected a YAML file; {error}") from None
    return compose(text, str(path), ConfigError)


def _load(path: str | Path, default: Config, node: yaml.Node, prefix: str = "") -> Config:
    """Returns `default` with the values of a node. Raises ConfigError with the file's name."""
    try:
        return _merged(default, node, str(path), prefix)
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if message.startswith(str(path)) else f"{path}: {message}") from None


def _unknown(name: str, whole_name: str, fields: Collection[str]) -> str:
    near = difflib.get_close_matches(name, fields, n=1)
    suggestion = f"; did you mean {near[0]!r}?" if near else f"; allowed: {', '.join(sorted(fields))}"
    return f"unknown field {whole_name!r}{suggestion}"


def _merged(default: Config, node: yaml.Node, path: str, prefix: str = "") -> Config:
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(
            f"{path}:{node.start_mark.line + 1}: expected fields and values{f' under {prefix!r}' if prefix else ''}"
        )
    fields = {field.name for field in dataclasses.fields(default)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(type(default))
    values: dict[str, Any] = {}
    for key, value in node.value:
        name, line = key.value, key.start_mark.line + 1
        if name not in fields:
            if name in NOT_COMPUTED and isinstance(default, TransformerConfig):
                raise ConfigError(f"{path}:{line}: {prefix + name} isn't supported: {NOT_COMPUTED[name]}")
            raise ConfigError(f"{path}:{line}: {_unknown(name, prefix + name, fields)}")
        if name in values:
            raise ConfigError(f"{path}:{line}: field {prefix + name!r} is given twice")
        if dataclasses.is_dataclass(hints[name]):
            values[name] = _merged(getattr(default, name), value, path, f"{prefix}{name}.")
        elif (item := _item_class(hints[name])) is not None:
            values[name] = _merged_list(item, value, path, f"{prefix}{name}")
        else:
            values[name] = _value(value, hints[name], path, f"{prefix}{name}")
    try:
        return dataclasses.replace(default, **values)  # type: ignore[type-var]
    except ConfigError as error:
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: {error}") from None


def _item_class(hint: Any) -> type | None:
    """Returns the dataclass `Item` of a field of type tuple[Item, ...], or None."""
    if typing.get_origin(hint) is not tuple:
        return None
    item: type = typing.get_args(hint)[0]
    return item if dataclasses.is_dataclass(item) else None


def _merged_list(item: type, node: yaml.Node, path: str, name: str) -> tuple[Any, ...]:
    if not isinstance(node, yaml.SequenceNode):
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: expected a list under {name!r}")
    return tuple(_merged(item(), entry, path, f"{name}[{number}].") for number, entry in enumerate(node.value))


def _value(node: yaml.Node, hint: Any, path: str, name: str) -> Any:
    loader = yaml.SafeLoader("")
    try:
        value = loader.construct_object(node, deep=True)
        repr(value)  # as messages show it: Python refuses numbers of thousands of digits here, too
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a number of thousands of digits, an impossible date
        why = " ".join(str(error).split())
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: {name}: expected a value of YAML; {why}") from None
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        return tuple(value)
    if hint is float and isinstance(value, str):  # YAML 1.1 reads 1e-9 as text
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
