"""Runs NumPy formulas on JAX arrays, traced ones among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

METHODS = ("astype", "max", "mean", "min", "reshape", "sum", "swapaxes", "var", "std", "ravel", "cumsum", "any", "all")
"""Methods of arrays that JAX's have, too."""
REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": jnp.sum,
    "maximum": jnp.max,
    "minimum": jnp.min,
    "logical_or": jnp.any,
    "logical_and": jnp.all,
}


class TracedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for a NumPy array whose numbers are a JAX array's.

    NumPy's functions and operators become JAX's. What needs the numbers themselves, such as `if x.any()`, or NumPy's
    own memory, raises TypeError.
    """

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.array.dtype)

    @property
    def T(self) -> TracedArray:  # as NumPy has it
        return self.transpose()

    def transpose(self, *axes: Any) -> TracedArray:
        return TracedArray(self.array.transpose(*axes))

    def copy(self) -> TracedArray:
        return TracedArray(self.array)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> TracedArray:
        return TracedArray(self.array[_given(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array = self.array.at[_given(index)].set(_given(value))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("the numbers of a traced array aren't known")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if options.pop("out", None) is not None:
            return NotImplemented
        if method == "reduce" and ufunc.__name__ in REDUCTIONS:
            return _wrapped(REDUCTIONS[ufunc.__name__](*map(_given, inputs), **options))
        if method != "__call__":
            return NotImplemented
        return _wrapped(getattr(jnp, ufunc.__name__)(*map(_given, inputs), **options))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        found = getattr(jnp, function.__name__, None)
        if found is None:
            return NotImplemented
        return _wrapped(found(*_given(args), **_given(options)))


def _method(name: str) -> Callable[..., TracedArray]:
    def method(self: TracedArray, *args: Any, **options: Any) -> TracedArray:
        options.pop("copy", None)  # an array that is never written to needs none
        return TracedArray(getattr(self.array, name)(*_given(args), **_given(options)))

    return method


for _name in METHODS:
    setattr(TracedArray, _name, _method(_name))


def _given(value: Any) -> Any:
    """Returns arguments with JAX's arrays in place of those that stand for them."""
    if isinstance(value, TracedArray):
        return value.array
    if isinstance(value, tuple | list):
        return type(value)(map(_given, value))
    if isinstance(value, dict):
        return {name: _given(each) for name, each in value.items()}
    return value


def _wrapped(value: Any) -> Any:
    if isinstance(value, jax.Array):
        return TracedArray(value)
    return type(value)(map(_wrapped, value)) if isinstance(value, tuple | list) else value
