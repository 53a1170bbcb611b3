"""Counting the words of any amount of text, in memory that has a bound."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from jax_transformer.data.tokenizers.special_tokens import SPACE_MARK


def count_words(sentences: Iterable[str], pipeline: Any, most_words: int) -> tuple[Counter[str], set[str]]:
    """Counts each word of a subword `pipeline`, and collects the characters of words that were given up.

    One pass; nothing of `sentences` is kept. Text with more than `most_words` different words between spaces is
    thinned: whenever there are more, the rarest are given up but for a share chosen by a hash of their letters, so that
    what is kept comes from the whole text, and the frequent words keep their counts. Of text without spaces that is a
    sample of its sentences.
    """
    between_spaces: Counter[str] = Counter()
    given_up: set[str] = set()
    for sentence in sentences:
        if sentence:
            between_spaces.update(sentence.split(" "))
            if len(between_spaces) > most_words:
                given_up |= _thin(between_spaces, most_words // 2)
    words: Counter[str] = Counter()
    for chunk, count in between_spaces.items():
        for word in split_words(chunk, pipeline) if chunk else [SPACE_MARK]:
            words[word] += count
    characters = {character for lost in given_up for word in split_words(lost, pipeline) for character in word}
    return words, characters


def split_words(text: str, pipeline: Any) -> list[str]:
    """Splits text into words; no piece extends beyond one of them."""
    if pipeline.normalizer is not None:
        text = pipeline.normalizer.normalize_str(text)
    if pipeline.pre_tokenizer is None:
        return [text]
    return [word for word, _ in pipeline.pre_tokenizer.pre_tokenize_str(text)]


def thinned_counts(counts: Mapping[str, int], most_characters: int) -> dict[str, int]:
    """Returns the counts of a part of the text of about `most_characters`, or of the whole text if it is shorter.

    Each count is divided by the same number and rounded up or down by a hash of the word, so that rare words together
    keep their share.
    """
    total = sum(len(word) * count for word, count in counts.items())
    share = -(-total // most_characters)
    if share <= 1:
        return dict(counts)
    thinned = {word: (count + _hash(word) % share) // share for word, count in counts.items()}
    return {word: count for word, count in thinned.items() if count}


def _hash(word: str) -> int:
    return zlib.crc32(word.encode("utf-8", "surrogatepass"))


def _thin(counts: Counter[str], wanted: int) -> set[str]:
    """Takes words out of `counts` until it has `wanted` or fewer; returns their characters."""
    given_up: set[str] = set()
    share, rare = 2, 1
    while len(counts) > wanted:
        dropped = [word for word, count in counts.items() if count <= rare and _hash(word) % share]
        for word in dropped:
            given_up.update(word)
            del counts[word]
        share, rare = 2 * share, 2 * rare
    return given_up
