"""Each axiom proves what needs it, and refutes near misses."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from jax_transformer.proof import Result, Task, constants, decide, domains, proving
from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import Program, Value

Compute = Callable[[Builder, Value, Value], Value]
SHAPE = (2, 3)
MASK = np.array([[False, False, True], [False, True, False]])


def program(compute: Compute, name: str = "output") -> Program:
    b = Builder()
    return b.program({name: compute(b, b.input("u", SHAPE), b.input("v", SHAPE))})


def compared(ours: Compute, theirs: Compute, name: str = "output") -> Result:
    def draw(one: Any) -> Any:
        drawn = {"u": one(SHAPE), "v": one(SHAPE)}
        return drawn, drawn

    return decide(Task(program(ours, name), program(theirs, name), draw))


def masked(fill: float) -> Compute:
    return lambda b, u, v: b.softmax(b.where(b.constant(MASK), b.constant(np.full(SHAPE, fill)), u), 1)


def naive_softmax(b: Builder, u: Value, v: Value) -> Value:
    exp = b.exp(u)
    return b.divide(exp, b.broadcast(b.kept_sum(exp, 1), SHAPE))


def over_columns(b: Builder, u: Value, v: Value) -> Value:
    return b.softmax(u, 0)


def less(b: Builder, x: Value, y: Value) -> Value:
    return b.greater(y, x)


def norm(scale: float, eps: float) -> Compute:
    """u / √(Σ u² · scale + eps)."""

    def compute(b: Builder, u: Value, v: Value) -> Value:
        total = b.add(b.multiply(b.kept_sum(b.power(u, 2), 1), b.constant(scale)), b.constant(eps))
        return b.multiply(u, b.inverse(b.root(b.broadcast(total, SHAPE))))

    return compute


def joined(b: Builder, u: Value, v: Value, scale: float) -> Value:
    """scale · (u² + v², exp(u))."""
    parts = b.add(b.power(u, 2), b.power(v, 2)), b.exp(u)
    return b.concatenate([b.multiply(each, b.constant(scale)) for each in parts], 0)


def times(number: float, compute: Compute) -> Compute:
    return lambda b, u, v: b.multiply(compute(b, u, v), b.constant(number))


NEEDED: dict[str, tuple[Compute, Compute, Compute]] = {
    "softmax": (lambda b, u, v: b.softmax(u, 1), naive_softmax, over_columns),
    "masks": (masked(-1e9), masked(-np.inf), masked(-50.0)),
    "roots: a square": (
        lambda b, u, v: b.power(b.root(b.exp(u)), 2),
        lambda b, u, v: b.exp(u),
        lambda b, u, v: b.negate(b.exp(u)),
    ),
    "roots: of squares": (
        lambda b, u, v: b.root(b.power(u, 2)),
        lambda b, u, v: b.absolute(u),
        lambda b, u, v: u,
    ),
    "roots: a factor": (norm(0.25, 1e-5), times(2.0, norm(1.0, 4e-5)), times(2.0, norm(1.0, 1e-5))),
    "roots: a factor of joined parts": (
        lambda b, u, v: b.root(joined(b, u, v, 0.25)),
        lambda b, u, v: b.multiply(b.root(joined(b, u, v, 1.0)), b.constant(0.5)),
        lambda b, u, v: b.multiply(b.root(joined(b, u, v, 1.0)), b.constant(0.25)),
    ),
    "roots: a constant": (
        lambda b, u, v: b.multiply(u, b.constant(1 / 8**0.5)),
        lambda b, u, v: b.divide(u, b.root(b.constant(8.0))),
        lambda b, u, v: b.multiply(u, b.constant(1 / 8**0.5 * (1 + 2**-48))),
    ),
    "fractions": (
        lambda b, u, v: b.divide(u, b.constant(3.0)),
        lambda b, u, v: b.multiply(u, b.constant(1 / 3)),
        lambda b, u, v: b.multiply(u, b.constant(1 / 3 + 2**-50)),
    ),
    "activations": (
        lambda b, u, v: b.add(b.erf(u), b.erf(b.negate(u))),
        lambda b, u, v: b.multiply(u, b.constant(0.0)),
        lambda b, u, v: b.multiply(b.erf(u), b.constant(2.0)),
    ),
    "activations: a maximum": (
        lambda b, u, v: b.maximum(u, v),
        lambda b, u, v: b.maximum(v, u),
        lambda b, u, v: b.minimum(u, v),
    ),
    "activations: signs": (
        lambda b, u, v: b.as_float(b.greater(u, v)),
        lambda b, u, v: b.as_float(b.logical_not(b.greater(v, u))),
        lambda b, u, v: b.as_float(b.greater(v, u)),
    ),
    "activations: σ": (
        lambda b, u, v: b.logistic(u),
        lambda b, u, v: b.inverse(b.add(b.constant(1.0), b.exp(b.negate(u)))),
        lambda b, u, v: b.inverse(b.add(b.constant(1.0), b.exp(u))),
    ),
    "positive": (
        lambda b, u, v: b.where(b.greater(b.sum(b.power(u, 2), (0, 1)), b.constant(0.0)), u, v),
        lambda b, u, v: u,
        lambda b, u, v: v,
    ),
    "differences": (
        lambda b, u, v: b.multiply(b.exp(b.subtract(u, v)), b.exp(v)),
        lambda b, u, v: b.exp(u),
        lambda b, u, v: b.exp(b.subtract(u, v)),
    ),
    "differences: a logarithm": (
        lambda b, u, v: b.exp(b.subtract(v, b.add(b.log(b.exp(u)), v))),
        lambda b, u, v: b.exp(b.negate(u)),
        lambda b, u, v: b.exp(u),
    ),
    "exp of log": (
        lambda b, u, v: b.exp(b.negate(b.log(b.power(u, 2)))),
        lambda b, u, v: b.power(u, -2),
        lambda b, u, v: b.power(u, 2),
    ),
}


@pytest.mark.parametrize("name", list(NEEDED))
def test_an_axiom_proves_and_refutes(name: str) -> None:
    one, same, near = NEEDED[name]
    assert compared(one, same).verdict == "proven"
    assert compared(one, near).verdict == "refuted"


def test_softmax_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, same, _ = NEEDED["softmax"]
    assert "softmax" in compared(one, same).axioms
    monkeypatch.setattr(Builder, "_about_mean", lambda self, x, axis: x)
    monkeypatch.setattr(proving, "_without_differences", lambda task: None)  # it proves this pair, too
    assert compared(one, same).verdict == "unknown"


def test_masks_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, same, _ = NEEDED["masks"]
    assert "masks" in compared(one, same).axioms
    from jax_transformer.proof import masks

    monkeypatch.setattr(masks, "FILL", -1e30)
    assert compared(one, same).verdict == "unknown"


def test_differences_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, same, _ = NEEDED["differences"]
    assert "differences" in compared(one, same).axioms
    monkeypatch.setattr(proving, "_without_differences", lambda task: None)
    assert compared(one, same).verdict == "unknown"


@pytest.mark.parametrize("name", ["fractions", "roots: a constant"])
def test_reading_constants_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, same, _ = NEEDED[name]
    assert name.partition(":")[0] in compared(one, same).axioms
    monkeypatch.setattr(domains, "read", lambda value: constants.Number(Fraction(value)))
    assert compared(one, same).verdict == "unknown"


def test_positive_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax_transformer.proof.signs import Signs

    one, same, _ = NEEDED["positive"]
    assert "positive" in compared(one, same).axioms
    monkeypatch.setattr(Signs, "positive", lambda self, node: False)
    assert compared(one, same).verdict == "unknown"


def test_rows_that_are_masked_as_a_whole_are_compared_as_they_stand() -> None:
    whole = np.array([[True, True, True], [False, True, False]])

    def with_fill(fill: float, scale: float) -> Compute:
        def compute(b: Builder, u: Value, v: Value) -> Value:
            return b.softmax(b.add(u, b.constant(np.where(whole, fill, 0.0) * [1, scale, 1])), 1)

        return compute

    assert compared(with_fill(-1e9, 1), with_fill(-2e9, 1)).verdict == "proven"  # a number less than each entry
    assert compared(with_fill(-1e9, 1), with_fill(-1e9, 2)).verdict == "refuted"


def test_a_step_of_what_can_be_zero_has_two_readings() -> None:
    def relu(b: Builder, u: Value) -> Value:
        return b.maximum(u, b.constant(0.0))

    assert (
        compared(
            lambda b, u, v: b.as_float(b.at_least(relu(b, u), b.constant(0.0))),
            lambda b, u, v: b.as_float(b.greater(relu(b, u), b.constant(0.0))),
        ).verdict
        == "refuted"
    )
    biased = [
        compared(
            lambda b, u, v: b.as_float(b.at_least(b.add(relu(b, u), v), b.constant(0.0))),
            lambda b, u, v: b.as_float(b.greater(b.add(relu(b, u), v), b.constant(0.0))),
        ).verdict
    ]
    assert biased == ["proven"]
