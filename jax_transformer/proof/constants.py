"""Read floats as the real numbers that programs mean by them.

A float is a dyadic rational. Some are written for another number that no float holds: 1/√8, 0.1, √(2/π). Those within
one unit in the last place of such a number are read as the number (axioms "roots" and "fractions"), so that dividing
by √8 is multiplying by 1/√8. All others are what they are: ε · (1 + 2⁻⁵⁰) is another ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from jax_transformer.proof.programs import Program

MOST_RADICAND = 2**16
"""The largest n whose √n is looked for."""
MOST_DENOMINATOR_OF_SQUARE, MOST_RADICAND_OF_RATIO = 2**12, 2**24
"""√(a/b) is looked for with b up to the first and a · b up to the second."""
MOST_FACTOR = 2**12
"""The largest factor whose square is looked for under a root."""
MOST_TERM, MOST_DENOMINATOR = 1000, 10**6
"""Fractions a/b with a and b up to these are looked for, and decimals of up to four digits."""
MOST_DIGITS = 6
"""Digits of a decimal x whose 1 − x in float64 is read as 1 − x: programs write 1 − 0.9 beside 0.9."""
MOST_ELEMENTS, MOST_DIFFERENT = 4096, 16
"""An array of more elements, or of more different ones, is a table."""
EXACT_BITS = 32
"""A float of so few significant bits is meant as it stands."""


@dataclass(frozen=True)
class Number:
    """The real number fraction · √radicand · π^(halves of pi), or fraction · ∜radicand."""

    fraction: Fraction
    radicand: int = 1
    half_pis: int = 0
    axiom: str = ""
    """The axiom that reads a float as this number; "": it is the float."""
    is_fourth_root: bool = False

    def __str__(self) -> str:
        parts = [str(self.fraction)] if self.fraction != 1 or (self.radicand, self.half_pis) == (1, 0) else []
        parts += [f"{'∜' if self.is_fourth_root else '√'}{self.radicand}"] if self.radicand != 1 else []
        parts += [{1: "√π", -1: "1/√π", 2: "π", -2: "1/π"}[self.half_pis]] if self.half_pis else []
        return " · ".join(parts)


@lru_cache(4096)
def read(value: float) -> Number:
    """Returns the number that a finite float64 stands for."""
    exactly = Fraction(value)
    if significant_bits(exactly) <= EXACT_BITS:
        return Number(exactly)
    for number in _candidates(abs(value)):
        if _is_read_as(abs(value), number):
            return replace(number, fraction=-number.fraction) if value < 0 else number
    return Number(exactly)


def is_root(value: float, of: float) -> bool:
    """Returns whether the number that a float is read as is the root of another's."""
    if not (of > 0 and math.isfinite(of)):
        return False
    root, number = read(value), read(of)
    if root.is_fourth_root or number.radicand != 1 or number.half_pis:
        return False
    return root.half_pis == 0 and root.fraction**2 * root.radicand == number.fraction


def radicands(program: Program) -> frozenset[int]:
    """Returns the integers whose roots a program's constants are read as; they have to be squares in a field."""
    found = set()
    for one in program.operations:
        if one.name == "constant" and (numbers := few_numbers(one.attributes["array"])) is not None:
            found |= {read(float(value)).radicand for value in numbers if np.isfinite(value)}
        if scale := one.attributes.get("scale"):
            found.add(root_of(scale).radicand)
    return frozenset(found - {1})


def few_numbers(array: np.ndarray) -> np.ndarray | None:
    """Returns the different numbers of an array that is no table; None for a table, which is what it is."""
    different = np.unique(array) if array.size <= MOST_ELEMENTS else array[:0]
    return different if 0 < different.size <= MOST_DIFFERENT else None


def significant_bits(value: Fraction) -> int:
    numerator = abs(value.numerator)
    return 0 if numerator == 0 else numerator.bit_length() - ((numerator & -numerator).bit_length() - 1)


def _candidates(value: float) -> Iterator[Number]:
    """Yields numbers near a positive float that programs write."""
    if 1 / MOST_RADICAND <= value <= MOST_RADICAND:
        square = value * value
        if 1 <= square <= MOST_RADICAND:
            yield root_of(Fraction(round(square)))
        elif 1 <= 1 / square <= MOST_RADICAND:
            yield root_of(Fraction(1, round(1 / square)))
        ratio = Fraction(square).limit_denominator(MOST_DENOMINATOR_OF_SQUARE)
        if ratio and ratio.numerator * ratio.denominator <= MOST_RADICAND_OF_RATIO:
            yield root_of(ratio)  # Adam's √(1 − β₂ᵗ)
        for halves in (-1, 1):  # 2/√π, √(2/π), 1/√(2π): the derivative of erf, and GELU by tanh
            without_pi = square / math.pi**halves
            for denominator in (1, 2, 4, 8):
                numerator = round(without_pi * denominator)
                if 1 <= numerator <= 16:
                    yield root_of(Fraction(numerator, denominator), halves)
        fourth = square * square
        n = round(fourth if fourth >= 1 else 1 / fourth)
        if n <= MOST_RADICAND and math.isqrt(n) ** 2 != n:  # PyTorch scales queries and keys by √(1/√H) each
            is_large = fourth >= 1
            yield Number(Fraction(1) if is_large else Fraction(1, n), n if is_large else n**3, 0, "roots", True)
        yield Number(Fraction(value).limit_denominator(MOST_DENOMINATOR), axiom="fractions")
    yield Number(Fraction(f"{value:.3e}"), axiom="fractions")
    if value < 1 and 1.0 - (decimal := round(1.0 - value, MOST_DIGITS)) == value:  # 1 − β₁ in float64
        yield Number(1 - Fraction(str(decimal)), axiom="fractions")


@lru_cache(4096)
def root_of(square: Fraction, half_pis: int = 0) -> Number:
    """Returns √square · √π to a power, square factors up to MOST_FACTOR² written out."""
    radicand = square.numerator * square.denominator
    factor = Fraction(1, square.denominator)
    for n in range(min(math.isqrt(radicand), MOST_FACTOR), 1, -1):
        if radicand % (n * n) == 0:
            return Number(factor * n, radicand // (n * n), half_pis, "roots")
    return Number(factor, radicand, half_pis, "roots")


def _is_read_as(value: float, number: Number) -> bool:
    """Returns whether a positive float is within one unit in its last place of a number, or is the rounded inverse of
    such a float."""
    if number.axiom == "fractions":
        fraction = number.fraction
        is_short = fraction.numerator <= MOST_TERM or fraction.denominator % 10 == 0
        is_near = abs(Fraction(value) - fraction) <= Fraction(math.ulp(value))
        is_decimal = fraction < 1 and 10**MOST_DIGITS % fraction.denominator == 0
        is_rest = is_decimal and value == 1.0 - float(1 - fraction)
        return fraction > 0 and ((is_short and is_near) or is_rest)
    if number.radicand == 1 and number.half_pis == 0:
        return False
    degree = 4 if number.is_fourth_root else 2
    power = number.fraction**degree * number.radicand * PI**number.half_pis
    single = np.float32(value)
    ulps = [math.ulp(value)] + ([float(np.spacing(single))] if float(single) == value else [])
    return any(_brackets(value, ulp, power, degree) for ulp in ulps) or _brackets(
        1 / value, math.ulp(1 / value), 1 / power, degree
    )


def _brackets(value: float, ulp: float, power: Fraction, degree: int) -> bool:
    exactly = Fraction(value)
    return (exactly - Fraction(ulp)) ** degree <= power <= (exactly + Fraction(ulp)) ** degree


PI = Fraction(314159265358979323846264338327950288419716939937510, 10**50)
"""π to 50 digits: enough to compare with floats; no proof computes with it."""
