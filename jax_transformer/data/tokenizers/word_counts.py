"""Counts the words of any amount of text in bounded memory."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from jax_transformer.data.tokenizers.special_tokens import SPACE_MARK


def count_words(sentences: Iterable[str], pipeline: Any, most_words: int) -> tuple[Counter[str], set[str]]:
    """Counts each word of a subword `pipeline`, and collects the characters of dropped words.

    Makes one pass, and keeps none of `sentences`. Text with more than `most_words` different words between spaces is
    thinned: whenever there are more, drops the rarest except for a share chosen by a hash of their letters, so that the
    kept words come from the whole text, and frequent words keep their counts. Of text without spaces, this keeps a
    sample of the sentences.
    """
    between_spaces: Counter[str] = Counter()
    dropped: set[str] = set()
    for sentence in sentences:
        if sentence:
            between_spaces.update(sentence.split(" "))
            if len(between_spaces) > most_words:
                dropped |= _thin(between_spaces, most_words // 2)
    words: Counter[str] = Counter()
    for chunk, count in between_spaces.items():
        for word in split_words(chunk, pipeline) if chunk else [SPACE_MARK]:
            words[word] += count
    characters = {character for lost in dropped for word in split_words(lost, pipeline) for character in word}
    return words, characters


def split_words(text: str, pipeline: Any) -> list[str]:
    """Splits text into words; no piece extends beyond one of them."""
    if pipeline.normalizer is not None:
        text = pipeline.normalizer.normalize_str(text)
    if pipeline.pre_tokenizer is None:
        return [text]
    return [word for word, _ in pipeline.pre_tokenizer.pre_tokenize_str(text)]


def thinned_counts(counts: Mapping[str, int], most_characters: int) -> dict[str, int]:
    """Scales the counts down to a text of about `most_characters`, if it is longer.

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
    """Drops words from `counts` until it has at most `wanted`; returns their characters."""
    characters: set[str] = set()
    share, rare = 2, 1
    while len(counts) > wanted:
        dropped = [word for word, count in counts.items() if count <= rare and _hash(word) % share]
        for word in dropped:
            characters.update(word)
            del counts[word]
        share, rare = 2 * share, 2 * rare
    return characters
