"""How often Python looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from jax_transformer.runtime.garbage import collect_rarely


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(("before", "after"), [(700, 10_000), (200_000, 200_000), (0, 0)])
def test_it_looks_less_often_than_before_or_as_often(before: int, after: int) -> None:
    gc.set_threshold(before, 7, 9)
    collect_rarely()
    assert gc.get_threshold() == (after, 7, 9)
