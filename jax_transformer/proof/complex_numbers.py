"""Complex numbers, as pairs of real values, and values that no rule computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax_transformer.proof.building import Builder
from jax_transformer.proof.constants import half_ulp, is_meant, unit_of
from jax_transformer.proof.programs import UnknownOperation, Value
from jax_transformer.proof.roundings import FUNCTION_ERROR, moved_by


@dataclass(frozen=True, eq=False)
class Complex:
    """A complex array in a program."""

    real: Value
    imag: Value
    kind = "complex"
    table = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.real.shape

    @property
    def size(self) -> int:
        return self.real.size

    @property
    def known(self) -> np.ndarray | None:
        """Returns the array if it depends on no weight."""
        if self.real.known is None or self.imag.known is None:
            return None
        return np.asarray(self.real.known + 1j * self.imag.known)


@dataclass(frozen=True, eq=False)
class Unread:
    """An array that an operation without a rule computes, or that follows from one."""

    shape: tuple[int, ...]
    error: UnknownOperation
    kind = "unknown"
    known = None
    table = None


def by_parts(function: Callable[..., Any], *values: Any) -> Any:
    """Applies a function that is linear in its complex arguments to their real parts, and to their imaginary parts. It
    returns a value, or several."""
    if not any(isinstance(each, Complex) for each in values):
        return function(*values)
    real, imag = (
        function(*(getattr(each, part) if isinstance(each, Complex) else each for each in values))
        for part in ("real", "imag")
    )
    if isinstance(real, list | tuple):
        return [Complex(*parts) for parts in zip(real, imag, strict=True)]
    return Complex(real, imag)


def as_complex(b: Builder, x: Any) -> Complex:
    if isinstance(x, Complex):
        return x
    x = b.as_float(x)
    return Complex(x, b.constant(np.zeros(x.shape)))


def from_parts(b: Builder, real: Value, imag: Value) -> Complex:
    shape = np.broadcast_shapes(real.shape, imag.shape)
    return Complex(b.broadcast(b.as_float(real), shape), b.broadcast(b.as_float(imag), shape))


def constant(b: Builder, array: np.ndarray) -> Complex:
    return Complex(b.constant(np.array(array.real)), b.constant(np.array(array.imag)))


def computed(
    b: Builder, run: Callable[[list[np.ndarray]], Sequence[np.ndarray]], inputs: Sequence[Any], found: Sequence[Any]
) -> list[Any]:
    """Runs an operation without a rule on values that depend on no weight, as the program does; returns the results and
    their possible errors.

    Args:
      run: the operation, arrays → arrays.
      inputs: the values that it reads.
      found: its results.
    """
    parts = [part for each in inputs for part in _parts_of_value(each)]
    radii = [None if part.kind != "float" else b.radius(part) for part in parts]

    def run_parts(arrays: list[np.ndarray]) -> list[np.ndarray]:
        left, operands = list(arrays), []
        for each in inputs:
            first = left.pop(0)
            operands.append(first + 1j * left.pop(0) if isinstance(each, Complex) else first)
        return [part for each in run(operands) for part in _parts(each)]

    results = [part for each in found for part in _parts(each)]
    moved = moved_by(run_parts, [np.asarray(part.known) for part in parts], radii, results)
    values: list[Any] = []
    for array in found:
        own = [b.computed(part, moved.pop(0) + _own_rounding(part)) for part in _parts(array)]
        values.append(Complex(*own) if len(own) == 2 else own[0])
    return values


def _own_rounding(array: np.ndarray) -> Any:
    if array.dtype == bool or np.issubdtype(array.dtype, np.integer):
        return 0.0
    unit = unit_of(array.dtype)
    return 0.0 if is_meant(array, unit).all() else FUNCTION_ERROR * half_ulp(array, unit)


def _parts_of_value(x: Any) -> list[Value]:
    return [x.real, x.imag] if isinstance(x, Complex) else [x]


def _parts(array: np.ndarray) -> list[np.ndarray]:
    is_complex = array.dtype.kind == "c"
    return [np.array(array.real), np.array(array.imag)] if is_complex else [array]


def conjugate(b: Builder, x: Complex) -> Complex:
    return Complex(x.real, b.negate(x.imag))


def product(b: Builder, x: Any, y: Any, times: Callable[[Value, Value], Value]) -> Complex:
    """Returns a bilinear function of two arrays, at least one of them complex.

    Args:
      times: the function of real arrays.
    """
    if not isinstance(x, Complex):
        return Complex(times(x, y.real), times(x, y.imag))
    if not isinstance(y, Complex):
        return Complex(times(x.real, y), times(x.imag, y))
    real = b.subtract(times(x.real, y.real), times(x.imag, y.imag))
    return Complex(real, b.add(times(x.real, y.imag), times(x.imag, y.real)))


def square_of_size(b: Builder, x: Complex) -> Value:
    return b.add(b.power(x.real, 2), b.power(x.imag, 2))


def inverse(b: Builder, x: Complex) -> Complex:
    inverse_size = b.inverse(square_of_size(b, x))
    return Complex(b.multiply(x.real, inverse_size), b.negate(b.multiply(x.imag, inverse_size)))


def quotient(b: Builder, x: Any, y: Any) -> Complex:
    return product(b, x, inverse(b, y) if isinstance(y, Complex) else b.inverse(y), b.multiply)


def power(b: Builder, x: Complex, exponent: int) -> Complex:
    """Returns x to an integer."""
    if exponent < 0:
        return inverse(b, power(b, x, -exponent))
    found = Complex(b.constant(np.ones(x.shape)), b.constant(np.zeros(x.shape)))
    for _ in range(exponent):
        found = product(b, found, x, b.multiply)
    return found


def size_of(b: Builder, x: Complex) -> Value:
    return b.root(square_of_size(b, x))


def exponential(b: Builder, x: Complex) -> Complex:
    return polar(b, b.exp(x.real), x.imag)


def polar(b: Builder, size: Value, angle: Value) -> Complex:
    return from_parts(b, b.multiply(size, b.cos(angle)), b.multiply(size, b.sin(angle)))


def first_unread(values: Sequence[Any]) -> Unread | None:
    """Returns the first unknown value."""
    return next((each for each in values if isinstance(each, Unread)), None)
