"""Arithmetic in prime fields against Python's integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from jax_transformer.proof import fields
from jax_transformer.proof.fields import BLOCK, LONG_SUM, ROWS, SHORT_SUM, SMALL_PRIMES, PrimeField, draw_field

FIELD = draw_field(np.random.default_rng(0))
P = FIELD.p
EXTREMES = np.array([0, 1, 2, P - 1, P - 2, P // 2, P // 2 + 1, 2**25 - 1, 2**49], np.int64)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns residues, half of them at the ends of the field and of its limbs."""
    rng = np.random.default_rng(seed)
    return np.where(rng.integers(2, size=shape) == 0, rng.choice(EXTREMES, shape), FIELD.draw(rng, shape))


def python(x: np.ndarray) -> np.ndarray:
    return np.array(x, dtype=object)


def test_elements() -> None:
    x, y = draw(5000, seed=1), draw(5000, seed=2)
    wanted = {
        "add": python(x) + python(y),
        "subtract": python(x) - python(y),
        "multiply": python(x) * python(y),
    }
    for name, expected in wanted.items():
        np.testing.assert_array_equal(getattr(FIELD, name)(x, y), expected % P, name)
    np.testing.assert_array_equal(FIELD.negate(x), -python(x) % P)
    np.testing.assert_array_equal(FIELD.power(x, 3), python(x) ** 3 % P)
    inverses = FIELD.invert(np.where(x == 0, 1, x))
    assert (FIELD.multiply(np.where(x == 0, 1, x), inverses) == 1).all()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((), ()),
        ((3, 1), (1, 4)),
        ((1, 2 * BLOCK + 3), (1, 1)),
        ((2, 3, 70, 100), (100,)),
        ((3 * BLOCK, 1), (3 * BLOCK, 1)),
    ],
)
def test_products_of_shapes_in_blocks(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = draw(*left, seed=3), draw(*right, seed=4)
    np.testing.assert_array_equal(FIELD.multiply(x, y), python(x) * python(y) % P)


def test_products_of_broadcast_rows_larger_than_a_block() -> None:
    x, y = draw(2, 1, seed=5), draw(1, BLOCK + 7, seed=6)
    np.testing.assert_array_equal(FIELD.multiply(x, y), python(x) * python(y) % P)


def test_any_int64_is_reduced() -> None:
    ends = [-(2**63), 2**63 - 1, -1, 0, P, -P, 2 * P, 8191 * P, -8191 * P, P - 1, 1 - P]
    x = np.concatenate([np.array(ends, np.int64), np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 5000)])
    np.testing.assert_array_equal(FIELD.reduce(x), python(x) % P)
    assert FIELD.reduce(np.asarray(-(2**63))) == -(2**63) % P


SHAPES = [
    (2, 3, 0, 2),
    (3, 2, 5, 4),
    (1, 2, SHORT_SUM, 3),
    (1, 2, SHORT_SUM + 1, 3),
    (1, 1, LONG_SUM, 2),
    (1, 1, 2 * LONG_SUM + 1, 2),
    (1, ROWS + 1, 3, BLOCK // 3 + 5),
    (1, BLOCK // 3 + 5, 3, ROWS + 1),
    (2, 2, 40, BLOCK // 40 + 3),
    (2, 150, 7, 150),
]


@pytest.mark.parametrize(("count", "m", "k", "n"), SHAPES)
def test_products_of_matrices(count: int, m: int, k: int, n: int) -> None:
    x, y = draw(count, m, k, seed=7), draw(count, k, n, seed=8)
    expected = np.matmul(python(x), python(y)) % P if k else np.zeros((count, m, n))
    np.testing.assert_array_equal(FIELD.matmul(x, y), expected)
    turned = np.ascontiguousarray(y.transpose(0, 2, 1)).transpose(0, 2, 1)
    np.testing.assert_array_equal(FIELD.matmul(x, turned), expected)


@pytest.mark.parametrize(("terms", "bits"), [(SHORT_SUM, fields.LIMB), (LONG_SUM, fields.SHORT_LIMB)])
def test_the_longest_sums_of_the_largest_limbs_are_exact(terms: int, bits: int) -> None:
    rng = np.random.default_rng(0)

    def long_limbs(bits: int) -> np.ndarray:
        """Returns residues whose limbs, all but the highest, are the largest or a little less."""
        places = range(0, 50 - bits, bits)
        return np.asarray(sum((2 ** (bits - 1) - rng.integers(1, 3, terms)) << place for place in places))

    for sign in (1, -1):
        x, y = long_limbs(bits).reshape(1, 1, -1), FIELD.reduce(sign * long_limbs(fields.LIMB)).reshape(1, -1, 1)
        limbs = FIELD._limbs(x, bits)[0], FIELD._limbs(y, fields.LIMB)[0]
        assert [np.abs(each).max() for each in limbs] == [2.0 ** (bits - 1) - 1, 2.0 ** (fields.LIMB - 1) - 1]
        np.testing.assert_array_equal(FIELD.matmul(x, y), np.matmul(python(x), python(y)) % P)


def test_limbs_add_up_and_are_short() -> None:
    x = draw(5000, seed=9)
    for bits in (fields.LIMB, fields.SHORT_LIMB):
        limbs = FIELD._limbs(x, bits)
        assert max(np.abs(limb).max() for limb in limbs) <= 2 ** (bits - 1)
        whole = sum(python(limb.astype(np.int64)) * 2 ** (bits * i) for i, limb in enumerate(limbs))
        np.testing.assert_array_equal(whole % P, x)


def test_sums() -> None:
    x = draw(3, 9000, seed=10)
    np.testing.assert_array_equal(FIELD.sum(x, (1,)), python(x).sum(axis=1) % P)
    np.testing.assert_array_equal(FIELD.sum(x[:, :50], (0, 1)), python(x[:, :50]).sum() % P)
    np.testing.assert_array_equal(FIELD.cumulative_sum(x, 1), python(x).cumsum(axis=1) % P)


def test_floats_are_exact_fractions() -> None:
    values = np.array([0.0, 1.0, -1.0, 0.1, -1e-300, 1e300, 2.0**-1074, 1 + 2.0**-52])
    np.testing.assert_array_equal(FIELD.dyadic(values), [FIELD.rational(Fraction(value)) for value in values])


def test_fields_are_drawn_in_which_small_primes_are_squares() -> None:
    rng = np.random.default_rng(1)
    drawn = [draw_field(rng, frozenset({29, 101})) for _ in range(5)]
    assert len({field.p for field in drawn}) == 5
    for field in drawn:
        assert 2**49 < field.p < 2**50
        assert fields.is_prime(field.p)
        assert not field.is_square(-1)
        for n in (2, *SMALL_PRIMES, 29, 101):
            assert field.is_square(n)
            root = int(field.root(np.array([n]))[0])
            assert root * root % field.p == n


def test_the_field_of_another_prime_computes_otherwise() -> None:
    other = PrimeField(7)
    np.testing.assert_array_equal(other.multiply(np.arange(7), np.full(7, 5)), np.arange(7) * 5 % 7)
