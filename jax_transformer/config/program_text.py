"""Describes how JoeyNMT, Sockeye, OpenNMT-py and fairseq turn sentences into the tokens of their vocabulary files.

Porting writes the description of each side from the program's own settings; `data.tokenizers` builds tokenizers of it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TEXT = "text.json"
"""The file with the descriptions of both sides, among a model's tokenizer files."""


@dataclass(frozen=True, kw_only=True)
class SideText:
    """Describes the vocabulary of one side, and how text is split into it."""

    list: str
    """Name of the file with the tokens."""
    form: Literal["lines", "counts", "json", "model"] = "lines"
    """lines: a token a line; counts: a token and its count a line; json: an object of tokens with their ids; model: the
    pieces of a sentencepiece model."""
    first: tuple[str, ...] = ()
    """Tokens before those of the file, which may hold them again."""
    last: tuple[str, ...] = ()
    """Tokens after them."""
    specials: Mapping[str, str] = field(default_factory=dict)
    """<pad>, <unk>, <bos> and <eos> → the program's names of them."""
    tags: tuple[str, ...] = ()
    """Further tokens that no text matches."""
    split: Literal["spaces", "characters", "sentencepiece", "merges"] = "spaces"
    """characters: ▁ stands for a space. merges: words are cut by subword-nmt."""
    model: str = ""
    """Name of the file with the sentencepiece model, or subword-nmt's merges."""
    separator: str = "@@"
    """End of the pieces of a word that the next piece goes on, with merges."""
    restricted: bool = False
    """Split into pieces of the vocabulary and single characters alone."""
    lowercase: bool = False
    normalize: bool = False
    """NFKC, plain quotes, and no spaces before punctuation, as JoeyNMT does it."""
    moses: str = ""
    """Language by whose rules Moses splits words first. "": none."""
    add_eos: bool = False
    """Put the end after each sentence."""


def text_file(source: SideText, target: SideText) -> bytes:
    """Returns the content of TEXT."""
    sides = {"source": dataclasses.asdict(source), "target": dataclasses.asdict(target)}
    return (json.dumps(sides, indent=1, ensure_ascii=False) + "\n").encode()


def sides_of(content: Mapping[str, Any]) -> tuple[SideText, SideText]:
    """Returns the descriptions of source and target in the JSON of TEXT.

    Raises:
      ValueError: a side is missing, or has other fields.
    """
    try:
        source, target = (SideText(**content[side]) for side in ("source", "target"))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{TEXT}: expected source and target with the fields of SideText ({error})") from None
    return source, target
