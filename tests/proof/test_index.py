"""Values of one program are found among those of another, in other orders of elements, stacked and fused."""

from __future__ import annotations

import numpy as np
import pytest

from jax_transformer.proof.index import MOST_ORDERS, Index, fingerprint

RNG = np.random.default_rng(0)
X = RNG.integers(0, 2**40, (2, 3, 4))
OTHER = RNG.integers(0, 2**40, (2, 3, 4))


@pytest.mark.parametrize("moved", [X.reshape(6, 4), X.transpose(2, 0, 1), X[::-1], X.reshape(-1)])
def test_an_array_is_found_in_another_order(moved: np.ndarray) -> None:
    index = Index({0: OTHER, 1: moved})
    assert index.equal(X) == [1]
    places = index.order(X, 1)
    assert places is not None
    np.testing.assert_array_equal(moved.ravel()[places], X)
    np.testing.assert_array_equal(index.orders(X.shape, moved.shape)[0], places)


def test_an_array_is_found_in_one_that_stacks_or_fuses_it() -> None:
    fused = np.concatenate([OTHER, X], -1)
    index = Index({"stacked": np.stack([X, OTHER]), "fused": fused, "other": OTHER})
    assert index.equal(X) == []
    assert {*index.holding(X)} == {"stacked", "fused"}


def test_elements_count_as_often_as_they_occur() -> None:
    index = Index({0: np.array([1, 1, 2])})
    assert index.holding(np.array([1, 1])) == [0]
    assert index.holding(np.array([2, 2])) == []
    assert index.equal(np.array([1, 2, 2])) == []
    assert index.equal(np.array([2, 1, 1])) == [0]


def test_arrays_of_one_fingerprint_are_compared_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax_transformer.proof.index.fingerprint", lambda array: 0)
    assert Index({0: OTHER, 1: X}).equal(X.T) == [1]


def test_repeated_elements_have_no_one_order() -> None:
    array = np.array([[1, 1], [2, 3]])
    assert Index({0: array.T}).order(array, 0) is None


def test_few_orders_are_kept_for_two_shapes() -> None:
    arrays = {number: RNG.permutation(X.ravel()) for number in range(MOST_ORDERS + 3)}
    index = Index(arrays)
    for number in arrays:
        assert index.order(X, number) is not None
    assert len(index.orders(X.shape, (X.size,))) == MOST_ORDERS


def test_an_empty_array_is_in_none() -> None:
    index = Index({0: X})
    assert index.holding(np.zeros(0, np.int64)) == []
    assert fingerprint(X) == fingerprint(X.T) != fingerprint(OTHER)
