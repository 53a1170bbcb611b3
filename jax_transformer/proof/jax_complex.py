"""Rules of JAX's primitives for complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jax_transformer.proof import complex_numbers
from jax_transformer.proof.building import Builder
from jax_transformer.proof.complex_numbers import as_complex, by_parts
from jax_transformer.proof.jax_rules import LAYOUTS, RULES, UNCHANGED, dot_general
from jax_transformer.proof.programs import UnknownOperation

PARTWISE = frozenset((
    *UNCHANGED, *LAYOUTS, "neg", "add", "add_any", "sub", "reduce_sum", "psum", "cumsum", "select_n", "reshape",
    "squeeze", "transpose", "broadcast_in_dim", "concatenate", "stack", "unstack", "split", "pad", "tile",
    "dynamic_update_slice", "scatter-add", "scatter_add", "scatter",
))  # fmt: skip
"""Primitives that compute on real and imaginary parts separately."""

Rule = Callable[..., Any]

COMPLEX_RULES: dict[str, Rule] = {
    "complex": lambda b, x, y, **params: complex_numbers.from_parts(b, x, y),
    "real": lambda b, x, **params: x.real,
    "imag": lambda b, x, **params: x.imag,
    "conj": lambda b, x, **params: complex_numbers.conjugate(b, as_complex(b, x)),
    "mul": lambda b, x, y, **params: complex_numbers.product(b, x, y, b.multiply),
    "div": lambda b, x, y, **params: complex_numbers.quotient(b, x, y),
    "integer_pow": lambda b, x, *, y, **params: complex_numbers.power(b, x, y),
    "square": lambda b, x, **params: complex_numbers.power(b, x, 2),
    "abs": lambda b, x, **params: complex_numbers.size_of(b, x),
    "exp": lambda b, x, **params: complex_numbers.exponential(b, x),
    "dot_general": lambda b, x, y, **params: complex_numbers.product(
        b, x, y, lambda *of: dot_general(b, *of, **params)
    ),
}


def apply_to_complex(b: Builder, name: str, inputs: list[Any], params: Any) -> Any:
    """Applies a rule to operands, or for a result, of which at least one is complex."""
    if name == "convert_element_type":
        return _converted(b, inputs[0], params["new_dtype"])
    if name in PARTWISE and name in RULES:
        return by_parts(lambda *parts: RULES[name](b, *parts, **params), *inputs)
    if name not in COMPLEX_RULES:
        raise UnknownOperation(name, b.line, "no rule covers it on complex numbers")
    return COMPLEX_RULES[name](b, *inputs, **params)


def _converted(b: Builder, x: Any, dtype: Any) -> Any:
    if jax.dtypes.issubdtype(dtype, np.complexfloating):
        return as_complex(b, x)
    return RULES["convert_element_type"](b, x.real, new_dtype=dtype)
