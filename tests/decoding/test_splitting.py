"""Long texts in parts of whole sentences."""

from __future__ import annotations

import pytest

from jax_transformer.decoding.splitting import split_sentences, split_to_fit


@pytest.mark.parametrize(
    "parts",
    [
        ["One. ", "Two! ", "Three?"],
        ['He said "go." ', "She went."],
        ["Wait …  ", "“Now!” ", "(Really?) ", "Yes"],
        ["Pi is 3.14, or so. ", "See a.b.c for more"],
        ["你好。", "他说：“走！”", "再见？"],
        ["no end at all"],
        [],
    ],
)
def test_sentences_end_behind_their_stops(parts: list[str]) -> None:
    assert split_sentences("".join(parts)) == parts


def test_parts_are_as_long_as_fit() -> None:
    text = "a b. c. d e f. g. h i j k l."
    assert split_to_fit(text, lambda part: len(part.split()) <= 4) == ["a b. c. ", "d e f. g. ", "h i j k l."]


@pytest.mark.parametrize("most", [1, 3, 10, 100])
def test_parts_give_the_text_again(most: int) -> None:
    text = " ".join(f"{'w ' * (n % 5)}end{'.!?'[n % 3]}" for n in range(40))
    parts = split_to_fit(text, lambda part: len(part.split()) <= most)
    assert "".join(parts) == text
    assert all(len(part.split()) <= most or len(split_sentences(part)) == 1 for part in parts)
    assert (most == 100) == (len(parts) == 2), len(parts)
