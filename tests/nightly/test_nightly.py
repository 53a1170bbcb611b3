"""A few parametrisations, spread evenly, run with every change; the others wait for the night."""

from __future__ import annotations

import pytest
from nightly import mostly_nightly


def parameters(*arguments: object) -> list[tuple[object, bool]]:
    """Returns each case, and whether it waits."""
    (_, cases) = mostly_nightly(*arguments).args  # type: ignore[arg-type]
    return [(case.values if hasattr(case, "marks") else case, hasattr(case, "marks")) for case in cases]


def test_few_are_spread_from_the_first_on() -> None:
    assert parameters("x", [4, 5, 6, 7], 2) == [(4, False), ((5,), True), (6, False), ((7,), True)]
    assert parameters("x", {"a": 1, "b": 2}, 2) == [("a", False), ("b", False)]


def test_several_arguments_stay_apart() -> None:
    assert parameters(("x", "y"), [(1, 2), (3, 4)], 1) == [((1, 2), False), ((3, 4), True)]
    assert parameters("x", [(1, 2), (3, 4)], 1) == [((1, 2), False), (((3, 4),), True)]


def test_marks_that_a_case_has_stay() -> None:
    (_, cases) = mostly_nightly("x", [1, pytest.param(2, id="two", marks=pytest.mark.skip)], 1).args
    assert [mark.name for mark in cases[1].marks] == ["skip", "nightly"]
    assert cases[1].id == "two"
