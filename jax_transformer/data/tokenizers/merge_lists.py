"""Cuts words into pieces by a list of merges (Sennrich et al. 2016), for vocabularies that may lack some of the pieces:
transformers' FSMT and Blenderbot Small."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from jax_transformer.data.tokenizers.entry_lists import EntryList
from jax_transformer.data.tokenizers.special_tokens import UNK, Around, shown_name, unused_entries

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers.subword_sampling import Segmenter

END_OF_WORD = "</w>"
CACHED_WORDS = 65_536


class Words(Protocol):
    """Splits text into words and joins them again."""

    def split(self, text: str) -> list[str]:
        """Returns the words of a text."""

    def entry(self, piece: str) -> str:
        """Returns the vocabulary's name of a piece; the last of a word ends in END_OF_WORD."""

    def join(self, entries: Sequence[str]) -> str:
        """Returns the text of a vocabulary's entries."""


class MergeListBackend(EntryList):
    """Presents words, merges and a vocabulary as a Backend."""

    FORMAT = "jax-transformer merge list 1"

    def __init__(
        self,
        rules: Mapping[str, Any],
        merges: Sequence[Sequence[str]],
        entries: Sequence[str],
        specials: Mapping[str, int],
    ) -> None:
        """Stores the rules of words (see WORDS), the merges, most frequent first, each id's entry, and the special
        tokens, which no text matches.

        Raises:
          ValueError: no <unk>; unknown rules of words, or rules whose library isn't installed.
        """
        super().__init__(entries, specials)
        self._rules, self._merges = dict(rules), list(merges)
        self._unk_id = self._unknown_id()
        self._words = words_of(self._rules)
        self._ranks = ranks_of(self._merges)
        self._cut = lru_cache(CACHED_WORDS)(self._cut_word)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return [[index for word in self._words.split(text) for index in self._cut(word)] for text in sentences]

    def _cut_word(self, word: str) -> tuple[int, ...]:
        """Returns the ids of a word's pieces."""
        symbols = merge([*word[:-1], word[-1] + END_OF_WORD], self._ranks)
        return tuple(self._ids.get(self._words.entry(symbol), self._unk_id) for symbol in symbols)

    def decode(self, sequences: list[list[int]]) -> list[str]:
        return [self._words.join([self.token(index) for index in sequence]) for sequence in sequences]

    def token(self, index: int) -> str:
        return UNK if index == self._unk_id else shown_name(self._entries[index])

    def filled(self, size: int) -> MergeListBackend:
        unused = unused_entries(range(self.size, size))
        return MergeListBackend(self._rules, self._merges, [*self._entries, *unused], self._specials | unused)

    def segmenter(self) -> Segmenter:
        raise ValueError("subword sampling: expected a bpe or unigram tokenizer; received a list of merges")

    def to_json(self, around: Around) -> str:
        content = {
            "format": self.FORMAT,
            "words": self._rules,
            "add_bos": around.bos,
            "add_eos": around.eos,
            "specials": self._specials,
            "entries": self._entries,
            "merges": [list(pair) for pair in self._merges],
        }
        return json.dumps(content, ensure_ascii=False)

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> tuple[MergeListBackend, Around]:
        """Returns the backend in a file's JSON, and the tokens around sentences. Raises KeyError for a missing part."""
        backend = cls(content["words"], content["merges"], content["entries"], content["specials"])
        return backend, Around(content["add_bos"], content["add_eos"])


Ranks = Mapping[tuple[str, str], int]
"""A pair to merge → its place in the list."""


def ranks_of(merges: Sequence[Sequence[str]]) -> Ranks:
    """Returns the place of each pair; of one that is listed twice, the first."""
    return {(first, second): rank for rank, (first, second) in reversed(list(enumerate(merges)))}


def merge(symbols: list[str], ranks: Ranks) -> list[str]:
    """Merges neighbours, the pair of the lowest rank first, until none is left to merge."""
    while len(symbols) > 1:
        pair = min(pairwise(symbols), key=lambda pair: ranks.get(pair, math.inf))
        if pair not in ranks:
            break
        symbols = _merged(symbols, pair)
    return symbols


def _merged(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    """Merges every occurrence of the pair, from the left."""
    merged: list[str] = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged


# --- words


class ConversationWords:
    """Splits as Blenderbot Small does: lowercases, begins a word at each mark, makes an apostrophe a word, and turns a
    line's end after a word into __newln__. Pieces other than a word's last end in @@."""

    PIECE = re.compile(r"'|[.,!?()][^\s.,!?()']*|[^\s.,!?()']+|(?<=[^\s'])\n")

    def split(self, text: str) -> list[str]:
        return ["__newln__" if piece == "\n" else piece.lower() for piece in self.PIECE.findall(text)]

    def entry(self, piece: str) -> str:
        return piece.removesuffix(END_OF_WORD) if piece.endswith(END_OF_WORD) else f"{piece}@@"

    def join(self, entries: Sequence[str]) -> str:
        return " ".join(entries).replace("@@ ", "").strip()


class MosesWords:
    """Splits and joins as Moses does, in the port of sacremoses."""

    MARKS = str.maketrans(
        "，、”“∶：？《》）！（；」「～’━〈〉【】％" + "".join(map(chr, range(0xFF10, 0xFF1A))),
        ',,""::?"")!(;""~\'-<>[]%0123456789',
    )
    STOPS = re.compile(r"[。．]\s*")

    def __init__(self, language: str, *, lowercase: bool) -> None:
        """Raises ValueError if sacremoses isn't installed."""
        try:
            import sacremoses
        except ImportError:
            raise ValueError(
                "its words are split by sacremoses, which isn't installed (pip install 'jax-transformer[moses]')"
            ) from None
        self._lowercase = lowercase
        self._normalizer = sacremoses.MosesPunctNormalizer(lang=language)
        self._tokenizer = sacremoses.MosesTokenizer(lang=language)
        self._detokenizer = sacremoses.MosesDetokenizer(lang=language)

    def split(self, text: str) -> list[str]:
        text = self.STOPS.sub(". ", (text.lower() if self._lowercase else text).translate(self.MARKS))
        text = self._normalizer.normalize(text.replace("…", "..."))
        text = "".join(char for char in text if not unicodedata.category(char).startswith("C"))
        words: list[str] = self._tokenizer.tokenize(text, aggressive_dash_splits=True, return_str=False, escape=True)
        return [word for word in words if word]

    def entry(self, piece: str) -> str:
        return piece

    def join(self, entries: Sequence[str]) -> str:
        text = "".join(entry.replace(END_OF_WORD, " ") for entry in entries)
        joined: str = self._detokenizer.detokenize(text.split())
        return joined


WORDS: Mapping[str, Callable[..., Words]] = {"conversation": ConversationWords, "moses": MosesWords}


def words_of(rules: Mapping[str, Any]) -> Words:
    """Builds the rules of words from {"kind": a name in WORDS, and its options}. Raises ValueError for any other
    kind."""
    kind = str(rules.get("kind"))
    if kind not in WORDS:
        raise ValueError(f"tokenizer: expected words of the kind {' or '.join(WORDS)}; received {kind!r}")
    return WORDS[kind](**{name: value for name, value in rules.items() if name != "kind"})
