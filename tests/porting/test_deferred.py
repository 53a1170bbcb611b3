"""Arrays made in pieces: the same values, in the same order, as if they were there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from jax_transformer.storage.deferred import TILE, Deferred, contiguous


def in_rows(whole: np.ndarray, made: list[int] | None = None) -> Deferred:
    def pieces() -> Iterator[np.ndarray]:
        for i, row in enumerate(whole):
            if made is not None:
                made.append(i)
            yield row

    return Deferred(whole.shape, whole.dtype, pieces)


def test_it_is_made_when_it_is_asked_for() -> None:
    whole, made = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4), []
    deferred = in_rows(whole, made)
    assert (deferred.shape, deferred.dtype, deferred.size, deferred.nbytes) == ((2, 3, 4), np.float32, 24, 96)
    assert made == []
    np.testing.assert_array_equal(np.asarray(deferred), whole)
    assert made == [0, 1]


def test_another_dtype_is_deferred_too() -> None:
    whole, made = np.arange(6.0).reshape(2, 3), []
    deferred = in_rows(whole, made).astype(np.float32)
    assert (deferred.dtype, deferred.nbytes, made) == (np.float32, 24, [])
    assert np.asarray(deferred).dtype == np.float32
    same = in_rows(whole)
    assert same.astype("float64") is same


@pytest.mark.parametrize(
    "shape",
    [(TILE + 3, 2 * TILE + 5), (TILE + 1, 3, TILE - 1), (2, 3, 4, 5), (1, 7), (7, 1), (3,), (), (0, 4)],
    ids=str,
)
def test_a_copy_lies_in_order(shape: tuple[int, ...]) -> None:
    """Whatever the order of the axes was."""
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    assert contiguous(array) is array
    for order in ([*range(len(shape))][::-1], [*range(1, len(shape)), 0][: len(shape)]):
        turned = array.transpose(order)
        copy = contiguous(turned)
        assert copy.flags.c_contiguous
        np.testing.assert_array_equal(copy, turned)
    np.testing.assert_array_equal(contiguous(array[::2, ...] if shape else array), array[::2, ...] if shape else array)
