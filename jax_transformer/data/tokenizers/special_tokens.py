"""Defines the special tokens: their ids, and their names here and in other programs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

PAD, UNK, BOS, EOS = "<pad>", "<unk>", "<bos>", "<eos>"
ROLES = {PAD: "pad", UNK: "unk", BOS: "bos", EOS: "eos"}
NAMES: dict[str, tuple[str, ...]] = {
    PAD: (PAD, "<PAD>", "[PAD]", "<blank>", "<|pad|>", "__null__"),
    UNK: (UNK, "<UNK>", "[UNK]", "<|unk|>", "__unk__"),
    BOS: (BOS, "<s>", "<sos>", "<BOS>", "<SOS>", "[BOS]", "[SOS]", "[CLS]", "<init>", "<start>", "__start__"),
    EOS: (EOS, "</s>", "<EOS>", "[EOS]", "[SEP]", "<end>", "<|endoftext|>", "__end__"),
}
"""Our name of a special token → the names by which it is recognised in files, in order of precedence."""
BARE_NAMES = {PAD: "PAD", UNK: "UNK", BOS: "BOS", EOS: "EOS"}
"""Names that are also words: they count only in a list of tokens without any name of NAMES."""
ALL_NAMES = tuple(name for names in NAMES.values() for name in names)
NO_TOKEN = -1
"""The id of a special token that a vocabulary lacks."""
PLACEHOLDERS = re.compile(r"<mask(_\d)?>|\[MASK\]|<extra_id_\d+>|<unk_\d+>")
"""Names of special tokens that models fill in during pretraining: decoding leaves them out, but they aren't tags."""
SPACE_MARK = "▁"
"""The character for a space in the pieces of a subword vocabulary."""
UNUSED = re.compile(r"<unused_\d+>")
"""Names of ids without a token: the rows of an embedding beyond its vocabulary."""


@dataclass(frozen=True)
class SpecialIds:
    """Holds the ids of the special tokens. `pad` may equal `unk`; then there is no <pad>.

    Raises:
      ValueError: an id below 0, or two equal ids other than pad and unk.

    Example:
      >>> SpecialIds(pad=0, unk=1, bos=2, eos=3).names()
      {'<pad>': 0, '<unk>': 1, '<bos>': 2, '<eos>': 3}
    """

    pad: int
    unk: int
    bos: int
    eos: int

    def __post_init__(self) -> None:
        roles = asdict(self)
        if min(roles.values()) < 0 or len(set(roles.values())) < (3 if self.pad == self.unk else 4):
            raise ValueError(
                f"special ids: expected four different ids, 0 or more (only pad may equal unk); received {roles}"
            )

    def names(self) -> dict[str, int]:
        """Returns each special token's text with its id, in the order of the ids."""
        ids = {UNK: self.unk, BOS: self.bos, EOS: self.eos}
        if self.pad != self.unk:
            ids[PAD] = self.pad
        return dict(sorted(ids.items(), key=lambda item: item[1]))

    def settings(self) -> str:
        """Returns the ids as fields of DataConfig: "pad_id=0, unk_id=1, …"."""
        return ", ".join(f"{role}_id={index}" for role, index in asdict(self).items())


@dataclass(frozen=True)
class Around:
    """Holds the tokens that a tokenizer puts around each sentence."""

    bos: bool = False
    """<bos> before it."""
    eos: bool = False
    """<eos> after it."""
    tag_last: bool = False
    """A tag after <eos>, as in mBART, instead of before the sentence."""


def hidden_name(name: str) -> str:
    """Returns a vocabulary entry that no text matches, since no token of a text begins with a space."""
    return f" {name}"


def shown_name(entry: str) -> str:
    """Returns a special token's name from its entry in the vocabulary."""
    return entry.removeprefix(" ")


def unused_entries(ids: Iterable[int]) -> dict[str, int]:
    """Returns entries for ids without a token."""
    return {hidden_name(f"<unused_{index}>"): index for index in ids}


def find_specials(ids: Mapping[str, int]) -> dict[str, int]:
    """Finds special tokens by their NAMES among all or some entries of a vocabulary; returns our names with the ids."""
    shown = {shown_name(entry): index for entry, index in ids.items()}
    return {
        special: next(shown[name] for name in names if name in shown)
        for special, names in NAMES.items()
        if any(name in shown for name in names)
    }


def unknown_token(token: str) -> ValueError:
    """Returns the error for a token that a vocabulary without <unk> lacks."""
    return ValueError(f"text: expected tokens of the vocabulary only, for it has no {UNK}; received {token!r}")


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Returns the distinct tags. Raises ValueError for an empty tag, spaces, or a special token's name."""
    for tag in tags:
        if tag.split() != [tag] or tag in ALL_NAMES:
            raise ValueError(
                f"tags: expected one token without spaces, and no special token's name, such as <2de>; received {tag!r}"
            )
    return tuple(dict.fromkeys(tags))
