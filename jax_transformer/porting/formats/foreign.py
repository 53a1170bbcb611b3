"""What a format says of a checkpoint, and what writing it again takes from the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_transformer.config.program_text import TEXT
from jax_transformer.storage.tensors import PortingError, Tensors

if TYPE_CHECKING:
    from jax_transformer.storage.model_directory import Model


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """Holds a checkpoint of another program: its tensors, and what its settings say of the model."""

    title: str
    """The format's name, for people."""
    where: str
    """The place of its settings, for messages."""
    dialect: str
    """The dialect of the tensors' names; "": the names decide."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TransformerConfig and GenerationConfig that the settings decide."""
    assumed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that nothing in the checkpoint decides, as usual programs have them."""
    left: tuple[str, ...] = ()
    """What isn't read, such as an optimizer's state."""
    layout: Mapping[str, Any] = field(default_factory=dict)
    """What writing the format again needs; values of JSON."""
    tensors: Tensors | None = None
    """The tensors by the dialect's names. None: those of the file."""
    tokenizer: Mapping[str, bytes] = field(default_factory=dict)
    """Tokenizer files by name: TEXT of `config.program_text` with the files that it names, or as `tokenizer_family` of
    transformers has them."""
    tokenizer_family: str = ""
    """The model_type of the family that has such tokenizer files."""
    missing: tuple[str, ...] = ()
    """Files without which the checkpoint is only a part of one, and what they hold."""


def is_model_directory(path: Path, weights: re.Pattern[str], vocabularies: Iterable[str]) -> bool:
    """Returns whether a directory has a file of weights, by the pattern of their names, or all vocabularies."""
    if not path.is_dir():
        return False
    has_vocabularies = all((path / name).is_file() for name in vocabularies)
    return has_vocabularies or any(weights.fullmatch(entry.name) for entry in path.iterdir())


def layout_with_config(model: Model, dialect: str, path: Path, expected: str) -> Mapping[str, Any]:
    """Returns the layout of a model that came from a directory with a config, which it brought along.

    Args:
      path: where the model is to be written, for the message.
      expected: what the model should be, for the message.

    Raises:
      PortingError: the model came from elsewhere.
    """
    origin = model.origin or {}
    layout: Mapping[str, Any] = origin.get("layout", {}) if origin.get("dialect") == dialect else {}
    if not layout.get("config"):
        raise PortingError(f"{path}: expected {expected}")
    return layout


def write_tokenizer(model: Model, directory: Path) -> None:
    """Writes the tokenizer files that a model came with."""
    for name, data in (model.tokenizer_files or {}).items():
        if name != TEXT:
            (directory / name).write_bytes(data)
