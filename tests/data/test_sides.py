"""Tests of reports on splits with swapped sides or unknown words."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_corpora import config_in, write

from jax_transformer.data.phrasebook.pairs import sample_pairs
from jax_transformer.data.preparation import prepare
from jax_transformer.data.sides import are_swapped

Pairs = list[tuple[str, str]]
SWAPPED = "warning: valid: the sources look like train's targets, and the targets like train's sources"


@pytest.fixture(scope="module")
def phrases() -> Pairs:
    return sample_pairs("train", 300)


def turned(pairs: Pairs) -> Pairs:
    return [(target, source) for source, target in pairs]


def test_sides_are_swapped_or_not(phrases: Pairs) -> None:
    train, other = phrases[:200], phrases[200:]
    assert are_swapped(train, turned(other))
    assert not are_swapped(train, other)
    one_language = [(source, source) for source, _ in other]
    assert not are_swapped(train, one_language)
    assert not are_swapped(one_language, other)
    assert not are_swapped(train + turned(train), turned(other))  # both directions are trained
    assert not are_swapped(train, turned(other[:1])), "too little to tell"


@pytest.mark.parametrize("kind", ["words", "bpe"])
def test_swapped_validation_sides_are_reported_in_every_run(tmp_path: Path, phrases: Pairs, kind: str) -> None:
    options = {"tokenizer": kind, "vocab_size": 200}
    valid = write(tmp_path / "turned.tsv", turned(phrases[200:]))
    config = config_in(tmp_path, phrases[:200], valid=(valid,), **options)
    for _ in range(2):  # prepared, and from the cache
        lines = prepare(config).report.lines()
        assert any(line.startswith(SWAPPED) for line in lines)
        assert any("of the source tokens are unknown" in line for line in lines) == (kind == "words")
    right = config_in(tmp_path, phrases[:200], valid=(write(tmp_path / "right.tsv", phrases[200:]),), **options)
    assert not [line for line in prepare(right).report.lines() if line.startswith("warning: ")]


def test_sentences_of_mostly_unknown_tokens_are_counted(tmp_path: Path) -> None:
    train = [("a b c", "x y z")] * 20 + [("q r a", "x y z"), ("q a b", "x y z"), ("a b c", "m n x"), ("q r", "m n")]
    report = prepare(config_in(tmp_path, train, tokenizer="words", min_frequency=4)).report
    assert report.splits["train"].mostly_unknown == 3
    assert "train: 3 pairs with a side of mostly unknown tokens kept" in report.lines()
