"""Settings that tensors don't tell, such as the number of heads, as exported files carry them.

`export_checkpoint` writes them into a file's metadata, and `import_checkpoint` takes them as hints, so that a file that
was exported here comes back without a question. Other programs ignore them.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, NamedTuple

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.short_names import flat, option_names
from jax_transformer.porting.dialects import Dialect
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensors import PortingError

VERSION = 1


class ExportedSettings(NamedTuple):
    """Holds what a file says of the model that it was exported from."""

    dialect: str
    config: dict[str, Any]
    """Fields of TransformerConfig, but those that the dialect fixes."""
    generation: dict[str, Any]
    """Fields of GenerationConfig."""
    names: str = ""
    """The map of names by which the file was exported, as YAML; "" for a dialect."""


def settings_text(model: Model, table: Dialect, names: str = "") -> str:
    """Returns a model's dialect or map of names, config and generation settings as JSON."""
    config = {name: value for name, value in flat(model.config).items() if name not in table.fixed}
    generation = {name: value for name, value in dataclasses.asdict(model.generation).items() if value is not None}
    content = {"version": VERSION, "dialect": table.name, "config": config, "generation": generation}
    return json.dumps(content | ({"names": names} if names else {}))


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
            content["dialect"], content["config"], content["generation"], content.get("names", "")
        )
        of_generation = {field.name for field in dataclasses.fields(GenerationConfig)}
        known = settings.config.keys() <= {*option_names()} and settings.generation.keys() <= of_generation
        if not isinstance(settings.dialect, str) or not isinstance(settings.names, str) or not known:
            raise ValueError("unknown settings")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, PortingError):
            raise
        raise PortingError(
            f"{what}: expected in its metadata the settings that export_checkpoint writes; received {text[:60]!r}. "
            "Give the dialect by name to leave them unread"
        ) from None
    return settings
