"""Functions in a field: different ones give different values, and these look random."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from jax_transformer.proof import masks
from jax_transformer.proof.building import Builder
from jax_transformer.proof.constants import read
from jax_transformer.proof.domains import Residues
from jax_transformer.proof.fields import draw_field
from jax_transformer.proof.programs import FUNCTIONS, UnknownOperation

FIELD = draw_field(np.random.default_rng(0))
OPTIONS = {
    "step": {"reflects": False},
    "equal": {"is_exact": False},
    "largest": {"axes": ()},
    "row_exp": {"axis": 0},
    "places": {"ranks": (0,)},
    "cut": {"is_weight": False},
}


def apply(name: str, x: np.ndarray, key: int = 1) -> np.ndarray:
    inputs = [x, np.zeros_like(x)] if name in ("equal", "row_exp") else [x]
    return Residues(FIELD, key).apply(name, inputs, OPTIONS.get(name, {})).ravel()


def test_different_functions_and_keys_give_different_values() -> None:
    x = np.arange(2, 1000)
    found = [apply(name, x, key) for name in FUNCTIONS for key in (1, 2)]
    assert len({int(each) for array in found for each in array.ravel()}) == sum(map(np.size, found))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_look_uniform(name: str) -> None:
    """2¹⁸ values in 64 parts, as χ² has it; zeros and equal values are as rare as they should be (2⁻¹⁵ expected)."""
    found = apply(name, np.arange(2, 2**18 + 2))
    assert found.min() > 0
    assert found.max() < FIELD.p
    assert np.unique(found).size == found.size
    counts = np.bincount((found * (64 / FIELD.p)).astype(int), minlength=64)
    assert np.square(counts - 2**12).sum() / 2**12 < 63 + 6 * np.sqrt(2 * 63)


def test_zeros_and_known_values() -> None:
    zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    for name, x, value in (
        *(("erf", zero, 0), ("tanh", zero, 0), ("sin", zero, 0), ("cos", zero, 1), ("exp", zero, 1)),
        *(("log", one, 0), ("root", zero, 0), ("root", one, 1), ("step", zero, 0), ("equal", zero, 1)),
    ):
        assert int(apply(name, x)[0]) == value, name


def test_roots_of_scaled_radicands_are_scaled() -> None:
    x = np.arange(2, 50)
    domain = Residues(FIELD, 1)
    for scale in (Fraction(1, 9), Fraction(3, 8), Fraction(6)):
        scaled = FIELD.multiply(x, np.asarray(FIELD.rational(scale)))
        root = domain.root(scaled, scale)
        squares = FIELD.multiply(FIELD.power(root, 2), FIELD.invert(FIELD.power(domain.root(x), 2)))
        assert (squares == FIELD.rational(scale)).all()


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0.1, "1/10"), (1 / 3, "1/3"), (8**0.5, "2 · √2"), (1 / 8**0.5, "1/4 · √2"), ((2 / np.pi) ** 0.5, "√2 · 1/√π"),
        (0.1 + 2**-52, ""), (0.1 * (1 + 2**-50), ""), (1 / 3 + 2**-50, ""), (8**0.5 * (1 + 2**-49), ""), (0.75, ""),
        (1e-6, "1/1000000"), (1e-6 * (1 + 2**-50), ""), (np.nextafter(0.1, 0), "1/10"),
        (np.nextafter(0.1, 1), ""), (-0.1, "-1/10"),
    ],
)  # fmt: skip
def test_constants_are_read(value: float, number: str) -> None:
    found = read(float(value))
    assert (str(found) if found.axiom else "") == number
    assert found.axiom or found.fraction == Fraction(float(value))


def test_fills_are_followed() -> None:
    fill = np.array([0.0, -1e9, -np.inf])
    assert masks.scaled(fill, np.array([1.0, 1e-9, 2.0]), "").tolist() == [0.0, -1.0, -np.inf]  # type: ignore[union-attr]
    assert masks.tidy(np.array([0.0, -1.0, 999.0])) is None
    assert masks.added(fill, np.array([5.0, 1e9, 0.0]), "").tolist() == [5.0, 0.0, -np.inf]  # type: ignore[union-attr]
    assert masks.counting(np.array([[0, -1e9, -1e4], [-1e9, -1e9, -1e4]]), (1,), "").tolist() == [  # type: ignore[union-attr]
        [True, False, False],
        [True, True, True],
    ]
    assert masks.counting(np.array([[0.0, -50.0]]), (1,), "") is None
    assert masks.counting(np.array([[-1e9, -np.inf]]), (1,), "").tolist() == [[True, False]]  # type: ignore[union-attr]
    for wrong in (
        lambda: masks.added(fill, -fill, ""),
        lambda: masks.scaled(fill, np.zeros(3), ""),
        lambda: masks.lost(fill, ""),
        lambda: masks.counting(np.full((1, 2), -np.inf), (1,), ""),
        lambda: masks.counting(np.array([[0.0, np.inf]]), (1,), ""),
    ):
        with pytest.raises(UnknownOperation):
            wrong()
    assert np.isnan(masks.lost(np.array([-1e9]), "")).all()  # type: ignore[arg-type]


def test_builders_keep_one_of_equal_operations() -> None:
    b = Builder()
    u, v = b.input("u", (2, 3)), b.input("v", (2, 3))
    assert b.add(u, v).node == b.add(v, u).node
    assert b.subtract(u, v).node != b.subtract(v, u).node
    assert b.multiply(u, b.constant(1.0)).node == u.node == b.add(u, b.constant(0.0)).node
    assert b.reshape(b.reshape(u, (3, 2)), (2, 3)).node == u.node
    taken = b.take(b.take(u, np.array([5, 4, 3])), np.array([2, -1]))
    assert b.operations[taken.node or 0].attributes["places"].tolist() == [3, -1]
    stacked = b.concatenate([u, v], 0)
    assert b.take(stacked, np.arange(6, 12).reshape(2, 3)).node == v.node
    across = b.take(stacked, np.array([5, 6]))
    assert b.operations[across.node or 0].inputs == (stacked.node,)
