"""Bound the degrees of the rational functions that a program computes between two hashes.

Two different rational functions of degree D agree at a random point of a field of p elements with probability D/p at
most (Schwartz 1980, Zippel 1979). A value here is P/Q. Q is a product of powers of the divisors met so far, all
elements of each, so that the values of an array share it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jax_transformer.proof.programs import FUNCTIONS, Operation, Program

Powers = Mapping[int, int]
"""Divisors, by the operation that inverts them → exponents."""


@dataclass(frozen=True)
class Degree:
    """Bounds the degree of P, and names the factors of Q."""

    numerator: int
    divisors: Powers = field(default_factory=dict)


@dataclass(frozen=True)
class Bounds:
    """Holds the highest degree of any value that is compared, hashed or inverted, and how many such values there
    are."""

    degree: int
    values: int


def bound(program: Program, compared: Sequence[int]) -> Bounds:
    """Returns the bounds of a program.

    Args:
      compared: the operations whose values are compared.
    """
    degrees: list[Degree] = []
    sizes: dict[int, int] = {}
    """The degree of the product of all elements of each divisor."""

    def whole(powers: Powers) -> int:
        return sum(exponent * sizes[node] for node, exponent in powers.items())

    def total(degree: Degree) -> int:
        return max(degree.numerator, whole(degree.divisors))

    highest, values = 1, 0
    for node, one in enumerate(program.operations):
        inputs = [degrees[each] for each in one.inputs]
        if one.name in FUNCTIONS or one.name == "root":
            read = program.operations[one.inputs[0]]
            highest = max(highest, *(2 * total(each) for each in inputs))  # 2: roots know half of the field
            values += int(np.prod(read.shape, dtype=np.int64))
            degrees.append(Degree(1))
        elif one.name == "inverse":
            sizes[node] = max(total(inputs[0]), 1) * int(np.prod(one.shape, dtype=np.int64))
            values += int(np.prod(one.shape, dtype=np.int64))
            highest = max(highest, total(inputs[0]))
            degrees.append(Degree(whole(inputs[0].divisors) + sizes[node], {node: 1}))
        else:
            degrees.append(_combined(one, inputs, whole))
    for node in compared:
        highest = max(highest, total(degrees[node]))
        values += int(np.prod(program.operations[node].shape, dtype=np.int64))
    return Bounds(highest, values)


def _combined(one: Operation, inputs: list[Degree], whole: Callable[[Powers], int]) -> Degree:
    if not inputs:
        return Degree(1 if one.name == "input" else 0)
    if one.name in ("multiply", "matmul"):
        left, right = inputs
        powers = {
            each: left.divisors.get(each, 0) + right.divisors.get(each, 0)
            for each in {**left.divisors, **right.divisors}
        }
        return Degree(left.numerator + right.numerator, powers)
    if one.name == "power":
        n = one.attributes["exponent"]
        return Degree(n * inputs[0].numerator, {each: n * count for each, count in inputs[0].divisors.items()})
    common: dict[int, int] = {}
    for each in inputs:
        for node, count in each.divisors.items():
            common[node] = max(common.get(node, 0), count)
    return Degree(max(each.numerator + whole(common) - whole(each.divisors) for each in inputs), common)
