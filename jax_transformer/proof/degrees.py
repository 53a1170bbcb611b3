"""Bound the probability that two programs look the same though they aren't.

Between two functions, a program computes rational functions of weights and of earlier functions' values. A value here
is P/Q. Q is a product of powers of the divisors met so far, all elements of each, so that the values of an array share
it. The degree d bounds that of the numerator of any difference of two values that are compared, or read by a function.

A series of R points shows no difference where there is one with a probability of at most (1 + N²) · (c · d/p)ᴿ, if N
values are read by functions:

1. Call two arguments of a function *alike* if they are one rational function of weights and earlier values, where alike
   arguments have one value. Programs that differ have different outputs in this sense.
2. Functions are hashes. As long as no arguments are equal that aren't alike, values of arguments that aren't alike are
   independent random variables. A difference that isn't zero as a function is then zero with a probability of at most
   c · d/p, by the induction of Schwartz (1980) and Zippel (1979), one variable after the other; at all R points, with
   the R-th power of it. c is 3 since a hash h is read as h, as 1/h (exp of the opposite number) and as
   (h − 1)/(h + 1) (tanh): with poles up to e at three places, a difference is zero for 3e values of h at most, unless
   the coefficient of the highest pole is, whose degree is less by e.
3. Points of a series have to agree in which arguments are equal (`domains.pattern`). So if two that aren't alike are
   equal at one point, they are equal at all. For the first such two in the order of evaluation, (2) gives the same
   power. There are fewer than N²/2 such pairs, and twice as many where signs don't count. The numbers 0 and 1 are
   arguments as well: some functions are known there.

exp of a logarithm is the logarithm's argument, and may be any that was read before.

A series in which a divisor is zero, or whose points disagree, is given up. There are SERIES at most, and the
probability is at most their sum. Two assumptions are not counted: hashes are taken to be random, and a coefficient that
isn't zero is taken not to be a multiple of the prime, which is drawn from some 2³³.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from jax_transformer.proof.fields import BITS
from jax_transformer.proof.programs import FUNCTIONS, Operation, Program

SERIES = 8
"""How many series of points are tried."""
LIKELIEST = 3.001
"""c: hashes, 64 bits modulo p, are read with poles at three places."""
READ_AGAIN = {"log": 1, "largest": 1, "places": 3}
"""How often results are arguments: exp compares its own with logarithms, largest hashes sums of hashed entries, and
places sums of several."""

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
        """Returns whether each point makes the error smaller, by 2⁻⁸ at least."""
        return math.log2(LIKELIEST) + math.log2(self.degree) < BITS - 9

    def log2_error(self, primes: Sequence[int]) -> float:
        """Returns the logarithm of a bound on the probability that a series of points, one in each field, shows no
        difference where there is one."""
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

    highest, values, of_logarithm = 1, 0, 0
    for node, one in enumerate(program.operations):
        inputs = [degrees[each] for each in one.inputs]
        if one.name == "agreed":
            highest = max(highest, total(_combined(one, inputs, whole)))
        if one.name in FUNCTIONS:
            highest = max(highest, total(_combined(one, inputs, whole)))
            values += program.size(one.inputs[0]) + READ_AGAIN.get(one.name, 0) * program.size(node)
            if one.name == "log":
                of_logarithm = max(of_logarithm, total(inputs[0]))
            if one.name in ("exp", "tanh") and of_logarithm:
                sizes[node] = 3 * of_logarithm * program.size(node)
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
