"""Tell by which constant factor a value is scaled, so that √(c · x) is √c · √x however c is written."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from jax_transformer.proof.constants import MOST_RADICAND_OF_RATIO, few_numbers, read
from jax_transformer.proof.programs import Operation, Value

ONE = Fraction(1)
THROUGH = frozenset(("reshape", "broadcast", "transpose", "take", "sum", "cumulative_sum", "row_mean"))
"""Operations that keep a factor of all elements."""


def root_scale(operations: Sequence[Operation], values: Sequence[Value], node: int) -> Fraction:
    """Returns a positive c of a value that is written c · x; of a sum, that of the part with the largest c."""
    scale = scale_of(operations, values, node)
    return scale if scale.numerator * scale.denominator <= MOST_RADICAND_OF_RATIO else ONE


def scale_of(operations: Sequence[Operation], values: Sequence[Value], node: int) -> Fraction:
    one = operations[node]
    if one.name in THROUGH:
        return scale_of(operations, values, one.inputs[0])
    if one.name in ("multiply", "matmul"):
        left, right = (constant_of(operations, each) for each in one.inputs)
        factors = [
            scale_of(operations, values, each) if constant is None else abs(constant)
            for each, constant in zip(one.inputs, (left, right), strict=True)
        ]
        return factors[0] * factors[1]
    if one.name == "power":
        return Fraction(scale_of(operations, values, one.inputs[0]) ** one.attributes["exponent"])
    if one.name in ("add", "subtract"):
        parts = [each for each in one.inputs if values[each].known is None]
        return max((scale_of(operations, values, each) for each in parts), default=ONE)
    return ONE


def constant_of(operations: Sequence[Operation], node: int) -> Fraction | None:
    """Returns the fraction that a constant stands for, all of whose elements are one; None for anything else."""
    one = operations[node]
    if one.name in ("reshape", "broadcast", "transpose"):
        return constant_of(operations, one.inputs[0])
    if one.name == "inverse":
        inner = constant_of(operations, one.inputs[0])
        return None if not inner else 1 / inner
    if one.name != "constant":
        return None
    if "exactly" in one.attributes:
        return Fraction(one.attributes["exactly"])
    numbers = few_numbers(one.attributes["array"])
    if numbers is None or numbers.size != 1 or not abs(float(numbers[0])) < float("inf") or numbers[0] == 0:
        return None
    number = read(float(numbers[0]))
    return number.fraction if (number.radicand, number.half_pis) == (1, 0) else None
