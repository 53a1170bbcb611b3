"""Arguments and checks shared by the targets of `jax-transformer export`."""

from __future__ import annotations

from typing import Literal

Quantization = Literal[
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"
]  # fmt: skip
"""The names that CTranslate2 has for how weights are stored."""

NO_WEIGHT_BELOW = -1000.0
"""A masked logit this low gets a weight of zero in float32, as one that a target leaves out."""


class ExportError(ValueError):
    """Raised when a target can't express a model, or a path can't be written."""


def refuse(target: str, problems: list[str]) -> None:
    """Raises ExportError with all problems in one line, if there are any."""
    if problems:
        raise ExportError(f"{target} can't compute this model: {'; '.join(problems)}")
