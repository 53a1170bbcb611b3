"""Registry of rules for ATen's operations, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import Value

Rule = Callable[..., Any]

RULES: dict[str, Rule] = {}
WIDE_SCALARS = frozenset((
    "mul", "div", "reciprocal", "addcmul", "addcdiv", "lerp", "leaky_relu", "native_layer_norm", "addmm", "baddbmm",
))  # fmt: skip
"""Operations that compute with a scalar in float32 for narrower tensors; all other operations round it to the tensors'
type."""


class Scalar(float):
    """A Python number in the type in which an operation computes with it.

    Example: `w * 0.1` reads 0.1 in float32 if `w` is a tensor in float32.
    """

    dtype: Any

    def __new__(cls, number: float, dtype: Any) -> Scalar:
        with np.errstate(over="ignore"):
            scalar = super().__new__(cls, np.asarray(number).astype(dtype))
        scalar.dtype = dtype
        return scalar


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
    if isinstance(x, Scalar):
        return b.constant(np.asarray(x).astype(x.dtype))
    if isinstance(x, bool):
        return b.constant(np.bool_(x))
    return b.constant(np.float64(x) if isinstance(x, float) else np.int64(x))
