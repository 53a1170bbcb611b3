"""Read floats as the real numbers that they stand for in programs.

A float is a dyadic rational. Some stand for a number that no float holds: 1/√8, 0.1, √(2/π). A float within one unit in
the last place of such a number is read as the number (axioms "roots" and "fractions"), so that dividing by √8 is
multiplying by 1/√8. Any other float is read as it is: ε · (1 + 2⁻⁵⁰) is another ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from jax_transformer.proof.distinct import distinct
from jax_transformer.proof.programs import Program

MOST_RADICAND = 2**16
"""Largest n whose √n is recognised."""
MOST_DENOMINATOR_OF_SQUARE, MOST_RADICAND_OF_RATIO = 2**12, 2**24
"""√(a/b) is looked for with b up to the first and a · b up to the second."""
MOST_FACTOR = 2**12
"""Largest factor whose square is recognised under a root."""
MOST_TERM, MOST_DENOMINATOR = 1000, 10**6
"""Fractions a/b with a and b up to these are looked for, and decimals of up to four digits."""
MOST_DIGITS = 6
"""Maximum digits of a decimal x whose 1 − x in float64 is read as 1 − x: programs write both 1 − 0.9 and 0.9."""
MOST_ELEMENTS, MOST_DIFFERENT = 4096, 16
"""An array of more elements, or of more different ones, is a table."""
ROUNDED = "rounded constants"
"""Axiom by which constants of types narrower than float64 are read as other numbers."""
EXACT_BITS = 32
"""Significant bits up to which a float is read as it is."""


@dataclass(frozen=True)
class Number:
    """The real number fraction · √radicand · π^(halves of pi), or fraction · ∜radicand."""

    fraction: Fraction
    radicand: int = 1
    half_pis: int = 0
    axiom: str = ""
    """The axiom that reads a float as this number; "": it is the float."""
    is_fourth_root: bool = False

    def __float__(self) -> float:
        root = self.radicand ** (0.25 if self.is_fourth_root else 0.5)
        return float(self.fraction) * root * math.pi ** (self.half_pis / 2)

    def __str__(self) -> str:
        parts = [str(self.fraction)] if self.fraction != 1 or (self.radicand, self.half_pis) == (1, 0) else []
        parts += [f"{'∜' if self.is_fourth_root else '√'}{self.radicand}"] if self.radicand != 1 else []
        parts += [{1: "√π", -1: "1/√π", 2: "π", -2: "1/π"}[self.half_pis]] if self.half_pis else []
        return " · ".join(parts)


@lru_cache(4096)
def read(value: float, radius: float = 0.0) -> Number:
    """Returns the number that a finite float stands for.

    Args:
      radius: its possible distance from that number, if a type narrower than float64 rounded it.
    """
    exactly = Fraction(value)
    if not radius and significant_bits(exactly) <= EXACT_BITS:
        return Number(exactly)
    for number in _narrow_candidates(abs(value)) if radius else _candidates(abs(value)):
        if _is_read_as(abs(value), number, radius):
            named = replace(number, axiom=ROUNDED) if radius else number
            return replace(named, fraction=-named.fraction) if value < 0 else named
    return Number(exactly)


def unit_of(dtype: Any) -> float:
    """Returns the unit roundoff of a type of floats, half its ε."""
    from ml_dtypes import finfo

    return float(finfo(dtype).eps) / 2


def smallest_of(dtype: Any) -> float:
    """Returns the smallest normal number of a type of floats."""
    from ml_dtypes import finfo

    return float(finfo(dtype).tiny)


def largest_of(unit: float) -> float:
    """Returns the largest finite number of the type of floats that has this unit roundoff; NaN if there is none."""
    from ml_dtypes import finfo

    own = [finfo(each) for each in ("float64", "float32", "float16", "bfloat16")]
    return next((float(each.max) for each in own if float(each.eps) / 2 == unit), math.nan)


def half_ulp(values: Any, unit: float) -> np.ndarray:
    """Returns half a unit in the last place of floats, in the type with this unit roundoff."""
    values = np.abs(np.asarray(values, np.float64))
    _, exponents = np.frexp(np.where(np.isfinite(values), values, 0.0))
    return np.where((values > 0) & np.isfinite(values), np.ldexp(unit, exponents - 1), 0.0)


def is_meant(values: Any, unit: float) -> np.ndarray:
    """Returns a mask of the floats of a type that are read as they are: integers, multiples of 1/64, and powers of two,
    unless they are so large that the type has few other numbers. Without rounding (a unit of 0), all are."""
    if not unit:
        return np.ones(np.shape(values), bool)
    values = np.abs(np.asarray(values, np.float64))
    finite = np.where(np.isfinite(values), values, 0.0)
    is_whole = (finite == np.round(finite)) & (finite <= 2**-4 / unit)
    is_part = (finite <= 2**-16 / unit) & (np.where(finite < 2**40, finite * 64, 0.5) % 1 == 0)
    return np.asarray((np.frexp(finite)[0] == 0.5) | is_whole | is_part | ~np.isfinite(values))


def rounding_of(values: Any, unit: float) -> np.ndarray:
    """Returns the possible distance of numbers from the written ones, which a type rounds once."""
    return np.where(is_meant(values, unit), 0.0, half_ulp(values, unit))


def as_read(
    array: np.ndarray, unit: float = 0.0, radius: np.ndarray | None = None, is_rounded: bool = False
) -> dict[float, Number] | None:
    """Returns the distinct finite numbers of a constant, and the number that each is read as; None for a table, which
    is read as it is.

    Args:
      unit: the unit roundoff of the type that made it, if that is narrower than float64.
      radius: the possible distance of each element from the exact result, if it was computed.
      is_rounded: whether to read numbers as those that this type rounds to them.
    """
    if radius is not None and array.size > 1:
        return None
    different = few_numbers(array)
    if different is None:
        return None
    finite = different[np.isfinite(different)]
    if not is_rounded:
        return {float(value): read(float(value)) for value in finite}
    radii = rounding_of(finite, unit) if radius is None else np.full(finite.shape, float(radius.reshape(())))
    return {float(value): read(float(value), float(own)) for value, own in zip(finite, radii, strict=True)}


def is_root(value: float, of: float) -> bool:
    """Returns whether the number that a float is read as is the root of another's."""
    if not (of > 0 and math.isfinite(of)):
        return False
    root, number = read(value), read(of)
    if root.is_fourth_root or number.radicand != 1 or number.half_pis:
        return False
    return root.half_pis == 0 and root.fraction**2 * root.radicand == number.fraction


def radicands(program: Program) -> frozenset[int]:
    """Returns the integers whose roots a program's constants are read as; a field must have their roots."""
    found = set()
    for one in program.operations:
        if one.name == "constant" and (numbers := as_read(**one.attributes)) is not None:
            found |= {number.radicand for number in numbers.values()}
        if scale := one.attributes.get("scale"):
            found.add(root_of(scale).radicand)
    return frozenset(found - {1})


def few_numbers(array: np.ndarray) -> np.ndarray | None:
    """Returns the distinct numbers of an array with few; None for a table, which is read as it is."""
    different = distinct(array) if array.size <= MOST_ELEMENTS else array[:0]
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
        yield from _multiples_of_roots_of_pi(square)
        fourth = square * square
        n = round(fourth if fourth >= 1 else 1 / fourth)
        if n <= MOST_RADICAND and math.isqrt(n) ** 2 != n:  # PyTorch scales queries and keys by √(1/√H) each
            is_large = fourth >= 1
            yield Number(Fraction(1) if is_large else Fraction(1, n), n if is_large else n**3, 0, "roots", True)
        yield Number(Fraction(value).limit_denominator(MOST_DENOMINATOR), axiom="fractions")
    yield Number(Fraction(f"{value:.3e}"), axiom="fractions")
    if value < 1 and 1.0 - (decimal := round(1.0 - value, MOST_DIGITS)) == value:  # 1 − β₁ in float64
        yield Number(1 - Fraction(str(decimal)), axiom="fractions")


def _narrow_candidates(value: float) -> Iterator[Number]:
    """Yields numbers near a positive float of a narrow type that programs write; 1/π is near 113/355, too."""
    if 1 / MOST_TERM <= value <= MOST_TERM:
        yield from _multiples_of_roots_of_pi(value * value)
        yield Number(Fraction(value).limit_denominator(MOST_TERM), axiom="fractions")
    if value:
        yield Number(Fraction(f"{value:.3e}"), axiom="fractions")
    if 1 / MOST_TERM <= value <= MOST_TERM:
        square = Fraction(value) ** 2
        yield root_of(square.limit_denominator(1) if square >= 1 else 1 / (1 / square).limit_denominator(1))
        inverse = round(1 / Fraction(value) ** 4) if value < 1 else 0
        if 1 < inverse <= MOST_TERM and math.isqrt(inverse) ** 2 != inverse:  # √(1/√H), as above
            yield Number(Fraction(1, inverse), inverse**3, 0, "roots", True)


def _multiples_of_roots_of_pi(square: float) -> Iterator[Number]:
    """Yields 2/√π, √(2/π), 1/√(2π): the derivative of erf, and GELU by tanh; and π, π/2, 2π, 1/π."""
    for halves in (-1, 1, 2, -2):
        without_pi = square / math.pi**halves
        for denominator in (1, 2, 4, 8, 16):
            numerator = round(without_pi * denominator)
            if 1 <= numerator <= 16:
                yield root_of(Fraction(numerator, denominator), halves)


@lru_cache(4096)
def root_of(square: Fraction, half_pis: int = 0) -> Number:
    """Returns √square · √π to a power, square factors up to MOST_FACTOR² written out."""
    radicand = square.numerator * square.denominator
    factor = Fraction(1, square.denominator)
    for n in range(min(math.isqrt(radicand), MOST_FACTOR), 1, -1):
        if radicand % (n * n) == 0:
            return Number(factor * n, radicand // (n * n), half_pis, "roots")
    return Number(factor, radicand, half_pis, "roots")


def _is_read_as(value: float, number: Number, radius: float) -> bool:
    """Returns whether a positive float, or the float that it is the rounded inverse of, is within one unit in its last
    place of a number. In a narrow type: whether the fraction rounds to it, or the root is within one unit."""
    if number.axiom == "fractions":
        fraction = number.fraction
        is_short = fraction.numerator <= MOST_TERM or fraction.denominator % 10 == 0
        is_near = abs(Fraction(value) - fraction) <= Fraction(radius or math.ulp(value))
        if radius:
            return fraction > 0 and is_short and is_near
        is_decimal = fraction < 1 and 10**MOST_DIGITS % fraction.denominator == 0
        is_rest = is_decimal and value == 1.0 - float(1 - fraction)
        return fraction > 0 and ((is_short and is_near) or is_rest)
    if number.radicand == 1 and number.half_pis == 0:
        return False
    degree = 4 if number.is_fourth_root else 2
    power = number.fraction**degree * number.radicand * PI**number.half_pis
    if radius:
        return _brackets(value, 2 * radius, power, degree)
    single = np.float32(value)
    ulps = [math.ulp(value)] + ([float(np.spacing(single))] if float(single) == value else [])
    return any(_brackets(value, ulp, power, degree) for ulp in ulps) or _brackets(
        1 / value, math.ulp(1 / value), 1 / power, degree
    )


def _brackets(value: float, ulp: float, power: Fraction, degree: int) -> bool:
    exactly = Fraction(value)
    return (exactly - Fraction(ulp)) ** degree <= power <= (exactly + Fraction(ulp)) ** degree


PI = Fraction(
    "3.1415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421170679821480865132823"
    "0664709384460955058223172535940812848111745"
)
"""π to 158 digits: enough to compare with floats, and for decimals of 120 digits; no proof computes with it."""
