"""Rules of ATen's operations for complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils._pytree import tree_flatten, tree_unflatten

from jax_transformer.proof import complex_numbers
from jax_transformer.proof.building import Builder
from jax_transformer.proof.complex_numbers import Complex, as_complex, by_parts
from jax_transformer.proof.programs import UnknownOperation, Value
from jax_transformer.proof.torch_arithmetic import bmm, mm, mv
from jax_transformer.proof.torch_registry import RULES, value_of

PARTWISE = frozenset((
    "clone", "detach", "lift_fresh_copy", "alias", "contiguous", "_unsafe_view", "view", "reshape", "_reshape_copy",
    "view_copy", "copy", "zero", "zeros_like", "new_zeros", "cat", "stack", "constant_pad_nd", "index_put", "scatter",
    "index_add", "slice_scatter", "select_scatter", "neg", "sum", "mean", "cumsum", "where", "masked_fill",
))  # fmt: skip
"""Operations that compute on real and imaginary parts separately."""


def apply_to_complex(b: Builder, name: str, args: Any, kwargs: Any) -> Any:
    """Applies a rule to arguments, or for a result, of which at least one is complex."""
    if name in PARTWISE:
        leaves, tree = tree_flatten((args, kwargs))

        def rule(*parts: Any) -> Any:
            own_args, own_kwargs = tree_unflatten(parts, tree)
            return RULES[name](b, *own_args, **own_kwargs)

        return by_parts(rule, *leaves)
    if name not in COMPLEX_RULES:
        raise UnknownOperation(name, b.line, "no rule covers it on complex numbers")
    return COMPLEX_RULES[name](b, *args, **kwargs)


def _value(b: Builder, x: Any) -> Any:
    return (
        complex_numbers.constant(b, np.asarray(x))
        if isinstance(x, complex)
        else x
        if isinstance(x, Complex)
        else value_of(b, x)
    )


def _add(b: Builder, x: Any, y: Any, *, alpha: Any = 1) -> Complex:
    x, y = as_complex(b, _value(b, x)), as_complex(b, _value(b, y))
    y = y if alpha == 1 else _mul(b, y, alpha)
    return Complex(b.add(x.real, y.real), b.add(x.imag, y.imag))


def _sub(b: Builder, x: Any, y: Any, *, alpha: Any = 1) -> Complex:
    return _add(b, x, _mul(b, y, -1), alpha=alpha)


def _mul(b: Builder, x: Any, y: Any) -> Complex:
    x, y = _value(b, x), _value(b, y)
    return (
        complex_numbers.product(b, x, y, b.multiply)
        if Complex in (type(x), type(y))
        else as_complex(b, b.multiply(x, y))
    )


def _pow(b: Builder, x: Complex, exponent: Any) -> Complex:
    if isinstance(exponent, Complex | Value) or exponent != int(exponent):
        raise UnknownOperation("pow", b.line, "the exponent of a complex number is no integer")
    return complex_numbers.power(b, x, int(exponent))


def _to_copy(b: Builder, x: Any, *, dtype: Any = None, **rest: Any) -> Any:
    if dtype is None or dtype.is_complex:
        return as_complex(b, x)
    return RULES["_to_copy"](b, x.real, dtype=dtype)


def _bilinear(rule: Callable[[Builder, Value, Value], Value]) -> Callable[..., Complex]:
    return lambda b, x, y: complex_numbers.product(b, x, y, lambda *of: rule(b, *of))


COMPLEX_RULES: dict[str, Callable[..., Any]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": lambda b, x, y: complex_numbers.quotient(b, _value(b, x), _value(b, y)),
    "pow": _pow,
    "_to_copy": _to_copy,
    "mm": _bilinear(mm),
    "bmm": _bilinear(bmm),
    "mv": _bilinear(mv),
    "complex": complex_numbers.from_parts,
    "polar": complex_numbers.polar,
    "_conj_physical": complex_numbers.conjugate,
    "conj_physical": complex_numbers.conjugate,
    "abs": complex_numbers.size_of,
    "exp": complex_numbers.exponential,
}
