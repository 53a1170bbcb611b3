"""A function of the caller's says which tokens may come next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from search_cases import EOS

from jax_transformer.decoding.checks import DecodingError
from jax_transformer.decoding.generation import generate
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("quick_compilation")
SOURCES = [[5, 6], [7], [8, 9]]


@pytest.mark.parametrize("options", [{}, {"beam_size": 2}, {"sampling": True, "seed": 1}], ids=str)
def test_only_allowed_tokens_are_decoded(model: Model, options: dict[str, Any]) -> None:
    """By the sentence's number and what it has so far, prefixes included."""
    asked = set()

    def allowed(number: int, ids: list[int]) -> Sequence[int]:
        asked.add(number)
        return [EOS] if len(ids) == 4 else range(number, number + 2)

    numbers = [4, 6, 8]
    found = generate(
        model, SOURCES, allowed=allowed, prefix_ids=[[10]] * 3, sentence_numbers=numbers, max_new_tokens=9, **options
    ).sequences[:, 0]
    for row, number in zip(found.tolist(), numbers, strict=True):
        assert row[0] == 10
        assert {*row[1:4]} <= {number, number + 1}
        assert row[4] == EOS
    assert asked == {4, 6, 8}


@pytest.mark.parametrize(
    ("allowed", "error", "message"),
    [
        (lambda number, ids: [], DecodingError, r"allowed: .* at least one; received none for sentence 0 after \[\]"),
        (lambda number, ids: [99], DecodingError, r"expected ids below 11, .* received 99 for sentence 0 after \[\]"),
        (lambda number, ids: [ids[0]], IndexError, "list index out of range"),
    ],
)
def test_its_mistakes_are_raised(model: Model, allowed: Any, error: type[Exception], message: str) -> None:
    for _ in range(2):  # the second call isn't spoilt by the first
        with pytest.raises(error, match=message):
            generate(model, SOURCES, allowed=allowed, max_new_tokens=4)
