"""The bound on the probability of an error, and the series of points that it speaks of."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from jax_transformer.proof import Program, Task, decide, deciding
from jax_transformer.proof.building import Builder
from jax_transformer.proof.degrees import LIKELIEST, SERIES, Bounds, bound
from jax_transformer.proof.domains import Residues, pattern
from jax_transformer.proof.fields import draw_field
from jax_transformer.proof.programs import Value

Compute = Callable[[Builder, Value, Value], Value]


def program(compute: Compute) -> Program:
    b = Builder()
    return b.program({"y": compute(b, b.input("u", (2,)), b.input("v", (2,)))})


def both_exponentials(b: Builder, u: Value, v: Value) -> Value:
    return b.add(b.exp(u), b.exp(v))


def task(compute: Compute, draws: Callable[[int], list[np.ndarray]]) -> Task:
    """Returns a program compared with itself, at weights that depend on how often they were drawn."""
    one, count = program(compute), iter(range(1000))

    def draw(_: object) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        weights = dict(zip("uv", draws(next(count)), strict=True))
        return weights, weights

    return Task(one, one, draw)


def unlike(number: int) -> list[np.ndarray]:
    return [np.array([10, 20]) + number, np.array([30, 40]) + number]


def coincident(number: int) -> list[np.ndarray]:
    return [np.array([10, 20]) + number, np.array([30, 20]) + number]


def test_degrees_follow_the_operations() -> None:
    for compute, degree in (
        (lambda b, u, v: b.add(u, v), 1),
        (lambda b, u, v: b.multiply(u, b.power(v, 3)), 4),
        (lambda b, u, v: b.multiply(b.exp(u), v), 2),
        (lambda b, u, v: b.exp(b.power(u, 5)), 5),
        (lambda b, u, v: b.multiply(b.exp(b.power(u, 5)), b.exp(v)), 5),
        (lambda b, u, v: b.multiply(b.exp(b.power(u, 5)), b.power(v, 6)), 7),
        (lambda b, u, v: b.divide(u, v), 3),  # u₁/v₁ is u₁v₂/(v₁v₂); the numerator of 1/v₁ counts as v₁v₂
        (lambda b, u, v: b.add(b.inverse(u), b.inverse(v)), 4),
    ):
        assert bound([program(compute)] * 2).degree == 2 * degree


def test_arguments_are_counted() -> None:
    for compute, values in (
        (lambda b, u, v: b.erf(b.multiply(u, v)), 2),
        (lambda b, u, v: b.exp(b.log(u)), 2 + 2 + 2),
        (lambda b, u, v: b.add(u, b.broadcast(b.largest(v, (0,)), (2,))), 2 + 1),
        (lambda b, u, v: b.root(u), 2),
    ):
        assert bound([program(compute)] * 2).values == 2 * values


def test_pairs_of_arguments_count_once_and_degrees_at_each_point() -> None:
    one, two = (Bounds(1000, 10**6).log2_error([2**50] * points) for points in (1, 2))
    assert one == pytest.approx(math.log2(SERIES * 1e12 * LIKELIEST * 1000 / 2**50), abs=1e-3)
    assert two - one == pytest.approx(math.log2(LIKELIEST * 1000 / 2**50), abs=1e-9)


def test_exp_after_a_logarithm_has_the_degree_of_what_the_logarithm_read() -> None:
    def compute(b: Builder, u: Value, v: Value) -> Value:
        return b.add(b.exp(v), b.log(b.power(u, 5)))

    before, after = program(compute), program(lambda b, u, v: b.add(b.log(b.power(u, 5)), b.exp(v)))
    assert [bound([one] * 2).degree for one in (before, after)] == [2 * 5, 2 * (1 + 3 * 5 * 2)]


def test_degrees_that_no_point_can_tell_apart_decide_nothing() -> None:
    found = decide(task(lambda b, u, v: b.power(b.power(b.multiply(u, v), 2**999), 2**999), unlike))
    assert (found.verdict, found.points) == ("unknown", ())
    assert "the degrees are too high" in found.reason


def test_a_pattern_tells_which_arguments_are_equal_and_not_what_they_are() -> None:
    def of(*arguments: list[int], seed: int = 0) -> str:
        domains = [Residues(draw_field(np.random.default_rng(seed)), seed) for _ in arguments]
        for domain, each in zip(domains, arguments, strict=True):
            domain.exp(np.array(each))
        return pattern(domains)

    assert of([7, 8], [8, 9]) == of([5, 3], [3, 2], seed=1)
    assert of([7, 8], [8, 9]) != of([7, 8], [7, 9])
    assert of([7, 8], [8, 9]) != of([7, 8], [9, 8])
    assert of([7, 0], [8, 9]) != of([7, 5], [8, 9])  # exp(0) is known


def test_a_logarithm_is_an_argument_of_exp() -> None:
    field = draw_field(np.random.default_rng(0))
    one, other = Residues(field, 0), Residues(field, 0)
    for domain, argument in ((one, 5), (other, 6)):
        logarithm = domain.log(np.array([5]))
        domain.exp(logarithm if argument == 5 else np.array([6]))
    assert pattern([one]) != pattern([other])


def test_points_with_one_pattern_prove() -> None:
    found = decide(task(both_exponentials, unlike))
    assert found.verdict == "proven"
    assert {point.draws for point in found.points} == {1}
    assert found.log2_error < -deciding.SECURITY
    assert found.bounds is not None
    assert found.bounds.log2_error([point.prime for point in found.points[1:]]) > -deciding.SECURITY


def test_a_series_with_equal_arguments_at_one_point_is_abandoned() -> None:
    found = decide(task(both_exponentials, lambda number: coincident(0) if number == 1 else unlike(number)))
    assert found.verdict == "proven"
    assert {point.draws for point in found.points} == {2}


def test_points_that_never_agree_prove_nothing() -> None:
    found = decide(task(both_exponentials, lambda number: (coincident if number % 2 else unlike)(number)))
    assert found.verdict == "unknown"
    assert "equal arguments at one point only" in found.reason


def test_a_divisor_that_is_zero_ends_a_series() -> None:
    def quotient(b: Builder, u: Value, v: Value) -> Value:
        return b.divide(u, b.subtract(v, u))

    zero = [np.array([1, 2]), np.array([1, 5])]
    found = decide(task(quotient, lambda number: zero if number == 0 else unlike(number)))
    assert {point.draws for point in found.points} == {2}
    found = decide(task(quotient, lambda number: zero))
    assert found.verdict == "unknown"
    assert "1 of 2 divisors are zero" in found.reason


def test_a_difference_is_located_at_the_point_that_shows_it() -> None:
    generator = np.random.default_rng(0)
    candidate, reference = program(both_exponentials), program(lambda b, u, v: b.add(b.exp(u), b.erf(v)))

    def draw(of_shape: Callable[[tuple[int, ...]], np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        weights = {"u": of_shape((2,)), "v": of_shape((2,))}
        return weights, weights

    own = {name: generator.standard_normal(2) for name in "uv"}
    found = decide(Task(candidate, reference, draw, own=(own, own)))
    assert found.verdict == "refuted"
    assert found.difference is not None
    assert found.difference.candidate is not None
    assert found.difference.reference is not None
    assert (found.difference.candidate.operation, found.difference.reference.operation) == ("exp", "erf")
    assert found.difference.float64 is not None
    assert found.difference.float64 > 0.1
