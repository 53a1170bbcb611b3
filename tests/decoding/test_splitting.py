"""Long texts, sentence by sentence."""

from __future__ import annotations

import pytest

from jax_transformer.decoding.translation import split_sentences


@pytest.mark.parametrize(
    "parts",
    [
        ["One. ", "Two! ", "Three?"],
        ['He said "go." ', "She went."],
        ["Wait …  ", "“Now!” ", "(Really?) ", "Yes"],
        ["Pi is 3.14, or so. ", "See a.b.c for more"],
        ["你好。", "他说：“走！”", "再见？"],
        ["你好。 ", "再见。 "],
        ["no end at all"],
        [],
    ],
)
def test_sentences_end_after_their_punctuation(parts: list[str]) -> None:
    assert split_sentences("".join(parts)) == parts


def test_parts_give_the_text_again() -> None:
    text = " ".join(f"{'w ' * (n % 5)}end{'.!?'[n % 3]}" for n in range(40))
    assert "".join(split_sentences(text)) == text
    assert len(split_sentences(text)) == 40
