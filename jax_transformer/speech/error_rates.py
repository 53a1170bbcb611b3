"""Error rates of transcripts: the edits that make a text its reference, per word or character of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class ErrorRate(NamedTuple):
    """Holds the errors of some texts.

    Example:
      >>> from jax_transformer.speech import ErrorRate
      >>> ErrorRate(errors=1, length=4).rate
      0.25
    """

    errors: int
    """Insertions, deletions and substitutions."""
    length: int
    """Words, or characters, of the references."""

    @property
    def rate(self) -> float:
        """The errors of a word, or character, of the references; NaN without any."""
        return self.errors / self.length if self.length else float("nan")


def word_error_rate(references: Sequence[str], texts: Sequence[str]) -> ErrorRate:
    """Returns the errors in words, which stand between spaces. Capitals and punctuation count: remove them from both
    sides where they shouldn't.

    Raises:
      ValueError: different numbers of references and texts.

    Example:
      >>> from jax_transformer.speech import word_error_rate
      >>> word_error_rate(["the old man sleeps"], ["the man sleeps"])
      ErrorRate(errors=1, length=4)
    """
    return _rate([text.split() for text in references], [text.split() for text in texts])


def character_error_rate(references: Sequence[str], texts: Sequence[str]) -> ErrorRate:
    """Returns the errors in characters; spaces count, but not those around a text.

    Raises:
      ValueError: different numbers of references and texts.

    Example:
      >>> from jax_transformer.speech import character_error_rate
      >>> character_error_rate(["hell o"], ["hallo"])
      ErrorRate(errors=2, length=6)
    """
    return _rate([list(text.strip()) for text in references], [list(text.strip()) for text in texts])


def _rate(references: Sequence[list[str]], texts: Sequence[list[str]]) -> ErrorRate:
    if len(references) != len(texts):
        raise ValueError(f"texts: expected one for each of {len(references)} references; received {len(texts)}")
    errors = sum(map(edits, references, texts))
    return ErrorRate(errors, sum(map(len, references)))


def edits(first: Sequence[str], second: Sequence[str]) -> int:
    """Returns the fewest insertions, deletions and substitutions that make one list the other (Levenshtein 1966)."""
    numbers = {item: number for number, item in enumerate(dict.fromkeys([*first, *second]))}
    columns = np.array([numbers[item] for item in second], int)
    steps = np.arange(len(second) + 1)
    row = steps.copy()
    for count, item in enumerate(first, start=1):
        new = np.empty_like(row)
        new[0] = count
        new[1:] = np.minimum(row[1:] + 1, row[:-1] + (columns != numbers[item]))
        row = np.minimum.accumulate(new - steps) + steps  # insertions, one after the other
    return int(row[-1])
