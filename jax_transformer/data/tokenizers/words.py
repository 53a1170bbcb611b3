"""Assigns each token to its word in a text, for any tokenizer.

Words are runs of characters without white space. In scripts without spaces between words (Han, kana, Thai, Lao,
Burmese, Khmer), each token is a word, or the tokens that make up a character if they are bytes. A token of white space
belongs to the next word; <bos>, <eos>, <pad> and tags belong to none.

This needs no knowledge of how a tokenizer marks words: encoding prefixes of the text, or decoding prefixes of the
tokens, shows where tokens end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from jax_transformer.data.tokenizers.tokenizer import Tokenizer

NO_WORD = -1
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_STOP = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
"""A word may end after each match."""
_RUN = re.compile(rf"([{_UNSPACED}]+)|[^\s{_UNSPACED}]+")


class Words(NamedTuple):
    """Holds the words of a text, and the number of each token's word."""

    texts: list[str]
    numbers: np.ndarray
    """[tokens] int: the number of each token's word, from 0; NO_WORD for a token without one."""


def words_of_text(tokenizer: Tokenizer, text: str, tag: str = "") -> Words:
    """Returns the words of a text; `numbers` refers to `tokenizer.encode([text], tag)`.

    A token belongs to the first word that ends at or after the token's end. A token across a space belongs to the later
    word.

    Raises:
      ValueError: see `Tokenizer.encode`.
    """
    stops = [match.end() for match in _STOP.finditer(text)]
    ids, *begun = tokenizer.encode([text, *(text[:stop] for stop in stops)], tag)
    ends = np.full(len(ids), len(text) + 1)
    for stop, so_far in reversed(list(zip(stops, begun, strict=True))):
        common = _common(ids, so_far)
        if re.match(r"\S", text[stop:]):  # <unk> has the same id whatever it covers, and may go on there
            while common and ids[common - 1] in tokenizer.hidden_ids:
                common -= 1
            common -= bool(common and ids[common - 1] == tokenizer.unk_id)
        ends[:common] = stop
    return _words(tokenizer, text, ids, ends)


def words_of_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> Words:
    """Returns the words of the text that `tokenizer.decode([ids])` returns; `numbers` refers to `ids`.

    A token belongs to the word of the last character that it adds to the text. If it adds none, it belongs to the word
    of the next token that does.

    Raises:
      ValueError: see `Tokenizer.decode`.
    """
    ids = list(ids)
    text, *begun = tokenizer.decode([ids, *(ids[: count + 1] for count in range(len(ids)))])
    shown = np.maximum.accumulate([0, *(len(text[: _common(text, so_far)].rstrip()) for so_far in begun)])
    levels = np.append(np.unique(shown), len(text) + 1)
    return _words(tokenizer, text, ids, levels[np.searchsorted(levels, shown[:-1], side="right")])


def _words(tokenizer: Tokenizer, text: str, ids: Sequence[int], ends: np.ndarray) -> Words:
    """Returns the words of a text whose tokens end at these positions; a token that ends after the text belongs to no
    word."""
    spans: list[tuple[int, int]] = []
    for run in _RUN.finditer(text):
        start, stop = run.span()
        cuts = sorted({int(end) for end in ends if start < end < stop}) if run[1] else []
        spans += pairwise([start, *cuts, stop])
    numbers = np.searchsorted([stop for _, stop in spans], ends)
    numbers[(numbers == len(spans)) | np.isin(ids, list(tokenizer.hidden_ids))] = NO_WORD
    return Words([text[start:stop] for start, stop in spans], numbers)


def _common(first: Sequence[object], second: Sequence[object]) -> int:
    """Returns the length of the common prefix."""
    differs = (i for i, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    return next(differs, min(len(first), len(second)))
