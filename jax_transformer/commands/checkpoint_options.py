"""Options of every command that reads a checkpoint."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Any

import tyro


@dataclass(frozen=True)
class CheckpointOptions:
    """Holds settings that a checkpoint may not contain. An error message asks for missing ones by name."""

    num_heads: int | None = None
    """Attention heads."""
    source_pad_id: int | None = None
    """Id of padding in source sentences."""
    target_pad_id: int | None = None
    """Id of padding in target sentences."""
    decoder_start_id: int | None = None
    """Id of the first decoder input. Default with vocabularies: the target's <bos>, or its <eos> if it has no <bos>."""
    eos_id: int | None = None
    """Id that ends a sentence. Default with vocabularies: the target's <eos>."""
    position_table: str | None = None
    """File with the live model's position table [rows, d_model], for a checkpoint without one: .npy, .pt,
    .safetensors."""
    set: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="FIELD=VALUE")] = ()
    """Any other field of the config, such as norm_placement=pre or dropout_rate=0.3."""

    def hints(self) -> dict[str, Any]:
        """Returns the options that were set, by field of the config. Raises ValueError for contradictions."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "set"}
        hints = {name: value for name, value in named.items() if value is not None}
        for assignment in self.set:
            name, equals, text = assignment.partition("=")
            if not equals:
                raise ValueError(f"--set: expected FIELD=VALUE; received {assignment!r}")
            field, value = name.strip().replace("-", "_"), _value(text.strip())
            if hints.setdefault(field, value) != value:
                raise ValueError(f"--set: expected {field}={hints[field]}, as set before; received {assignment!r}")
        return hints


def _value(text: str) -> Any:
    """Returns a number, true, false or null as such, and any other text as text."""
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false", "null") else text)
    except ValueError:
        return text
