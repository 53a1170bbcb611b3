"""What a target of `jax-transformer export` takes and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Quantization = Literal[
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"
]  # fmt: skip
"""The names that CTranslate2 has for how weights are stored."""


class ExportError(ValueError):
    """A model that a target has no place for, or a path that can't be written."""


@dataclass(frozen=True)
class ExportOptions:
    """Holds the options of all targets. None: not given."""

    quantization: Quantization | None = None
    """How CTranslate2 stores the weights."""


def refuse(target: str, problems: list[str]) -> None:
    """Raises ExportError, one line with all problems, if there are any."""
    if problems:
        raise ExportError(f"{target} can't compute what this model computes: {'; '.join(problems)}")
