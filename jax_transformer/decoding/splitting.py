"""Long texts in parts that a model can take."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])[”’」』）]*")
"""Where a sentence ends, with the white space after it: after a full stop and whatever closes behind it."""


def split_sentences(text: str) -> list[str]:
    """The text cut behind the ends of its sentences; joined, the parts give it again."""
    cuts = [0, *(match.end() for match in _END.finditer(text)), len(text)]
    return [text[start:stop] for start, stop in pairwise(cuts) if start < stop]


def split_to_fit(text: str, fits: Callable[[str], bool]) -> list[str]:
    """The text in as few parts of whole sentences as fit, one after the other; a sentence that doesn't fit is a part by itself.

    Joined, the parts give the text again.
    """
    parts: list[str] = []
    for sentence in split_sentences(text):
        if parts and fits(parts[-1] + sentence):
            parts[-1] += sentence
        else:
            parts.append(sentence)
    return parts
