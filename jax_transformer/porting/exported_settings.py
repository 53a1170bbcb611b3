"""Settings that tensors don't tell, such as the number of heads, as exported files carry them.

`export_checkpoint` writes them into a file's metadata, and `import_checkpoint` takes them as hints, so that a file that
was exported here comes back without a question. Other programs ignore them.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, NamedTuple

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.short_names import option_names
from jax_transformer.porting.dialects import Dialect
from jax_transformer.porting.one_level import changes_the_function, has_one_value, is_one_level
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensors import PortingError

VERSION = 2
WITHOUT_PARTS = 1
"""The version of settings that one level of options says, as all were up to version 0.1."""


class ExportedSettings(NamedTuple):
    """Holds what a file says of the model that it was exported from."""

    dialect: str
    config: dict[str, Any]
    """Short names of TransformerConfig with their values, but those that the dialect decides."""
    generation: dict[str, Any]
    """Fields of GenerationConfig."""
    names: str = ""
    """The map of names by which the file was exported, as YAML; "" for a dialect."""
    parts: dict[str, Any] | None = None
    """The whole config in its parts, where short names don't say all of it."""


def settings_text(model: Model, table: Dialect, names: str = "") -> str:
    """Returns a model's dialect or map of names, config and generation settings as JSON."""
    config = {
        name: getattr(model.config, name)
        for name in option_names()
        if has_one_value(model.config, name) and not _is_decided(table, name)
    }
    generation = {name: value for name, value in dataclasses.asdict(model.generation).items() if value is not None}
    parts = {} if is_one_level(model.config) else {"parts": dataclasses.asdict(model.config)}
    version = {"version": VERSION if parts else WITHOUT_PARTS}
    content = version | {"dialect": table.name, "config": config, "generation": generation} | parts
    return json.dumps(content | ({"names": names} if names else {}))


def _is_decided(table: Dialect, name: str) -> bool:
    """Returns whether all models of a dialect have one value of an option."""
    is_default = changes_the_function(name) and name not in table.mentions and not table.has_all_options
    return name in table.fixed or is_default


def parse_settings(text: str, what: str) -> ExportedSettings:
    """Reads `settings_text`.

    Args:
      text: the JSON.
      what: the name of the file, for messages.

    Raises:
      PortingError: the text isn't what this or an older version writes.
    """
    try:
        content = parse_json(text)
        if content["version"] > VERSION:
            raise PortingError(
                f"{what}: a newer version exported this file (settings version {content['version']}; this one reads up "
                f"to {VERSION}). Upgrade, or give the dialect and its settings by name"
            )
        settings = ExportedSettings(
            content["dialect"],
            content["config"],
            content["generation"],
            content.get("names", ""),
            content.get("parts"),
        )
        of_generation = {field.name for field in dataclasses.fields(GenerationConfig)}
        known = settings.config.keys() <= {*option_names()} and settings.generation.keys() <= of_generation
        texts = isinstance(settings.dialect, str) and isinstance(settings.names, str)
        if not texts or not known or not isinstance(settings.parts, dict | None):
            raise ValueError("unknown settings")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, PortingError):
            raise
        raise PortingError(
            f"{what}: expected in its metadata the settings that export_checkpoint writes; received {text[:60]!r}. "
            "Give the dialect by name to leave them unread"
        ) from None
    return settings
