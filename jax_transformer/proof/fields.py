"""Prime fields in NumPy: exact arithmetic on arrays of residues, at the speed of float64 BLAS.

A residue is an int64 in [0, p), p < 2⁵⁰. A product of two residues wraps around in int64, and so does the multiple of p
that is subtracted from it; their difference is small, and exact. The quotient comes from float64, which is off by one
at most. Products of matrices split residues into limbs so that sums of products stay below 2⁵³.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

BITS = 50
LIMB = 25
"""Bits of a limb of the larger factor of a product of matrices. Limbs are signed: at most 2²⁴ from zero."""
SHORT_LIMB = 17
"""Bits of a limb of the smaller factor, where the sums are long."""
SHORT_SUM = 2**5
"""Terms that two limbs of 25 bits allow: 2²⁴ · 2²⁴ · 2⁵ = 2⁵³."""
LONG_SUM = 2**11
"""Terms that limbs of 25 and 17 bits are used for; they would allow 2¹³."""
SMALL_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23)
"""Odd primes that are squares in every field here, and so is 2."""


class NoInverse(ArithmeticError):
    """Raised where a divisor is zero: other weights have to be drawn."""


@dataclass(frozen=True)
class PrimeField:
    """The integers modulo a prime p with p ≡ 7 (mod 8): −1 is no square, and 2 is one."""

    p: int

    def reduce(self, x: np.ndarray) -> np.ndarray:
        """Returns the residues of any int64."""
        return np.asarray(np.mod(x, self.p), np.int64)

    def integer(self, value: int) -> int:
        return value % self.p

    def rational(self, value: Fraction) -> int:
        return value.numerator * pow(value.denominator, -1, self.p) % self.p

    def add(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._below_p(x + y - self.p)

    def subtract(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._below_p(x - y)

    def negate(self, x: np.ndarray) -> np.ndarray:
        return self._below_p(-x)

    def multiply(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = np.asarray(x), np.asarray(y)
        quotient = (x.astype(np.float64) * y * (1.0 / self.p)).astype(np.int64)
        with np.errstate(over="ignore"):
            remainder = np.asarray(x * y - quotient * self.p)
        return self._below_p(self._below_p(remainder) - self.p)

    def power(self, x: np.ndarray, exponent: int) -> np.ndarray:
        """Returns xᵉ, e ≥ 0."""
        result = np.ones_like(x)
        for bit in bin(exponent)[2:]:
            result = self.multiply(result, result)
            if bit == "1":
                result = self.multiply(result, x)
        return result

    def invert(self, x: np.ndarray) -> np.ndarray:
        """Returns 1/x. Raises NoInverse if an element is zero."""
        flat = np.ravel(x)
        if not flat.all():
            raise NoInverse(f"{int((flat == 0).sum())} of {flat.size} divisors are zero")
        return self._inverses(flat).reshape(np.shape(x))

    def _inverses(self, flat: np.ndarray) -> np.ndarray:
        """Inverts products of pairs, which takes three multiplications for each element in place of 75."""
        if flat.size < 64:
            return self.power(flat, self.p - 2)
        half = flat.size // 2
        first, second, rest = flat[:half], flat[half : 2 * half], flat[2 * half :]
        both = self._inverses(np.concatenate([self.multiply(first, second), rest]))
        pairs = both[:half]
        return np.concatenate([self.multiply(pairs, second), self.multiply(pairs, first), both[half:]])

    def root(self, x: np.ndarray) -> np.ndarray:
        """Returns x to the power (p + 1)/4: the root of a square that is a square itself, and the root of −x for any
        other x. Roots of products are the products of the roots."""
        return self.power(x, (self.p + 1) // 4)

    def is_square(self, value: int) -> bool:
        return pow(value, (self.p - 1) // 2, self.p) == 1

    def sum(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Returns sums over axes of up to 2¹³ elements each; longer ones are summed in parts."""
        count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
        if count <= 2**13:
            return self.reduce(x.sum(axis=axes))
        high, low = x >> LIMB, x & (2**LIMB - 1)
        return self.add(
            self.multiply(self.reduce(high.sum(axis=axes)), np.asarray(2**LIMB)), self.reduce(low.sum(axis=axes))
        )

    def cumulative_sum(self, x: np.ndarray, axis: int) -> np.ndarray:
        high, low = np.cumsum(x >> LIMB, axis=axis), np.cumsum(x & (2**LIMB - 1), axis=axis)
        return self.add(self.multiply(self.reduce(high), np.asarray(2**LIMB)), self.reduce(low))

    def matmul(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Returns x [B, M, K] · y [B, K, N] → [B, M, N]."""
        terms = x.shape[2]
        if terms > LONG_SUM:
            parts = [slice(start, start + LONG_SUM) for start in range(0, terms, LONG_SUM)]
            products = (self.matmul(x[:, :, part], y[:, part]) for part in parts)
            return functools.reduce(self.add, products)
        if terms == 0:
            return np.zeros((x.shape[0], x.shape[1], y.shape[2]), np.int64)
        short = LIMB if terms <= SHORT_SUM else SHORT_LIMB
        x_is_smaller = x.size <= y.size
        x_bits, y_bits = (short, LIMB) if x_is_smaller else (LIMB, short)
        x_limbs, y_limbs = list(self._limbs(x, x_bits)), list(self._limbs(y, y_bits))
        total = np.zeros((x.shape[0], x.shape[1], y.shape[2]), np.int64)
        for i, left in enumerate(x_limbs):
            for j, right in enumerate(y_limbs):
                weight = np.asarray(pow(2, i * x_bits + j * y_bits, self.p))
                part = self.reduce(np.matmul(left, right).astype(np.int64))
                total = self.add(total, part if weight == 1 else self.multiply(part, weight))
        return total

    def _limbs(self, x: np.ndarray, bits: int) -> Iterator[np.ndarray]:
        """Yields float64 limbs, the lowest first, each at most 2ᵇ⁻¹ from zero."""
        rest = np.where(x > self.p // 2, x - self.p, x)
        for _ in range(-(-BITS // bits) - 1):
            low = ((rest + 2 ** (bits - 1)) & (2**bits - 1)) - 2 ** (bits - 1)
            yield low.astype(np.float64)
            rest = (rest - low) >> bits
        yield rest.astype(np.float64)

    def dyadic(self, values: np.ndarray) -> np.ndarray:
        """Returns the residues of finite float64 numbers, each exactly n · 2ᵏ."""
        mantissas, exponents = np.frexp(values)
        integers = self.reduce(np.ldexp(mantissas, 53).astype(np.int64))
        smallest = int(exponents.min()) - 53 if exponents.size else 0
        largest = int(exponents.max()) - 53 if exponents.size else 0
        powers = np.array([pow(2, k, self.p) for k in range(smallest, largest + 1)], np.int64)
        return self.multiply(integers, powers[exponents - 53 - smallest])

    def draw(self, key: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draws uniform residues."""
        return key.integers(0, self.p, shape, np.int64)

    @cached_property
    def half(self) -> int:
        return (self.p - 1) // 2

    def _below_p(self, x: np.ndarray) -> np.ndarray:
        """Adds p to negative numbers above −p."""
        return np.asarray(x + ((x >> 63) & self.p))


def draw_field(key: np.random.Generator, squares: frozenset[int] = frozenset()) -> PrimeField:
    """Draws a prime near 2⁵⁰ in whose field the small primes and the given integers are squares.

    By quadratic reciprocity, a prime p ≡ −1 modulo 8 and modulo each small prime makes all of them squares.

    Args:
      squares: positive integers whose roots a program uses.
    """
    step = 8 * int(np.prod(SMALL_PRIMES, dtype=np.int64))
    while True:
        p = int(key.integers(2 ** (BITS - 1) // step, 2**BITS // step)) * step - 1
        if is_prime(p):
            field = PrimeField(p)
            if all(field.is_square(n) for n in squares):
                return field


def is_prime(n: int) -> bool:
    """Tests an n < 3.3 · 10²⁴ by Miller and Rabin, with bases that make it certain (Sorenson and Webster, 2015)."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if n < 2 or any(n % q == 0 for q in bases):
        return n in bases
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        x = pow(base, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True
