"""Long texts in parts that a model can take."""

from __future__ import annotations

import re
from itertools import pairwise

_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])[”’」』）]*\s*")
"""Where a sentence ends, with the white space after it: after a full stop and whatever closes behind it."""


def split_sentences(text: str) -> list[str]:
    """The text cut behind the ends of its sentences; joined, the parts give it again.

    Abbreviations aren't known: what is written "Dr. Who" is cut behind the full stop.
    """
    cuts = [0, *(match.end() for match in _END.finditer(text)), len(text)]
    return [text[start:stop] for start, stop in pairwise(cuts) if start < stop]
