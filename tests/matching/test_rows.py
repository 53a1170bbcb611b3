"""Rows of numbers that share what is the same."""

from __future__ import annotations

import numpy as np

from jax_transformer.matching.rows import Row


def row() -> Row:
    return Row([np.arange(3), np.arange(10, 14)])


def test_places_are_those_of_all_parts_in_order() -> None:
    np.testing.assert_array_equal(row()[np.array([[6, 0], [3, 2]])], [[13, 0], [10, 2]])
    np.testing.assert_array_equal(row()[np.array([4, 4])], [11, 11])
    assert row()[np.array([], int)].size == 0


def test_a_change_of_a_copy_leaves_the_first_as_it_is() -> None:
    first = row()
    copy = first.copy()
    copy[np.array([1, 5])] = np.array([-1, -2])
    np.testing.assert_array_equal(copy.joined(), [0, -1, 2, 10, 11, -2, 13])
    np.testing.assert_array_equal(first.joined(), row().joined())


def test_only_parts_that_were_changed_are_apart() -> None:
    first = row()
    copy = first.copy()
    assert not list(first.apart(copy))
    copy[np.array([4])] = 0
    assert [start for start, _, _ in first.apart(copy)] == [3]
