"""The registry of styles, and what they have in common."""

from __future__ import annotations

import re
from typing import Any

import user_models
from torch import Tensor, nn

from torch_reference.pytorch import PytorchTransformer

STYLES: dict[str, type[nn.Module]] = {}
"""By name, the classes that take PytorchTransformer's arguments."""


def style(kind: type[nn.Module]) -> type[nn.Module]:
    """Registers a class under its name in snake case."""
    STYLES[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()] = kind
    return kind


def made(kind: type[nn.Module], **others: Any) -> Any:
    return user_models.randomised(kind(**{**user_models.SIZES, **others}))


class Base(PytorchTransformer):
    """Without the argument `trace`."""

    def logits_of(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        return PytorchTransformer.forward(self, source_ids, decoder_input_ids)
