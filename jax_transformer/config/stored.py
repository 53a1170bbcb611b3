"""Reads the config of a model from plain values, as JSON files hold them."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.short_names import short_names
from jax_transformer.config.validation import ConfigError
from jax_transformer.runtime.trees import nearest


def config_from_plain(values: Mapping[str, Any]) -> TransformerConfig:
    """Returns the config whose `dataclasses.asdict` the values are, or the fields of a file with one
    level.

    Raises:
      ConfigError: unknown fields, all of them in one message; a value that isn't allowed.

    Example:
      >>> import dataclasses
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.config.stored import config_from_plain
      >>> config = TransformerConfig(num_heads=4, position_kind="rotary")
      >>> config_from_plain(dataclasses.asdict(config)) == config
      True
    """
    problems: list[str] = []
    names = [*short_names(), *(field.name for field in dataclasses.fields(TransformerConfig))]
    fields = _Reader(problems).fields(TransformerConfig, values, "", names)
    if problems:
        raise ConfigError("; ".join(problems))
    return TransformerConfig(**fields) if "encoder" in values else TransformerConfig.from_flat(fields)


class _Reader:
    """Reads parts from mappings; notes every problem with the path of its field."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems

    def fields(self, part: type, values: Mapping[str, Any], prefix: str, names: list[str]) -> dict[str, Any]:
        """Returns the values of a part's fields, which have these names."""
        hints = typing.get_type_hints(part)
        self.problems += [f"unknown field {prefix}{name}{nearest(name, names)}" for name in values if name not in names]
        return {
            name: self.value(hints.get(name, Any), value, f"{prefix}{name}")
            for name, value in values.items()
            if name in names and name != "kind"
        }

    def value(self, hint: Any, value: Any, path: str) -> Any:
        """Returns a field's value: a part, where its annotation allows one."""
        classes = [one for one in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(one)]
        if not classes or value is None:
            return value
        if not isinstance(value, Mapping):
            self.problems.append(f"{path} must be an object; received {value!r}")
            return None
        chosen = self.chosen(classes, value, path)
        if chosen is None:
            return None
        names = [field.name for field in dataclasses.fields(chosen)]
        fields = self.fields(chosen, value, f"{path}.", names)
        try:
            return chosen(**fields)
        except ConfigError as error:
            self.problems.append(f"{path}: {str(error).partition(': ')[2]}")
            return None

    def chosen(self, classes: list[Any], value: Mapping[str, Any], path: str) -> Any:
        """Returns the class of a part: the one of the kind that the values name."""
        kinds = {one.__dataclass_fields__["kind"].default: one for one in classes if "kind" in one.__dataclass_fields__}
        if not kinds:
            return classes[0]
        kind = value.get("kind")
        if kind not in kinds:
            self.problems.append(f"{path}.kind must be one of {', '.join(kinds)}; received {kind!r}")
            return None
        return kinds[kind]
