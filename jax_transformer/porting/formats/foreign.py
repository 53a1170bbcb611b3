"""What a format says of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jax_transformer.storage.tensors import Tensors


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
