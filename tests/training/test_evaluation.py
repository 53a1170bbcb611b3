"""Scores of a split: the translated sentences, their tags, and sentences that are too long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jax_transformer.data.token_pairs import Sentences, TokenPairs
from jax_transformer.training import evaluation
from jax_transformer.training.evaluation import translate_split

LONGEST = 5


@pytest.fixture(autouse=True)
def shouting_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces a model: translates into capitals, after the tag."""

    def translate(model: Any, sentences: Sequence[str], *, source_tag: str = "") -> list[str]:
        return [f"{source_tag}{sentence.upper()}" for sentence in sentences]

    monkeypatch.setattr(evaluation, "translate", translate)
    monkeypatch.setattr(evaluation, "limit", lambda model, side: LONGEST)


def pairs(count: int, corpus: Sequence[int] | None = None, long: Sequence[int] = ()) -> TokenPairs:
    ids = [[7] * (LONGEST + 1 if k in long else 2) for k in range(count)]
    sources = Sentences.pack(ids, [f"s{k}" for k in range(count)])
    targets = Sentences.pack(ids, [f"S{k}" for k in range(count)])
    return TokenPairs(sources, targets, 64, None if corpus is None else np.array(corpus, np.uint16))


def test_every_sentence_counts() -> None:
    scores, samples = translate_split(None, pairs(4))  # type: ignore[arg-type]
    assert [sample.translation for sample in samples] == ["S0", "S1", "S2", "S3"]
    assert (scores.sentences, scores.exact_match, scores.too_long) == (4, 100.0, 0)


def test_some_are_spread_over_the_split() -> None:
    _, samples = translate_split(None, pairs(9), 3)  # type: ignore[arg-type]
    assert [sample.source for sample in samples] == ["s0", "s4", "s8"]
    assert len(translate_split(None, pairs(9), 100)[1]) == 9  # type: ignore[arg-type]


def test_each_corpus_has_its_tag() -> None:
    _, samples = translate_split(None, pairs(4, corpus=[0, 1, 1, 0]), tags=["<de>", "<fr>"])  # type: ignore[arg-type]
    assert [sample.translation for sample in samples] == ["<de>S0", "<fr>S1", "<fr>S2", "<de>S3"]


def test_too_long_sentences_are_counted_and_scored_as_empty() -> None:
    scores, samples = translate_split(None, pairs(4, long=[2]))  # type: ignore[arg-type]
    assert [sample.translation for sample in samples] == ["S0", "S1", "", "S3"]
    assert (scores.sentences, scores.exact_match, scores.too_long) == (4, 75.0, 1)
