"""Prime fields in NumPy: exact arithmetic on arrays of residues, at the speed of float64 BLAS.

A residue is an int64 in [0, p), p < 2⁵⁰. A product of two residues wraps around in int64, and so does the multiple of p
that is subtracted from it; their difference is small, and exact. The quotient comes from float64. Products of matrices
split residues into limbs so that sums of products stay below 2⁵³. Large matrices are split block by block, in cache.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

BITS = 50
LIMB = 25
"""Bits of a limb of the larger factor of a product of matrices. Limbs are signed: at most 2²⁴ from zero."""
SHORT_LIMB = 17
"""Bits of a limb of the smaller factor in long sums."""
SHORT_SUM = 2**5
"""Terms that two limbs of 25 bits allow: 2²⁴ · 2²⁴ · 2⁵ = 2⁵³."""
LONG_SUM = 2**10
"""Terms of a block with limbs of 25 and 17 bits, which would allow 2¹³."""
BLOCK = 2**14
"""Elements that are computed on at a time: 128 KiB stay in a core's cache."""
ROWS = 10
"""Rows of the smaller factor that a block multiplies, few enough for BLAS to start no threads: on a busy machine,
waiting threads made products ten times slower."""
SMALL_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23)
"""Odd primes that are squares in every field here, and so is 2."""


class NoInverse(ArithmeticError):
    """Raised for a divisor of zero: other weights have to be drawn."""


@dataclass(frozen=True)
class PrimeField:
    """The integers modulo a prime p with p ≡ 7 (mod 8): −1 is no square, and 2 is one."""

    p: int

    def reduce(self, x: np.ndarray) -> np.ndarray:
        """Returns the residues of any int64."""
        x = np.asarray(x, np.int64)
        quotient = np.floor(x * (1.0 / self.p)).astype(np.int64)  # off by one at most
        remainder = np.subtract(x, np.multiply(quotient, self.p))
        return self._below_p(self._below_p(remainder) - self.p)

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
        """Multiplies elements, large arrays block by block."""
        x, y = np.asarray(x), np.asarray(y)
        shape = x.shape if x.shape == y.shape else np.broadcast_shapes(x.shape, y.shape)
        size = math.prod(shape)
        if size <= BLOCK:
            return self._product(x, y)
        x, y = np.broadcast_to(x, shape), np.broadcast_to(y, shape)
        if shape[0] == 1:
            return self.multiply(x[0], y[0])[None]
        result, rows = np.empty(shape, np.int64), max(1, BLOCK * shape[0] // size)
        for start in range(0, shape[0], rows):
            part = slice(start, start + rows)
            product = self._product if rows > 1 or len(shape) == 1 else self.multiply
            result[part] = product(x[part], y[part])
        return result

    def _product(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Multiplies elements. Three roundings and the subtraction leave the float64 of x · y/p − 1/2 less than 1/2
        from it, since x · y/p < 2⁵⁰; so the quotient is right, or one less."""
        estimate = np.multiply(x, y, dtype=np.float64)
        quotient = np.asarray(estimate * (1.0 / self.p) - 0.5).astype(np.int64)
        remainder = np.subtract(np.multiply(x, y), np.multiply(quotient, self.p))  # scalars would warn
        return self._below_p(remainder - self.p)

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
        """Inverts products of pairs, which takes three multiplications per element instead of 75."""
        if flat.size < 64:
            return self.power(flat, self.p - 2)
        half = flat.size // 2
        first, second, rest = flat[:half], flat[half : 2 * half], flat[2 * half :]
        both = self._inverses(np.concatenate([self.multiply(first, second), rest]))
        pairs = both[:half]
        return np.concatenate([self.multiply(pairs, second), self.multiply(pairs, first), both[half:]])

    def root(self, x: np.ndarray) -> np.ndarray:
        """Returns x to the power (p + 1)/4: for a square, the root that is a square itself; for any other x, the root
        of −x. Roots of products are the products of the roots."""
        return self.power(x, (self.p + 1) // 4)

    def is_square(self, value: int) -> bool:
        return pow(value, (self.p - 1) // 2, self.p) == 1

    def sum(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Returns sums over axes of up to 2¹³ elements each; longer ones are summed in parts."""
        count = math.prod(x.shape[axis] for axis in axes)
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
        if x.size > y.size:
            return self.matmul(y.transpose(0, 2, 1), x.transpose(0, 2, 1)).transpose(0, 2, 1)
        terms = x.shape[2]
        if terms > LONG_SUM:
            parts = [slice(start, start + LONG_SUM) for start in range(0, terms, LONG_SUM)]
            return functools.reduce(self.add, (self.matmul(x[:, :, part], y[:, part]) for part in parts))
        product = np.zeros((x.shape[0], x.shape[1], y.shape[2]), np.int64)
        bits = LIMB if terms <= SHORT_SUM else SHORT_LIMB
        x_limbs = self._limbs(x, bits)
        for b, m, n in _blocks(x, y) if terms else ():
            y_limbs = self._limbs(y[b, :, n], LIMB)
            for rows in m:
                left = np.concatenate([limb[b, rows] for limb in x_limbs], axis=1)
                count = left.shape[1] // len(x_limbs)
                products = [
                    (i * bits + j * LIMB, part[:, i * count : (i + 1) * count])
                    for j, part in enumerate(np.matmul(left, limb) for limb in y_limbs)
                    for i in range(len(x_limbs))
                ]
                product[b, rows, n] = self._weighted_sum(products)
        return product

    def _limbs(self, x: np.ndarray, bits: int) -> list[np.ndarray]:
        """Returns float64 limbs, the lowest first, each at most 2ᵇ⁻¹ from zero."""
        rest = x.astype(np.float64)
        rest -= self.p * (x > self.half)
        limbs = []
        for _ in range(-(-BITS // bits) - 1):
            high = np.rint(rest * 2.0**-bits)
            limbs.append(rest - high * 2.0**bits)
            rest = high
        return [*limbs, rest]

    def _weighted_sum(self, parts: Sequence[tuple[int, np.ndarray]]) -> np.ndarray:
        """Returns the residues of Σ 2ᵏ · part over up to six parts, whose elements are integers up to 2⁵³.

        Each 2ᵏ is a residue w up to p/2 from zero, so that w/p · part is below 2⁵² and off by 1 at most. The sum of six
        is below 2⁵⁵, and its roundings add less than 12: the remainder is less than 2⁵ · p.
        """
        weights = [(pow(2, k, self.p) + self.half) % self.p - self.half for k, _ in parts]
        quotient = sum(part * (w / self.p) for w, (_, part) in zip(weights, parts, strict=True))
        wrapped = sum(part.astype(np.int64) * w for w, (_, part) in zip(weights, parts, strict=True))
        return self.reduce(wrapped - np.rint(quotient).astype(np.int64) * self.p)

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
        """Adds p to negative numbers from −p: as unsigned integers, they are the larger."""
        x = np.asarray(x)
        return np.minimum(x.view(np.uint64), np.asarray(x + self.p).view(np.uint64)).view(np.int64)


def _blocks(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[slice, list[slice], slice]]:
    """Yields the matrices, rows of x and columns of y to multiply at a time."""
    (count, m, k), n = x.shape, y.shape[2]
    if max(y.size, count * m * n) <= BLOCK and m * k * n <= ROWS * BLOCK:
        yield slice(None), [slice(None)], slice(None)
        return
    rows = [slice(start, start + ROWS) for start in range(0, m, ROWS)]
    columns = max(1, BLOCK // max(k, min(m, ROWS)))
    for b in range(count):
        for start in range(0, n, columns):
            yield slice(b, b + 1), rows, slice(start, start + columns)


def draw_field(key: np.random.Generator, squares: frozenset[int] = frozenset()) -> PrimeField:
    """Draws one of the primes near 2⁵⁰, some 2³³, in whose fields the small primes are squares, and the given integers.

    Args:
      squares: positive integers whose roots the program uses.
    """
    modulus, choices = _residues()
    low, high = 2 ** (BITS - 1), 2**BITS
    while True:
        residue = sum(each[int(key.integers(len(each)))] for each in choices) % modulus
        p = residue + modulus * int(key.integers(low // modulus, high // modulus + 1))
        if low < p < high and is_prime(p):
            field = PrimeField(p)
            if all(field.is_square(n) for n in squares):
                return field


@functools.cache
def _residues() -> tuple[int, list[list[int]]]:
    """Returns 8 times the small primes, and one list of integers for 8 and for each of these primes. A sum of one of
    each list is, modulo the product, what a prime may be, by the Chinese remainder theorem.

    By quadratic reciprocity, an odd prime q is a square modulo p ≡ 7 (mod 8) if −p is a square modulo q.
    """
    modulus = 8 * math.prod(SMALL_PRIMES)
    allowed = {8: [7]} | {q: [r for r in range(1, q) if pow(-r, q // 2, q) == 1] for q in SMALL_PRIMES}
    return modulus, [[r * (modulus // q) * pow(modulus // q, -1, q) for r in rs] for q, rs in allowed.items()]


def is_prime(n: int) -> bool:
    """Tests an n < 3.3 · 10²⁴ by Miller and Rabin, with bases that make it deterministic (Sorenson and Webster,
    2015)."""
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
