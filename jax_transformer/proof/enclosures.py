"""Evaluate programs in decimals with a bound on their rounding error.

Cancellation may lose any number of digits: 1 − tanh(1000)² is 0 in 800 digits, and 10⁻⁸⁶⁸ in exact arithmetic. So a
difference counts only as far as it exceeds the possible rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, getcontext
from typing import Any

import numpy as np

from jax_transformer.proof.digits import PRECISION, Digits, as_decimals, erf, sine
from jax_transformer.proof.programs import Program

NONE, ONE, INFINITE = Decimal(0), Decimal(1), Decimal("Infinity")
PI_ERROR = Decimal("1e-156")
"""Maximum relative error of π, its root, and inverses."""
MOST_ENCLOSED = 3 * 10**6
"""The multiplications up to which programs are evaluated so: some ten seconds."""
STEPS = 10
"""Maximum error of a series, or of tanh, in units in the last place: each of about a hundred terms is rounded once."""


class Enclosure:
    """A decimal, and by how much it may be off."""

    __slots__ = ("_negative", "error", "value")

    def __init__(self, value: Any, error: Decimal = NONE) -> None:
        self.value, self.error = Decimal(value), error
        self._negative: Enclosure | None = None

    @property
    def highest(self) -> Decimal:
        return self.value + self.error

    def __add__(self, other: Any) -> Enclosure:
        other = enclosed(other)
        return _rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Any) -> Enclosure:
        other = enclosed(other)
        return Enclosure(0) if other is self else _rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Any) -> Enclosure:
        other = enclosed(other)
        if self.is_zero() or other.is_zero():
            return Enclosure(self.value * other.value)
        x, y = abs(self.value), abs(other.value)
        return _rounded(self.value * other.value, x * other.error + (y + other.error) * self.error)

    def __truediv__(self, other: Any) -> Enclosure:
        return self * enclosed(other).inverse()

    def __neg__(self) -> Enclosure:
        """Returns the same object each time, so that opposite numbers are recognised as equal."""
        if self._negative is None:
            self._negative = Enclosure(-self.value, self.error)
            self._negative._negative = self
        return self._negative

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Enclosure:
        return enclosed(other) - self

    def is_zero(self) -> bool:
        return not self.value and not self.error

    def meets(self, other: Enclosure) -> bool:
        """Returns whether both may be one number."""
        return self is other or not abs(self.value - other.value) > self.error + other.error

    def inverse(self) -> Enclosure:
        size = abs(self.value)
        return _rounded(1 / self.value, self.error / (size * (size - self.error)) if self.error < size else INFINITE)

    def power(self, exponent: int) -> Enclosure:
        most = abs(self.value) + self.error
        return _rounded(self.value**exponent, exponent * most ** (exponent - 1) * self.error)

    def root(self) -> Enclosure:
        found = self.value.sqrt()
        return _rounded(found, self.error / found if self.error < self.value else self.highest.sqrt())

    def exp(self) -> Enclosure:
        found = self.value.exp()
        return _rounded(found, found * (2 * self.error if 2 * self.error < 1 else self.error.exp()))

    def log(self) -> Enclosure:
        found = self.value.ln()
        return _rounded(found, 2 * self.error / self.value if 2 * self.error < self.value else INFINITE)

    def tanh(self) -> Enclosure:
        return Enclosure(1 - 2 / ((2 * self.value).exp() + 1), self.error + STEPS * _unit())

    def erf(self) -> Enclosure:
        found = erf(self.value)
        return Enclosure(found, 2 * self.error + STEPS * abs(found) * _unit_with_pi())

    def wave(self, first: int) -> Enclosure:
        """Returns the sine or the cosine, after reducing the argument by multiples of 2π."""
        return Enclosure(sine(self.value, first), self.error + (STEPS + abs(self.value)) * _unit_with_pi())

    def step(self) -> Enclosure:
        return Enclosure(int(self.value > 0), ONE if self.error and self.meets(Enclosure(0)) else NONE)


class Enclosures(Digits):
    """Computes in decimals with bounds of their errors. Arrays hold `Enclosure`s."""

    dtype = Enclosure  # type: ignore[assignment]

    def constant(
        self, array: np.ndarray, unit: float = 0.0, radius: np.ndarray | None = None, is_rounded: bool = False
    ) -> np.ndarray:
        """Rounds numbers that are no floats, such as roots."""
        found = super().constant(array, unit, radius, is_rounded)
        with self._context():
            return _each(_with_float_error, found, as_decimals(array))

    def given(self, x: np.ndarray, *operands: np.ndarray) -> np.ndarray:
        for operand in operands:
            x = np.where(_each(lambda each: each.value.is_finite(), operand).astype(bool), x, _NAN)
        return x

    def inverse(self, x: np.ndarray) -> np.ndarray:
        return _each(Enclosure.inverse, x)

    def power(self, x: np.ndarray, exponent: int) -> np.ndarray:
        return _each(lambda value: value.power(exponent), x)

    def root(self, x: np.ndarray, scale: Any = 1) -> np.ndarray:
        return _each(Enclosure.root, x)

    def row_exp(self, x: np.ndarray, mean: np.ndarray, axis: int, counts: np.ndarray | None = None) -> np.ndarray:
        row_exp = _each(Enclosure.exp, x - mean)
        return row_exp if counts is None else np.where(counts, row_exp, _ZERO)

    def exp(self, x: np.ndarray) -> np.ndarray:
        return _each(Enclosure.exp, x)

    def log(self, x: np.ndarray) -> np.ndarray:
        return _each(Enclosure.log, x)

    def tanh(self, x: np.ndarray) -> np.ndarray:
        return _each(Enclosure.tanh, x)

    def erf(self, x: np.ndarray) -> np.ndarray:
        return _each(Enclosure.erf, x)

    def sin(self, x: np.ndarray) -> np.ndarray:
        return _each(lambda value: value.wave(1), x)

    def cos(self, x: np.ndarray) -> np.ndarray:
        return _each(lambda value: value.wave(0), x)

    def step(self, x: np.ndarray, reflects: bool) -> np.ndarray:
        return _each(Enclosure.step, x)

    def equal(self, x: np.ndarray, y: np.ndarray, is_exact: bool) -> np.ndarray:
        return _each(_equal, x, y)

    def chosen(self, found: np.ndarray, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return _each(_chosen, condition, x, y)

    def largest(
        self, x: np.ndarray, axes: tuple[int, ...], counts: np.ndarray | None = None, shown: np.ndarray | None = None
    ) -> np.ndarray:
        found = _each(enclosed, x if counts is None else np.where(counts, x, _LOWEST))
        for axis in sorted(axes, reverse=True):
            found = np.asarray(np.frompyfunc(_larger, 2, 1).reduce(found, axis=axis), object)
        return found

    def places(self, x: np.ndarray, ranks: tuple[int, ...]) -> np.ndarray:
        rows = _each(enclosed, x).reshape(-1, x.shape[-1])
        found = np.stack([_places_of(row, ranks) for row in rows])
        return found.reshape(*x.shape[:-1], len(ranks), x.shape[-1])

    def distance(self, x: np.ndarray, y: np.ndarray, size: Decimal) -> float:
        """Returns the largest difference that rounding doesn't explain, relative to a size; infinity for arrays of
        different shapes.

        Raises:
          ValueError: a number isn't finite.
        """
        if np.shape(x) != np.shape(y):
            return math.inf
        with self._context():
            pairs = [
                (enclosed(a), enclosed(b)) for a, b in zip(np.ravel(x).tolist(), np.ravel(y).tolist(), strict=True)
            ]
            if not all(a.value.is_finite() and b.value.is_finite() for a, b in pairs):
                raise ValueError("not finite")
            apart = [abs(a.value - b.value) - a.error - b.error for a, b in pairs if not a.meets(b)]
            return float(max(apart) / size) if apart else 0.0


def as_enclosures(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns decimals by name as numbers that are exact."""
    return {name: _each(enclosed, array) for name, array in weights.items()}


def enclosed(value: Any) -> Enclosure:
    return value if isinstance(value, Enclosure) else Enclosure(value)


_NAN, _ZERO, _LOWEST = (np.array(Enclosure(each), object) for each in ("NaN", "0", "-Infinity"))


def _each(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(lambda *own: function(*map(enclosed, own)), len(arrays), 1)(*arrays), object)


def _rounded(value: Decimal, error: Decimal) -> Enclosure:
    return Enclosure(value, error + abs(value) * _unit()) if value.is_finite() else Enclosure(value)


def digits_for(programs: Sequence[Program]) -> int:
    """Returns the number of digits that hold both the weights and a program's constants: max(x, −10³⁸) is computed as
    −10³⁸ + (x + 10³⁸)."""
    arrays = [one.attributes["array"] for program in programs for one in program.operations if one.name == "constant"]
    most = max((float(np.abs(array[np.isfinite(array)]).max(initial=1.0)) for array in arrays), default=1.0)
    return 2 * PRECISION + math.ceil(math.log10(most))


def _unit_with_pi() -> Decimal:
    """Returns the possible error of a number near 1 that was computed from π."""
    return max(_unit(), PI_ERROR)


def _unit() -> Decimal:
    """Returns the rounding error of a number near 1."""
    return Decimal(1).scaleb(1 - getcontext().prec)


def _with_float_error(number: Enclosure, of: Enclosure) -> Enclosure:
    is_float = number.value == of.value or not number.value.is_finite()
    return number if is_float else _rounded(number.value, abs(number.value) * PI_ERROR)


def _equal(a: Enclosure, b: Enclosure) -> Enclosure:
    is_sure = a is b or not (a.error or b.error)
    return Enclosure(int(a.meets(b)), NONE if is_sure or not a.meets(b) else ONE)


def _chosen(condition: Enclosure, x: Enclosure, y: Enclosure) -> Enclosure:
    one, other = (x, y) if condition.value else (y, x)
    return Enclosure(one.value, one.error + abs(x.value - y.value) + other.error) if condition.error else one


def _larger(a: Enclosure, b: Enclosure) -> Enclosure:
    if a.value.is_nan() or b.value.is_nan():
        return a if a.value.is_nan() else b
    one, other = (a, b) if a.value >= b.value else (b, a)
    return one if other.highest <= one.highest else Enclosure(one.value, other.highest - one.value)


def _places_of(row: np.ndarray, ranks: tuple[int, ...]) -> np.ndarray:
    """Returns the entries that have these ranks; entries that may be equal may exchange ranks."""
    entries: list[Enclosure] = row.tolist()
    order = sorted(range(row.size), key=lambda place: entries[place].value, reverse=True)
    found = np.empty((len(ranks), row.size), object)
    for number, rank in enumerate(ranks):
        own, others = (
            entries[order[rank]],
            [entries[order[each]] for each in (rank - 1, rank + 1) if 0 <= each < row.size],
        )
        error = ONE if any(own.meets(other) for other in others) else NONE
        found[number] = [Enclosure(int(place == order[rank]), error) for place in range(row.size)]
    return found
