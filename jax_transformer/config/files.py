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
from jax_transformer.config.short_names import short_names
from jax_transformer.config.validation import ConfigError
from jax_transformer.runtime.files import read_text
from jax_transformer.runtime.limits import YAML_BYTES
from jax_transformer.runtime.yaml_text import compose

Config = TypeVar("Config")


def dump_config(config: Any) -> str:
    """Returns a dataclass as YAML with every field."""
    return yaml.safe_dump(plain(dataclasses.asdict(config)), sort_keys=False, allow_unicode=True)


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


def set_in(config: Config, path: str, text: str, source: str) -> Config:
    """Returns the config with another value at the path of a field, such as decoder.norm.eps.

    Args:
      text: the value as YAML.
      source: where it comes from, for messages.

    Raises:
      ConfigError: no such field; a value that the part refuses.
    """
    node = compose(text, source, ConfigError) or yaml.ScalarNode(
        "tag:yaml.org,2002:null", "", yaml.Mark(source, 0, 0, 0, None, 0), yaml.Mark(source, 0, 0, 0, None, 0)
    )
    for name in reversed(path.split(".")):
        key = yaml.ScalarNode("tag:yaml.org,2002:str", name, node.start_mark, node.end_mark)
        node = yaml.MappingNode("tag:yaml.org,2002:map", [(key, node)], node.start_mark, node.end_mark)
    return _load(source, config, node)


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
    is_model = isinstance(default, TransformerConfig)
    hints = typing.get_type_hints(type(default))
    fields = {field.name for field in dataclasses.fields(default) if field.init}  # type: ignore[arg-type]
    names = {*fields, *short_names()} if is_model else fields
    values: dict[str, Any] = {}
    for key, value in node.value:
        name, line = key.value, key.start_mark.line + 1
        if name == "kind" and "kind" in hints and name not in fields:
            continue  # it chose this class
        if name not in names:
            if name in NOT_COMPUTED and is_model:
                raise ConfigError(f"{path}:{line}: {prefix + name} isn't supported: {NOT_COMPUTED[name]}")
            raise ConfigError(f"{path}:{line}: {_unknown(name, prefix + name, names)}")
        if name in values:
            raise ConfigError(f"{path}:{line}: field {prefix + name!r} is given twice")
        current = getattr(default, name) if name in fields else None
        values[name] = _field(current, hints[name], value, path, f"{prefix}{name}")
    try:
        if is_model and 2 * len(values.keys() & short_names().keys()) > len(short_names()):  # not written by hand
            return TransformerConfig.from_flat(values)  # type: ignore[return-value]
        return dataclasses.replace(default, **values)  # type: ignore[type-var]
    except ConfigError as error:
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: {error}") from None


def _field(current: Any, hint: Any, node: yaml.Node, path: str, name: str) -> Any:
    """Returns the value of a field, which holds `current` by default."""
    if (item := _item_class(hint)) is not None:
        return _merged_list(item, node, path, name)
    parts = _part_classes(hint)
    if parts and isinstance(node, yaml.MappingNode):
        return _merged(_part(current, parts, node, path, name), node, path, f"{name}.")
    if parts and not (type(None) in typing.get_args(hint) and _is_null(node)):
        return _merged(current, node, path, f"{name}.")  # refuses it
    return _value(node, hint, path, name)


def _part_classes(hint: Any) -> tuple[Any, ...]:
    """Returns the dataclasses that an annotation allows."""
    return tuple(
        one for one in (hint, *typing.get_args(hint)) if isinstance(one, type) and dataclasses.is_dataclass(one)
    )


def _part(current: Any, classes: tuple[Any, ...], node: yaml.MappingNode, path: str, name: str) -> Any:
    """Returns the part that a mapping changes: `current`, or the default of the kind that it names."""
    kinds = {kind.__dataclass_fields__["kind"].default: kind for kind in classes if "kind" in kind.__dataclass_fields__}
    for key, value in node.value:
        if key.value == "kind" and kinds:
            if value.value not in kinds:
                line = value.start_mark.line + 1
                raise ConfigError(
                    f"{path}:{line}: {name}.kind must be one of {', '.join(kinds)}; received {value.value!r}"
                )
            kind = kinds[value.value]
            return current if isinstance(current, kind) else kind()
    if current is not None or len(classes) == 1:
        return classes[0]() if current is None else current
    raise ConfigError(f"{path}:{node.start_mark.line + 1}: {name}.kind must be given: one of {', '.join(kinds)}")


def _is_null(node: yaml.Node) -> bool:
    return node.tag == "tag:yaml.org,2002:null"


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
    if float in (hint, *typing.get_args(hint)) and isinstance(value, str):  # YAML 1.1 reads 1e-9 as text
        try:
            return float(value)
        except ValueError:
            return value
    return value


def plain(value: Any) -> Any:
    """Returns a value with lists in place of tuples, at any depth, as YAML files hold it."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
