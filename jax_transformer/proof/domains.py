"""The domains in which programs are evaluated: a prime field, and float64."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from jax_transformer.proof.constants import ROUNDED, Number, as_read, few_numbers, root_of
from jax_transformer.proof.fields import PrimeField

Arrays = Mapping[str, np.ndarray]
DISAGREE = "devices of the mesh hold different values of what out_specs says is one"


class Undefined(ArithmeticError):
    """Raised for a program that computes no number for any weights: it divides by zero."""


class Disagreement(Undefined):
    """Raised for a program of a mesh whose devices disagree."""


class Domain(Protocol):
    """Computes arithmetic and functions on arrays. Moves of elements are NumPy's."""

    dtype: type[Any]

    def constant(
        self, array: np.ndarray, unit: float = 0.0, radius: np.ndarray | None = None, is_rounded: bool = False
    ) -> np.ndarray: ...

    def apply(self, name: str, inputs: list[np.ndarray], attributes: Mapping[str, Any]) -> np.ndarray: ...


class Reals:
    """Approximates the real numbers by float64."""

    dtype: type[Any] = np.float64

    def constant(
        self, array: np.ndarray, unit: float = 0.0, radius: np.ndarray | None = None, is_rounded: bool = False
    ) -> np.ndarray:
        return np.asarray(array, np.float64)

    def apply(self, name: str, inputs: list[np.ndarray], attributes: Mapping[str, Any]) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(getattr(self, name)(*inputs, **attributes))

    def add(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x + y

    def subtract(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x - y

    def multiply(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x * y

    def negate(self, x: np.ndarray) -> np.ndarray:
        return -x

    def inverse(self, x: np.ndarray) -> np.ndarray:
        return 1 / x

    def power(self, x: np.ndarray, exponent: int) -> np.ndarray:
        return x**exponent

    def root(self, x: np.ndarray, scale: Fraction = Fraction(1)) -> np.ndarray:
        return np.sqrt(x)

    def matmul(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.matmul(x, y)

    def sum(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        return x.sum(axis=axes)

    def cumulative_sum(self, x: np.ndarray, axis: int) -> np.ndarray:
        return np.cumsum(x, axis=axis)

    def row_mean(self, x: np.ndarray, axis: int, counts: np.ndarray | None = None) -> np.ndarray:
        if counts is None:
            return x.mean(axis=axis, keepdims=True)
        return np.where(counts, x, 0.0).sum(axis=axis, keepdims=True) / counts.sum(axis=axis, keepdims=True)

    def row_exp(self, x: np.ndarray, mean: np.ndarray, axis: int, counts: np.ndarray | None = None) -> np.ndarray:
        row_exp = np.exp(x - mean)
        return row_exp if counts is None else np.where(counts, row_exp, 0.0)

    def cut(self, x: np.ndarray, is_weight: bool) -> np.ndarray:
        return x

    def agreed(self, x: np.ndarray, *others: np.ndarray, reason: str) -> np.ndarray:
        return x

    def rounded(self, x: np.ndarray, digest: str, unit: float = 0.0) -> np.ndarray:
        return x

    def given(self, x: np.ndarray, *operands: np.ndarray) -> np.ndarray:
        for operand in operands:
            x = np.where(np.isfinite(operand), x, np.nan)
        return x

    def chosen(self, found: np.ndarray, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(condition != 0, x, y)

    def exp(self, x: np.ndarray) -> np.ndarray:
        return np.exp(x)

    def log(self, x: np.ndarray) -> np.ndarray:
        return np.log(x)

    def erf(self, x: np.ndarray) -> np.ndarray:
        from scipy.special import erf  # type: ignore[import-untyped]

        return np.asarray(erf(x))

    def tanh(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(x)

    def sin(self, x: np.ndarray) -> np.ndarray:
        return np.sin(x)

    def cos(self, x: np.ndarray) -> np.ndarray:
        return np.cos(x)

    def step(self, x: np.ndarray, reflects: bool) -> np.ndarray:
        return (x > 0).astype(np.float64)

    def equal(self, x: np.ndarray, y: np.ndarray, is_exact: bool) -> np.ndarray:
        return (x == y).astype(np.float64)

    def largest(
        self, x: np.ndarray, axes: tuple[int, ...], counts: np.ndarray | None = None, shown: np.ndarray | None = None
    ) -> np.ndarray:
        return np.max(x if counts is None else np.where(counts, x, -np.inf), axis=axes)

    def places(self, x: np.ndarray, ranks: tuple[int, ...]) -> np.ndarray:
        order = np.argsort(-x, axis=-1, kind="stable")
        chosen = order[..., list(ranks), None] == np.arange(x.shape[-1])
        return np.asarray(np.where(chosen, self.dtype(1), self.dtype(0)))


class Floats(Reals):
    """Computes softmaxes relative to the row's largest entry, like programs: relative to the mean, exponentials
    overflow when softmaxes saturate. Any number may replace the mean (axiom "softmax")."""

    def row_mean(self, x: np.ndarray, axis: int, counts: np.ndarray | None = None) -> np.ndarray:
        return np.max(x if counts is None else np.where(counts, x, -np.inf), axis=axis, keepdims=True)


class Residues:
    """A prime field, in which functions are keyed hashes that obey their axioms.

    Args:
      key: seeds the hashes.
    """

    dtype = np.int64

    def __init__(self, field: PrimeField, key: int) -> None:
        self.field, self.key = field, np.uint64(key)
        self.axioms: dict[str, dict[str, None]] = {}
        """The axioms that were used, and on which constants."""
        self.arguments: dict[str, list[np.ndarray]] = {}
        """The arguments of each function, in the order of evaluation."""
        root_of_pi = int(self._hash("√π", np.zeros(1, np.int64))[0])
        self._roots_of_pi = {1: root_of_pi, -1: pow(root_of_pi, -1, field.p)}
        self._logarithms: list[tuple[np.ndarray, np.ndarray]] = []
        self.has_log_of_zero = False

    # --- constants

    def constant(
        self, array: np.ndarray, unit: float = 0.0, radius: np.ndarray | None = None, is_rounded: bool = False
    ) -> np.ndarray:
        numbers, different = as_read(array, unit, radius, is_rounded), few_numbers(array)
        if numbers is not None and different is not None:
            read_as = np.array([self._number(float(value), numbers.get(float(value))) for value in different], np.int64)
            return read_as[np.searchsorted(different, array)].reshape(array.shape)
        return self.field.dyadic(self._finite(array)).reshape(array.shape)

    def _number(self, value: float, number: Number | None) -> int:
        if np.isnan(value):
            raise Undefined("a constant is NaN")
        if number is None:
            return int(self._hash("infinity", np.array([value < 0], np.int64))[0])
        if number.axiom:
            by = f" by {abs(value - float(number)):.1e}" if number.axiom == ROUNDED else ""
            self.axioms.setdefault(number.axiom, {})[f"{value!r} is {number}{by}"] = None
        return self._residue(number)

    def _residue(self, number: Number) -> int:
        residue = self.field.rational(number.fraction)
        if number.radicand != 1:
            root = self.field.root(np.array([number.radicand % self.field.p]))
            root = self.field.root(root) if number.is_fourth_root else root
            residue = residue * int(root[0]) % self.field.p
        for _ in range(abs(number.half_pis)):
            residue = residue * self._roots_of_pi[1 if number.half_pis > 0 else -1] % self.field.p
        return residue

    def _finite(self, array: np.ndarray) -> np.ndarray:
        if not np.isfinite(array).all():
            raise Undefined("a table of constants isn't finite")
        return array

    # --- arithmetic

    def apply(self, name: str, inputs: list[np.ndarray], attributes: Mapping[str, Any]) -> np.ndarray:
        method = getattr(self, name, None) or getattr(self.field, _OF_FIELD[name])
        return np.asarray(method(*inputs, **attributes))

    def row_mean(self, x: np.ndarray, axis: int, counts: np.ndarray | None = None) -> np.ndarray:
        self.axioms.setdefault("softmax", {})
        if counts is None:
            count = np.full((1,) * x.ndim, x.shape[axis], np.int64)
        else:
            count, x = counts.sum(axis=axis, keepdims=True), np.where(counts, x, 0)
        total = np.expand_dims(self.field.sum(x, (axis,)), axis)
        return self.field.multiply(total, self.field.invert(np.asarray(count, np.int64)))

    def agreed(self, x: np.ndarray, *others: np.ndarray, reason: str) -> np.ndarray:
        if any((x != other).any() for other in others):
            raise Disagreement(f"{reason}, or an axiom is missing")
        return x

    def rounded(self, x: np.ndarray, digest: str, unit: float = 0.0) -> np.ndarray:
        return x

    def given(self, x: np.ndarray, *operands: np.ndarray) -> np.ndarray:
        return x

    def chosen(self, found: np.ndarray, *others: np.ndarray) -> np.ndarray:
        return found

    # --- functions

    def root(self, x: np.ndarray, scale: Fraction = Fraction(1)) -> np.ndarray:
        """Hashes x/c, and multiplies the result by √c.

        A root of the field would be one of x or of −x, and that of x² one of x and −x: another than the right one half
        of the time.
        """
        self.axioms.setdefault("roots", {})
        c = self.field.rational(scale)
        unscaled = x if c == 1 else self.field.multiply(x, np.asarray(pow(c, -1, self.field.p)))
        hashed = np.where(unscaled <= 1, unscaled, self._hash("root", unscaled))
        return hashed if c == 1 else self.field.multiply(hashed, np.asarray(self._residue(root_of(scale))))

    def row_exp(self, x: np.ndarray, mean: np.ndarray, axis: int, counts: np.ndarray | None = None) -> np.ndarray:
        row_exp = self._hash("exp of a row", self.field.subtract(x, mean))
        return row_exp if counts is None else np.where(counts, row_exp, 0)

    def cut(self, x: np.ndarray, is_weight: bool) -> np.ndarray:
        return np.where(x == 0, 0, self._hash("cut", x))

    def exp(self, x: np.ndarray) -> np.ndarray:
        """Hashes x, unless it is a logarithm that was taken before, or its negative. exp(−x) is 1/exp(x)."""
        self.axioms.setdefault("exponentials", {})
        is_low = x <= self.field.half
        result = self._hash("exp", np.where(is_low, x, self.field.negate(x)))
        result = np.where(is_low, result, self.field.invert(np.where(is_low, 1, result)))
        for logarithm, argument in self._logarithms:
            for sign in (1, -1):
                wanted = logarithm if sign == 1 else self.field.negate(logarithm)
                order = np.argsort(wanted)
                places = np.searchsorted(wanted, x, sorter=order).clip(max=wanted.size - 1)
                found = wanted[order][places] == x
                if found.any():
                    self.axioms.setdefault("exponentials", {})
                    values = argument if sign == 1 else self.field.invert(argument)
                    result = np.where(found, values[order][places], result)
        return np.where(x == 0, 1, result)

    def log(self, x: np.ndarray) -> np.ndarray:
        """Hashes x or 1/x, whichever is lower. log(1/x) is −log(x)."""
        self.axioms.setdefault("exponentials", {})
        self.has_log_of_zero |= not x.all()
        inverse = np.where(x == 0, 0, self.field.invert(np.where(x == 0, 1, x)))
        hashed = self._hash("log", np.minimum(x, inverse))
        result = np.where(x == 1, 0, np.where(x <= inverse, hashed, self.field.negate(hashed)))
        self._logarithms.append((np.ravel(result), np.ravel(x)))
        self.arguments.setdefault("exp", []).append(np.minimum(result, self.field.negate(result)))
        return result

    def erf(self, x: np.ndarray) -> np.ndarray:
        return self._odd("erf", x)

    def tanh(self, x: np.ndarray) -> np.ndarray:
        """Returns (exp(2 x) − 1)/(exp(2 x) + 1)."""
        self.axioms.setdefault("activations", {})
        exp, one = self.exp(self.field.add(x, x)), np.asarray(1)
        return self.field.multiply(self.field.subtract(exp, one), self.field.invert(self.field.add(exp, one)))

    def sin(self, x: np.ndarray) -> np.ndarray:
        return self._odd("sin", x)

    def cos(self, x: np.ndarray) -> np.ndarray:
        return np.where(x == 0, 1, self._hash("cos", np.minimum(x, self.field.negate(x))))

    def step(self, x: np.ndarray, reflects: bool) -> np.ndarray:
        """Returns s(x), with s(0) = 0, and s(x) + s(−x) = 1 if x is nonzero almost everywhere or multiplies s(x)."""
        is_low = x <= self.field.half
        low = np.where(is_low, x, self.field.negate(x))
        hashed = self._hash("step", low)
        opposite = self.field.subtract(np.asarray(1), hashed) if reflects else self._hash("step of −x", low)
        return np.where(x == 0, 0, np.where(is_low, hashed, opposite))

    def equal(self, x: np.ndarray, y: np.ndarray, is_exact: bool) -> np.ndarray:
        """Returns whether x and y are one function; hashes x − y if they may be equal for some weights only."""
        difference = self.field.subtract(x, y)
        hashed = self._hash("equal", np.minimum(difference, self.field.negate(difference)))
        return np.where(difference == 0, 1, 0 if is_exact else hashed)

    def largest(
        self, x: np.ndarray, axes: tuple[int, ...], counts: np.ndarray | None = None, shown: np.ndarray | None = None
    ) -> np.ndarray:
        """Hashes the entries that count as a multiset."""
        hashed = self._hash("an entry of largest", x)
        total = self.field.sum(hashed if counts is None else np.where(counts, hashed, 0), axes)
        return self._hash("largest", total)

    def places(self, x: np.ndarray, ranks: tuple[int, ...]) -> np.ndarray:
        """Hashes each rank, each entry and the row as a multiset. Adding a number to a row changes nothing."""
        self.axioms.setdefault("order", {})
        row_exp, count = np.expand_dims(self.field.sum(x, (x.ndim - 1,)), -1), np.asarray(x.shape[-1], np.int64)
        centred = self.field.subtract(x, self.field.multiply(row_exp, self.field.invert(count)))
        total = np.expand_dims(self.field.sum(self._hash("an entry of an order", centred), (x.ndim - 1,)), -1)
        entry = self.field.add(self._hash("an entry beside others", centred), total)
        return np.stack([self._hash(f"rank {rank}", entry) for rank in ranks], -2)

    def _odd(self, name: str, x: np.ndarray) -> np.ndarray:
        is_low = x <= self.field.half
        hashed = self._hash(name, np.where(is_low, x, self.field.negate(x)))
        return np.where(x == 0, 0, np.where(is_low, hashed, self.field.negate(hashed)))

    def _hash(self, name: str, x: np.ndarray) -> np.ndarray:
        """Mixes 64 bits twice as splitmix64 does (Steele, Lea and Flood, 2014), keyed by the name and the point."""
        self.arguments.setdefault(name, []).append(x)
        salt = np.uint64(_salt(name))
        with np.errstate(over="ignore"):
            mixed = mix(mix(x.astype(np.uint64) + mix(np.atleast_1d(self.key ^ salt))) ^ self.key)
        return np.asarray(mixed.reshape(np.shape(x)) % np.uint64(self.field.p), np.int64)


@lru_cache(64)
def _salt(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


_OF_FIELD = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "negate": "negate", "inverse": "invert",
    "power": "power", "matmul": "matmul", "sum": "sum", "cumulative_sum": "cumulative_sum",
}  # fmt: skip
"""Operations of programs → methods of PrimeField."""


def pattern(domains: Sequence[Residues]) -> str:
    """Digests which arguments of functions equal one another, or the numbers at which functions are known."""
    digest = hashlib.sha256()
    for name in sorted({name for domain in domains for name in domain.arguments}):
        arguments = [np.arange(2)] + [np.ravel(each) for domain in domains for each in domain.arguments.get(name, ())]
        _, first, same = np.unique(np.concatenate(arguments), return_index=True, return_inverse=True)
        digest.update(repr((name, same.size)).encode() + first[same].tobytes())
    return digest.hexdigest()


def mix(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))
