"""Evaluate programs in decimals of 60 digits, to confirm refutations.

In a field, functions have only the properties in the axioms. If a field shows a difference and 60 digits at random
weights don't, the programs may differ at other weights, or be equal for a reason outside the axioms; if 60 digits show
it too, the programs are two functions.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy as np

from jax_transformer.proof.constants import PI, Number, as_read
from jax_transformer.proof.domains import Reals
from jax_transformer.proof.programs import Program

PRECISION = 60
SAME = 1e-40
"""A smaller relative difference is rounding: 20 digits are left for the programs' loss of precision."""
ZERO, LOWEST, NAN = (np.array(Decimal(number), object) for number in ("0", "-Infinity", "NaN"))
LOG_10 = Decimal("2.303")
MOST_WORK = 3 * 10**7
"""The multiplications up to which programs are evaluated: some ten seconds."""


class Digits(Reals):
    """Computes in decimals. Arrays hold Python objects."""

    dtype = Decimal

    def __init__(self, precision: int = PRECISION) -> None:
        self.precision = precision

    def constant(
        self, array: np.ndarray, unit: float = 0.0, radius: np.ndarray | None = None, is_rounded: bool = False
    ) -> np.ndarray:
        with self._context():
            numbers = {
                value: _number(number) for value, number in (as_read(array, unit, radius, is_rounded) or {}).items()
            }
        convert = np.frompyfunc(lambda value: numbers.get(value, Decimal(float(value))), 1, 1)
        return np.asarray(convert(np.asarray(array, np.float64)), object)

    def apply(self, name: str, inputs: list[np.ndarray], attributes: Mapping[str, Any]) -> np.ndarray:
        with self._context():
            return np.asarray(getattr(self, name)(*inputs, **attributes), object)

    @contextmanager
    def _context(self) -> Iterator[None]:
        with decimal.localcontext() as context:
            context.prec, context.Emin, context.Emax = self.precision, decimal.MIN_EMIN, decimal.MAX_EMAX
            context.clear_traps()
            yield

    def given(self, x: np.ndarray, *operands: np.ndarray) -> np.ndarray:
        for operand in operands:
            x = np.where(_each(Decimal.is_finite, operand).astype(bool), x, NAN)
        return x

    def inverse(self, x: np.ndarray) -> np.ndarray:
        return _each(lambda value: 1 / value, x)

    def power(self, x: np.ndarray, exponent: int) -> np.ndarray:
        return _each(lambda value: value**exponent, x)

    def root(self, x: np.ndarray, scale: Any = 1) -> np.ndarray:
        return _each(Decimal.sqrt, x)

    def sum(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return np.asarray(x.sum(axis=axes), object)

    def row_mean(self, x: np.ndarray, axis: int, counts: np.ndarray | None = None) -> np.ndarray:
        counts = np.ones(x.shape, bool) if counts is None else np.broadcast_to(counts, x.shape)
        total = np.where(counts, x, ZERO).sum(axis=axis, keepdims=True)
        return total / _each(lambda count: Decimal(int(count)), counts.sum(axis=axis, keepdims=True))

    def row_exp(self, x: np.ndarray, mean: np.ndarray, axis: int, counts: np.ndarray | None = None) -> np.ndarray:
        row_exp = _each(Decimal.exp, x - mean)
        return row_exp if counts is None else np.where(counts, row_exp, ZERO)

    def exp(self, x: np.ndarray) -> np.ndarray:
        return _each(Decimal.exp, x)

    def log(self, x: np.ndarray) -> np.ndarray:
        return _each(Decimal.ln, x)

    def tanh(self, x: np.ndarray) -> np.ndarray:
        return _each(lambda value: 1 - 2 / ((2 * value).exp() + 1), x)

    def erf(self, x: np.ndarray) -> np.ndarray:
        return _each(erf, x)

    def sin(self, x: np.ndarray) -> np.ndarray:
        return _each(lambda value: sine(value, first=1), x)

    def cos(self, x: np.ndarray) -> np.ndarray:
        return _each(lambda value: sine(value, first=0), x)

    def step(self, x: np.ndarray, reflects: bool) -> np.ndarray:
        return _each(lambda value: Decimal(int(value > 0)), x)

    def equal(self, x: np.ndarray, y: np.ndarray, is_exact: bool) -> np.ndarray:
        near = np.frompyfunc(lambda a, b: Decimal(int(abs(a - b) <= Decimal(SAME) * max(abs(a), abs(b)))), 2, 1)
        return np.asarray(near(x, y), object)

    def largest(
        self, x: np.ndarray, axes: tuple[int, ...], counts: np.ndarray | None = None, shown: np.ndarray | None = None
    ) -> np.ndarray:
        counted = x if counts is None else np.where(counts, x, LOWEST)
        is_nan = _each(Decimal.is_nan, counted).astype(bool)
        found = np.max(np.where(is_nan, LOWEST, counted), axis=axes)
        return np.asarray(np.where(is_nan.any(axis=axes), NAN, found), object)


def work(program: Program) -> int:
    """Returns about how many multiplications a program takes."""
    total = 0
    for one in program.operations:
        size = int(np.prod(one.shape, dtype=np.int64))
        if one.name == "matmul":
            size *= program.operations[one.inputs[0]].shape[2]
        total += size * (100 if one.name in ("exp", "row_exp", "log", "erf", "tanh", "sin", "cos") else 1)
    return total


def distance(x: np.ndarray, y: np.ndarray, size: Decimal | None = None) -> float:
    """Returns the largest difference, relative to `size`, by default the largest number; 0 for two arrays of zeros,
    infinity for arrays of different shapes.

    Raises:
      ValueError: a number isn't finite.
    """
    if np.shape(x) != np.shape(y):
        return math.inf
    pairs = [(Decimal(a), Decimal(b)) for a, b in zip(np.ravel(x).tolist(), np.ravel(y).tolist(), strict=True)]
    if not all(a.is_finite() and b.is_finite() for a, b in pairs):
        raise ValueError("not finite")
    apart, size = max((abs(a - b) for a, b in pairs), default=Decimal(0)), largest(x, y) if size is None else size
    return float(apart / size) if apart else 0.0


def largest(*arrays: np.ndarray) -> Decimal:
    """Returns the largest absolute value of decimals."""
    return max((abs(Decimal(value)) for array in arrays for value in np.ravel(array).tolist()), default=Decimal(0))


def as_decimals(array: np.ndarray) -> np.ndarray:
    """Returns the decimals that floats are."""
    return _each(lambda value: Decimal(float(value)), np.asarray(array, np.float64))


def _each(function: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(function, 1, 1)(x), object)


def _number(number: Number) -> Decimal:
    root = Decimal(number.radicand).sqrt()
    value = _fraction(number.fraction) * (root.sqrt() if number.is_fourth_root else root)
    return value * _fraction(PI).sqrt() ** number.half_pis


def _fraction(value: Any) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def erf(x: Decimal) -> Decimal:
    """Sums 2/√π · e^(−x²) · Σ 2ⁿ x^(2n+1) / (1 · 3 · … · (2n + 1)), whose terms all have one sign."""
    if x * x > LOG_10 * decimal.getcontext().prec:  # 1 − erf(|x|) is less than e^(−x²)
        return Decimal(1).copy_sign(x)
    term, total, n = x, x, 0
    while term and abs(term) > abs(total) * _unit():
        n += 1
        term *= 2 * x * x / (2 * n + 1)
        total += term
    return 2 / _fraction(PI).sqrt() * (-x * x).exp() * total


def sine(x: Decimal, first: int) -> Decimal:
    """Returns the sine (first = 1), or the cosine (first = 0), as the sum of a series."""
    turn = 2 * _fraction(PI)
    x = x.remainder_near(turn)
    term = x if first else Decimal(1)
    total, n = term, first
    while term and abs(term) > _unit():
        term *= -x * x / ((n + 1) * (n + 2))
        total, n = total + term, n + 2
    return total


def _unit() -> Decimal:
    """Returns the last place of a number near 1."""
    return Decimal(10) ** -decimal.getcontext().prec
