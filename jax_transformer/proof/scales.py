"""Find the constant factor of a value, so that √(c · x) is √c · √x however c is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from jax_transformer.proof.constants import as_read, few_numbers
from jax_transformer.proof.programs import Operation, Value

ONE = Fraction(1)
MOST_EXPONENT = 64
MOST_RADICAND_OF_SCALE = 2**96
"""√(a/b) is √a/√b for a · b up to this: Adam's 1 − β₂ᵗ has long terms."""
LONGEST = 2**256
"""A fraction of larger terms isn't followed."""
THROUGH = frozenset(
    ("reshape", "broadcast", "transpose", "take", "sum", "cumulative_sum", "row_mean", "negate", "rounded")
)
"""Operations that keep a positive factor of all elements."""

COMPUTED: dict[str, Callable[..., Fraction]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "negate": lambda x: -x,
    "inverse": lambda x: 1 / x,
    "power": lambda x, exponent: x**exponent,
    "rounded": lambda x, digest, unit=0.0: x,
}
"""Operations on constants."""


class Scales:
    """Answers for the operations of a builder, which may grow."""

    def __init__(self, operations: Sequence[Operation], values: Sequence[Value]) -> None:
        self.operations, self.values = operations, values
        self._scales: list[Fraction] = []
        self._constants: list[Fraction | None] = []

    def radicand_scale(self, node: int) -> Fraction:
        """Returns a positive c of a value written as c · x; for a sum, the largest c of its parts."""
        self._extend()
        return self._scales[node] if _is_short(self._scales[node], MOST_RADICAND_OF_SCALE) else ONE

    def _extend(self) -> None:
        for node in range(len(self._scales), len(self.operations)):
            one = self.operations[node]
            constant = self._constant_of(one, self.values[node].known)
            self._constants.append(constant)
            scale = abs(constant) if constant else self._scale_of(one)
            self._scales.append(scale if _is_short(scale, LONGEST) else ONE)

    def _scale_of(self, one: Operation) -> Fraction:
        if one.name in THROUGH:
            return self._scales[one.inputs[0]]
        if one.name in ("multiply", "matmul"):
            constants = [self._constants[each] for each in one.inputs]
            left, right = (
                self._scales[each] if constant is None else abs(constant)
                for each, constant in zip(one.inputs, constants, strict=True)
            )
            return left * right
        if one.name == "power":
            exponent = one.attributes["exponent"]
            return Fraction(self._scales[one.inputs[0]] ** exponent) if exponent <= MOST_EXPONENT else ONE
        if one.name in ("add", "subtract", "concatenate", "where", "put"):
            parts = [each for each in one.inputs if self.values[each].known is None]
            return max((self._scales[each] for each in parts), default=ONE)  # E[x²] − E[x]² is scaled as E[x²] is
        return ONE

    def _constant_of(self, one: Operation, known: np.ndarray | None) -> Fraction | None:
        """Returns the fraction that a constant stands for, if all its elements are equal; None otherwise."""
        if known is None:
            return None
        if one.name in COMPUTED:
            found = [constant for each in one.inputs if (constant := self._constants[each]) is not None]
            if len(found) < len(one.inputs) or (one.name == "inverse" and not found[0]):
                return None
            if one.attributes.get("exponent", 0) > MOST_EXPONENT:
                return None
            number = Fraction(COMPUTED[one.name](*found, **one.attributes))
            return number if _is_short(number, LONGEST) else None
        if one.name in ("reshape", "broadcast"):
            return self._constants[one.inputs[0]]
        while one.name in ("reshape", "broadcast", "transpose", "take"):
            one = self.operations[one.inputs[0]]
        if one.name != "constant":
            return None
        numbers, read_as = few_numbers(known), as_read(**one.attributes, is_rounded=True)
        if read_as is None or numbers is None or numbers.size != 1:
            return None
        found_number = read_as.get(float(numbers[0])) if numbers[0] else None
        is_fraction = found_number is not None and (found_number.radicand, found_number.half_pis) == (1, 0)
        return found_number.fraction if found_number is not None and is_fraction else None


def _is_short(number: Fraction, most: int) -> bool:
    return abs(number.numerator) * number.denominator <= most
