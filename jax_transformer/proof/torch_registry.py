"""Where rules of ATen's operations are kept, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import Value

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def value_of(b: Builder, x: Any) -> Value:
    """Returns a tensor's value, or a Python number's."""
    if isinstance(x, Value):
        return x
    if isinstance(x, bool):
        return b.constant(np.bool_(x))
    return b.constant(np.float64(x) if isinstance(x, float) else np.int64(x))
