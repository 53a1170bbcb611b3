"""Bound the probability that two different programs look the same.

Between two functions, a program computes rational functions of weights and of earlier functions' values. A value here
is P/Q. Q is a product of powers of the divisors met so far, over all elements of each, so that the values of an array
share it. The degree d bounds that of the numerator of any difference of two values that are compared, or that a
function reads.

A series of R points misses a difference with a probability of at most (1 + N²) · (c · d/p)ᴿ, if functions read N
values:

1. Two arguments of a function are *alike* if they are one rational function of weights and earlier values, with alike
   arguments having one value. In this sense, programs that differ have different outputs.
2. Functions are hashes. As long as no unlike arguments are equal, the values of unlike arguments are independent random
   variables. A difference that isn't zero as a function is then zero with a probability of at most c · d/p, by the
   induction of Schwartz (1980) and Zippel (1979) over the variables; at all R points, with the R-th power of it. c is 3
   because a hash h is read as h, as 1/h (exp of the opposite number) and as (h − 1)/(h + 1) (tanh): with poles up to e
   at three places, a difference is zero for at most 3e values of h, unless the coefficient of the highest pole is zero,
   whose degree is less by e.
3. The points of a series must agree in which arguments are equal (`domains.pattern`). So if two unlike arguments are
   equal at one point, they are equal at all. For the first such pair in the order of evaluation, (2) gives the same
   power. There are fewer than N²/2 such pairs, and twice as many if signs don't count. The numbers 0 and 1 are
   arguments as well: some functions are known there.

exp of a logarithm is the logarithm's argument, which may be any earlier argument.

A series in which a divisor is zero, or whose points disagree, is abandoned. There are at most SERIES of them, and the
probability is at most their sum. Two assumptions aren't counted: that hashes are random, and that a nonzero coefficient
isn't a multiple of the prime, which is drawn from about 2³³."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jax_transformer.proof.fields import BITS
from jax_transformer.proof.programs import FUNCTIONS, Operation, Program

SERIES = 8
"""How many series of points are tried."""
LIKELIEST = 3.001
"""c: a hash, 64 bits modulo p, is read with poles at three places."""
READ_AGAIN = {"log": 1, "largest": 1, "places": 3}
"""Number of times that results are arguments: exp compares its own with logarithms, largest hashes sums of hashed
entries, and places sums of several."""

Powers = Mapping[int, int]
"""Divisors, by the operation that has them → exponents."""


@dataclass(frozen=True)
class Degree:
    """Bounds the degree of P, and names the factors of Q."""

    numerator: int
    divisors: Powers = field(default_factory=dict)


@dataclass(frozen=True)
class Bounds:
    """Holds the degree d, and how many values are read by functions."""

    degree: int
    values: int

    @property
    def can_decide(self) -> bool:
        """Returns whether each point reduces the error, at least by 2⁻⁸."""
        return math.log2(LIKELIEST) + math.log2(self.degree) < BITS - 9

    def log2_error(self, primes: Sequence[int]) -> float:
        """Returns the logarithm of a bound on the probability that a series of points, one per field, misses a
        difference."""
        pairs = math.log2(1 + (self.values + 2) ** 2)
        return math.log2(SERIES) + pairs + sum(math.log2(LIKELIEST * self.degree / prime) for prime in primes)


def bound(programs: Sequence[Program]) -> Bounds:
    """Returns the bounds of programs whose outputs are compared."""
    degrees, values = zip(*(_highest(program) for program in programs), strict=True)
    return Bounds(2 * max(degrees), sum(values))


def _highest(program: Program) -> tuple[int, int]:
    """Returns the highest degree of a value that is compared or read by a function, and how many values are read."""
    degrees: list[Degree] = []
    sizes: dict[int, int] = {}
    """The degree of the product of all elements of each divisor."""

    def whole(powers: Powers) -> int:
        return sum(exponent * sizes[node] for node, exponent in powers.items())

    def total(degree: Degree) -> int:
        return max(degree.numerator, whole(degree.divisors))

    highest, values, log_degree = 1, 0, 0
    for node, one in enumerate(program.operations):
        inputs = [degrees[each] for each in one.inputs]
        if one.name == "agreed":
            highest = max(highest, total(_combined(one, inputs, whole)))
        if one.name in FUNCTIONS:
            highest = max(highest, total(_combined(one, inputs, whole)))
            values += program.size(one.inputs[0]) + READ_AGAIN.get(one.name, 0) * program.size(node)
            if one.name == "log":
                log_degree = max(log_degree, total(inputs[0]))
            if one.name in ("exp", "tanh") and log_degree:
                sizes[node] = 3 * log_degree * program.size(node)
                degrees.append(Degree(1 + sizes[node], {node: 1}))
            else:
                degrees.append(Degree(1))
        elif one.name == "inverse":
            sizes[node] = max(total(inputs[0]), 1) * program.size(node)
            degrees.append(Degree(whole(inputs[0].divisors) + sizes[node], {node: 1}))
        else:
            degrees.append(_combined(one, inputs, whole))
    compared = {value.node for value in program.outputs.values() if value.node is not None}
    return max([highest, *(total(degrees[node]) for node in compared)]), values


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
