"""Where values can be zero, and which sign they have, as random weights have it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from jax_transformer.proof.building import Builder
from jax_transformer.proof.domains import Reals
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.programs import Value

Compute = Callable[[Builder, Value, Value, Value], Value]


def relu(b: Builder, x: Value) -> Value:
    return b.maximum(x, b.constant(0.0))


def times(b: Builder, x: Value, w: Value) -> Value:
    product = b.matmul(b.reshape(x, (1, *x.shape)), b.reshape(w, (1, *w.shape)))
    return b.reshape(product, product.shape[1:])


def centred(b: Builder, x: Value) -> Value:
    mean = b.multiply(b.kept_sum(x, 1), b.constant(0.5))
    return b.subtract(x, b.broadcast(mean, x.shape))


def variance(b: Builder, x: Value) -> Value:
    mean = b.multiply(b.kept_sum(x, 1), b.constant(0.5))
    return b.subtract(b.multiply(b.kept_sum(b.power(x, 2), 1), b.constant(0.5)), b.power(mean, 2))


CASES: dict[str, tuple[Compute, bool, bool]] = {
    "a weight": (lambda b, u, v, w: u, True, False),
    "a ReLU": (lambda b, u, v, w: relu(b, u), False, True),
    "a ReLU and a bias": (lambda b, u, v, w: b.add(relu(b, u), v), True, False),
    "a ReLU and a bias that it reads": (lambda b, u, v, w: b.subtract(relu(b, u), u), False, False),
    "a layer without biases": (lambda b, u, v, w: times(b, u, v), True, False),
    "a dead layer": (lambda b, u, v, w: times(b, relu(b, u), v), False, False),
    "a residual": (lambda b, u, v, w: b.add(u, times(b, relu(b, u), v)), True, False),
    "a residual of the same weight": (lambda b, u, v, w: b.add(v, times(b, relu(b, u), v)), False, False),
    "squares": (lambda b, u, v, w: b.power(u, 2), True, True),
    "squares of ReLUs": (lambda b, u, v, w: b.sum(b.power(relu(b, u), 2), (1,)), False, True),
    "squares about a mean": (lambda b, u, v, w: b.power(centred(b, u), 2), True, True),
    "a variance": (lambda b, u, v, w: variance(b, u), True, True),
    "a variance of ReLUs": (lambda b, u, v, w: variance(b, relu(b, u)), False, False),
    "a variance of biased ReLUs": (lambda b, u, v, w: variance(b, b.add(relu(b, u), v)), True, True),
    "exponentials": (lambda b, u, v, w: b.exp(relu(b, u)), True, True),
    "zero": (lambda b, u, v, w: b.subtract(b.add(u, v), b.add(u, v)), False, False),
    "a difference": (lambda b, u, v, w: b.subtract(u, v), True, False),
    "a part of zeros": (lambda b, u, v, w: b.take(u, np.array([0, -1])), False, False),
}


@pytest.mark.parametrize("name", list(CASES))
def test_signs(name: str) -> None:
    compute, is_nonzero, is_never_negative = CASES[name]
    b = Builder()
    value = compute(b, *(b.input(each, (2, 2)) for each in "uvw"))
    assert value.node is not None
    assert b._signs.nonzero(value.node) is is_nonzero
    assert b._signs.never_negative(value.node) is is_never_negative
    program, key = b.program({"y": value}), np.random.default_rng(0)
    for _ in range(50):
        found = evaluate(program, Reals(), {each: key.standard_normal((2, 2)) for each in "uvw"})["y"]
        assert not is_nonzero or (np.abs(found) > 1e-12).all()
        assert not is_never_negative or (found >= -1e-12).all()
