"""Lists of tokens with rules that split text into them, as JoeyNMT, Sockeye, OpenNMT-py and fairseq have them."""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jax_transformer.data.tokenizers.entry_lists import EntryList
from jax_transformer.data.tokenizers.merge_lists import CACHED_WORDS, END_OF_WORD, merge, ranks_of
from jax_transformer.data.tokenizers.sentencepiece_model import (
    UNKNOWN_MARK,
    pieces_of,
    read_sentencepiece,
    restricted,
)
from jax_transformer.data.tokenizers.special_tokens import (
    SPACE_MARK,
    UNK,
    Around,
    shown_name,
    unused_entries,
)

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers.subword_sampling import Segmenter


class SplitListBackend(EntryList):
    """Presents a list of tokens, and rules that split text into them, as a Backend."""

    FORMAT = "jax-transformer program text 1"

    def __init__(self, rules: Mapping[str, Any], entries: Sequence[str], specials: Mapping[str, int]) -> None:
        """Stores the rules (see `program_text`), each id's entry, and the special tokens, which no text matches.

        Raises:
          ValueError: no <unk>; an unknown way to split; no sentencepiece model; rules whose library isn't installed.
        """
        super().__init__(entries, specials)
        self._rules = dict(rules)
        self._unk_id = self._unknown_id()
        self._moses = Moses(rules["moses"], normalizes=rules["normalize"]) if rules["moses"] else None
        if rules["split"] not in SPLITS:
            raise ValueError(f"tokenizer: split must be one of {', '.join(SPLITS)}; received {rules['split']!r}")
        self._split = SPLITS[rules["split"]](rules, self._ids.keys())

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return [
            [self._ids.get(piece, self._unk_id) for piece in self._split.cut(self._prepared(text))]
            for text in sentences
        ]

    def _prepared(self, text: str) -> str:
        if self._rules["normalize"]:
            text = _without_spaces(unicodedata.normalize("NFKC", text).translate(QUOTES))
        if self._moses is not None:
            text = self._moses.split(text)
        return text.lower() if self._rules["lowercase"] else text

    def decode(self, sequences: list[list[int]]) -> list[str]:
        return [self._finished([self.token(index) for index in sequence]) for sequence in sequences]

    def _finished(self, pieces: list[str]) -> str:
        text = self._split.join(pieces)
        if self._moses is not None:
            text = self._moses.join(text)
        return _without_spaces(text) if self._rules["normalize"] else text

    def token(self, index: int) -> str:
        return UNK if index == self._unk_id else shown_name(self._entries[index])

    def filled(self, size: int) -> SplitListBackend:
        unused = unused_entries(range(self.size, size))
        return SplitListBackend(self._rules, [*self._entries, *unused], self._specials | unused)

    def segmenter(self) -> Segmenter:
        raise ValueError("subword sampling: expected a bpe or unigram tokenizer; received a list of tokens")

    def to_json(self, around: Around) -> str:
        content = {
            "format": self.FORMAT,
            "add_bos": around.bos,
            "add_eos": around.eos,
            "specials": self._specials,
            "entries": self._entries,
            "rules": self._rules,
        }
        return json.dumps(content, ensure_ascii=False)

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> tuple[SplitListBackend, Around]:
        """Returns the backend in a file's JSON, and the tokens around sentences. Raises KeyError for a missing part."""
        backend = cls(content["rules"], content["entries"], content["specials"])
        return backend, Around(content["add_bos"], content["add_eos"])


QUOTES = str.maketrans("’“”", '\'""')


def _without_spaces(text: str) -> str:
    """Makes runs of spaces one, and removes those before punctuation, around the text, and of no width."""
    text = re.sub("[ 　]+", " ", text.replace("\u200b", ""))
    return re.sub(r" ([?!,.:])", r"\1", text).strip()


class Moses:
    """Splits words and joins them as Moses does, in the port of sacremoses."""

    def __init__(self, language: str, *, normalizes: bool) -> None:
        """Raises ValueError if sacremoses isn't installed."""
        try:
            import sacremoses
        except ImportError:
            raise ValueError(
                "its words are split by sacremoses, which isn't installed (pip install 'jax-transformer[moses]')"
            ) from None
        self._normalizer = sacremoses.MosesPunctNormalizer() if normalizes else None
        self._tokenizer = sacremoses.MosesTokenizer(lang=language)
        self._detokenizer = sacremoses.MosesDetokenizer(lang=language)

    def split(self, text: str) -> str:
        """Returns the words with a space between each."""
        text = self._normalizer.normalize(text) if self._normalizer else text
        words: str = self._tokenizer.tokenize(text, return_str=True)
        return words

    def join(self, text: str) -> str:
        """Returns the text of such words."""
        joined: str = self._detokenizer.detokenize(text.split())
        return joined


# --- ways to split


class Spaces:
    """Splits at spaces."""

    def __init__(self, rules: Mapping[str, Any], known: Any) -> None:
        pass

    def cut(self, text: str) -> list[str]:
        """Returns the pieces of a text."""
        return text.split()

    def join(self, pieces: Sequence[str]) -> str:
        """Returns the text of pieces."""
        return " ".join(pieces)


class Characters(Spaces):
    """Splits into characters, with ▁ for a space."""

    def cut(self, text: str) -> list[str]:
        return list(text.replace(" ", SPACE_MARK))

    def join(self, pieces: Sequence[str]) -> str:
        return "".join(pieces).replace(SPACE_MARK, " ")


class SentencePiece(Spaces):
    """Splits by a sentencepiece model; if the rules restrict it, into pieces of the list and single characters."""

    def __init__(self, rules: Mapping[str, Any], known: Any) -> None:
        model = base64.b64decode(rules["model"], validate=True)
        read_sentencepiece(model)
        lacks = any(piece.text not in known for piece in pieces_of(model) if piece.kind == 1)
        self._processor = read_sentencepiece(restricted(model, known) if rules["restricted"] and lacks else model)

    def cut(self, text: str) -> list[str]:
        pieces: list[str] = self._processor.encode(text, out_type=str)
        return pieces

    def join(self, pieces: Sequence[str]) -> str:
        marked = [UNKNOWN_MARK if piece == UNK else piece for piece in pieces]
        text: str = self._processor.decode_pieces(marked)  # unknown pieces are left unchanged
        return text.replace(SPACE_MARK, " ").strip().replace(UNKNOWN_MARK, UNK)


class Merges(Spaces):
    """Splits words by subword-nmt's merges; if the rules restrict it, pieces that aren't in the list are undone, merge
    by merge, until their parts are."""

    def __init__(self, rules: Mapping[str, Any], known: Any) -> None:
        self._separator, self._end_apart = rules["separator"], rules["end_apart"]
        self._known = set(known) if rules["restricted"] else None
        self._ranks = ranks_of(rules["merges"])
        self._parts = {first + second: (first, second) for first, second in self._ranks}
        self._pieces = lru_cache(CACHED_WORDS)(self._pieces_of)

    def cut(self, text: str) -> list[str]:
        return [piece for word in text.split() for piece in self._pieces(word)]

    def _pieces_of(self, word: str) -> tuple[str, ...]:
        """Returns a word's pieces."""
        end = [word[-1], END_OF_WORD] if self._end_apart else [word[-1] + END_OF_WORD]
        symbols = merge([*word[:-1], *end], self._ranks)
        if symbols[-1] == END_OF_WORD:
            symbols = symbols[:-1]
        pieces = [symbol + self._separator for symbol in symbols[:-1]] + [symbols[-1].removesuffix(END_OF_WORD)]
        if self._known is None:
            return tuple(pieces)
        return tuple(part for i, piece in enumerate(pieces) for part in self._undone(piece, i == len(pieces) - 1))

    def _undone(self, piece: str, is_last: bool) -> list[str]:
        """Returns a piece, or the known pieces that it was merged of."""
        assert self._known is not None
        whole = piece + END_OF_WORD if is_last else piece.removesuffix(self._separator)
        if piece in self._known or whole not in self._parts:
            return [piece]
        first, second = self._parts[whole]
        rest = second.removesuffix(END_OF_WORD) if is_last else second + self._separator
        return [*self._undone(first + self._separator, False), *(self._undone(rest, is_last) if rest else [])]

    def join(self, pieces: Sequence[str]) -> str:
        return " ".join(pieces).replace(f"{self._separator} ", "").removesuffix(self._separator)


SPLITS: Mapping[str, type[Spaces]] = {
    "spaces": Spaces,
    "characters": Characters,
    "sentencepiece": SentencePiece,
    "merges": Merges,
}
