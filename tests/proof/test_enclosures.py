"""A difference that rounding explains refutes nothing, and one that is small by itself does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.parity import prove
from jax_transformer.proof.digits import Digits, as_decimals
from jax_transformer.proof.enclosures import Enclosure, Enclosures, as_enclosures

FINE = 300
FUNCTIONS = ("exp", "log", "tanh", "erf", "sin", "cos", "root", "inverse", "step")


def verdicts(ours: Callable[[Any, Any], Any], theirs: Callable[[Any, Any], Any]) -> list[str]:
    weights = {name: np.ones((2, 4), np.float32) for name in ("w", "v")}
    with jax.enable_x64(False):
        both = [lambda p, i, f=f: f(p["w"], p["v"]) for f in (ours, theirs)]
        return [stage.verdict for stage in prove(*both, inputs={}, weights=weights).stages]


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 5.0, 30.0, 1e3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_inexact_numbers_are_enclosed(name, scale):
    drawn = as_decimals(np.abs(np.random.default_rng(0).standard_normal(20) * scale))
    attributes = {"reflects": True} if name == "step" else {}

    def computed(domain: Digits, x: np.ndarray) -> np.ndarray:
        for other in (3.0, 1 / 7):
            x = domain.apply("multiply", [x, domain.constant(np.array(other))], {})
        x = domain.apply("subtract", [domain.apply("add", [x, domain.constant(np.array(0.3))], {}), x], {})
        x = domain.apply("multiply", [x, drawn], {})
        return domain.apply(name, [x], attributes)

    found = computed(Enclosures(40), as_enclosures({"x": drawn})["x"])
    truth = computed(Digits(FINE), drawn)
    with Enclosures(FINE)._context():
        for enclosure, number in zip(found.tolist(), truth.tolist(), strict=True):
            assert abs(enclosure.value - number) <= enclosure.error
            if name != "step":
                assert enclosure.error < abs(number) * Enclosure("1e-20").value + Enclosure("1e-30").value


def test_rows_of_saturated_numbers_have_no_sure_order():
    domain = Enclosures()
    x = domain.apply("tanh", [as_enclosures({"x": as_decimals(np.array([[200.0, 300.0, -1.0]]))})["x"]], {})
    places = domain.apply("places", [x], {"ranks": (0, 2)})
    assert [bool(one.error) for one in places[0, :, 0]] == [True, False]
    equal = domain.apply("equal", [x[:, :1], x], {"is_exact": True})
    assert [(int(one.value), bool(one.error)) for one in equal[0]] == [(1, False), (1, True), (0, False)]
    largest = domain.apply("largest", [x], {"axes": (1,)})
    assert largest[0] is x[0, 0]
    chosen = domain.apply("chosen", [x, equal, x, domain.apply("negate", [x], {})], {})
    assert [one.error > 1 for one in chosen[0]] == [False, True, False]


def test_masks_are_exact():
    domain = Enclosures()
    mask = domain.apply(
        "add", [domain.constant(np.array(-np.inf)), as_enclosures({"x": as_decimals(np.ones(1))})["x"]], {}
    )
    (found,) = domain.apply("exp", [mask], {})
    assert (found.value, found.error) == (0, 0)


SAME = {
    "σ, and the exponential of its logarithm": (
        lambda w, v: jax.nn.sigmoid(w * v),
        lambda w, v: jnp.exp(jax.nn.log_sigmoid(w * v)),
    ),
    "a softmax, and σ": (
        lambda w, v: jnp.exp(w + 0.5) / (jnp.exp(w + 0.5) + jnp.exp(v)),
        lambda w, v: jax.nn.sigmoid(w + 0.5 - v),
    ),
    "a softmax of a maximum": (
        lambda w, v: jax.nn.softmax(w + v - jnp.minimum(w, v), -1),
        lambda w, v: jax.nn.softmax(jnp.maximum(w, v), -1),
    ),
    "1 − tanh²": (
        lambda w, v: 4 / (jnp.exp(w * v) + jnp.exp(-w * v)) ** 2,
        lambda w, v: 1 - jnp.tanh(w * v) ** 2,
    ),
    "a difference of softplus": (
        lambda w, v: jnp.log(1 + jnp.exp(-(w**2))) - jnp.log(1 + jnp.exp(-(v**2))),
        lambda w, v: jnp.log((1 + jnp.exp(-(w**2))) / (1 + jnp.exp(-(v**2)))),
    ),
    "sines of large numbers": (
        lambda w, v: jnp.sin(1e10 * w**4 + v),
        lambda w, v: jnp.sin(1e10 * w**4) * jnp.cos(v) + jnp.cos(1e10 * w**4) * jnp.sin(v),
    ),
}


@pytest.mark.parametrize("name", list(SAME))
def test_one_function_is_not_refuted_where_it_saturates(name):
    assert "refuted" not in verdicts(*SAME[name])


DIFFERENT = {
    "tiny numbers": (lambda w, v: 1e-30 * w * 1e-30 * v * 1e-30, lambda w, v: 1e-30 * w * 1e-30 * v * 1.001e-30),
    "exponentials of large ones": (
        lambda w, v: jnp.exp(-1e4 * (1 + w**2)),
        lambda w, v: jnp.exp(-1e4 * (1 + w**2) * (1 + v**2)),
    ),
    "a factor of what is nearly 0": (
        lambda w, v: 4 / (jnp.exp(w) + jnp.exp(-w)) ** 2,
        lambda w, v: 4.001 / (jnp.exp(w) + jnp.exp(-w)) ** 2,
    ),
    "a factor of 1 − tanh²": (lambda w, v: 1 - jnp.tanh(w) ** 2, lambda w, v: 1.001 * (1 - jnp.tanh(w) ** 2)),
    "the place of another": (
        lambda w, v: v[:, 0] * jnp.argmax(w, -1),
        lambda w, v: v[:, 0] * jnp.argmax(w * w, -1),
    ),
    "gradients of ties": (lambda w, v: jnp.max(w, -1) * v[:, 0], lambda w, v: -jnp.min(w, -1) * v[:, 0]),
}


@pytest.mark.parametrize("name", list(DIFFERENT))
def test_differences_that_are_small_by_themselves_are_refuted(name):
    assert verdicts(*DIFFERENT[name])[0] == "refuted"
