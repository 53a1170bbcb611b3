"""Tokenizes text into the bytes of UTF-8, as ByT5 does (Xue et al. 2022): bytes follow the special tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jax_transformer.data.tokenizers.special_tokens import Around, shown_name, unused_entries
from jax_transformer.runtime.limits import TOKEN_IDS

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers.subword_sampling import Segmenter

BYTES = 256


class ByteBackend:
    """Presents bytes as a Backend: byte b has the id `first` + b. Special tokens have the ids below and above."""

    FORMAT = "jax-transformer bytes 1"

    def __init__(self, specials: Mapping[str, int], first: int) -> None:
        """Stores the special tokens. Their ids must fill those below `first`, and continue without a gap after the
        bytes."""
        self._specials, self._first = dict(specials), first
        self._names = {index: shown_name(entry) for entry, index in self._specials.items()}
        if self._names.keys() != {*range(first), *range(first + BYTES, BYTES + len(self._names))}:
            raise ValueError(
                f"tokenizer: expected special tokens before and after {BYTES} bytes; received the ids "
                f"{sorted(self._names)[:10]} with bytes from {first} on"
            )

    @property
    def size(self) -> int:
        return BYTES + len(self._names)

    @property
    def specials(self) -> Mapping[str, int]:
        return self._specials

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return [[self._first + byte for byte in sentence.encode("utf-8")] for sentence in sentences]

    def decode(self, sequences: list[list[int]]) -> list[str]:
        return [b"".join(map(self._bytes, sequence)).decode("utf-8", errors="ignore") for sequence in sequences]

    def _bytes(self, index: int) -> bytes:
        return self._names[index].encode("utf-8") if index in self._names else bytes([index - self._first])

    def token(self, index: int) -> str:
        return self._names.get(index, chr(index - self._first))

    def filled(self, size: int) -> ByteBackend:
        return ByteBackend(self._specials | unused_entries(range(self.size, size)), self._first)

    def segmenter(self) -> Segmenter:
        raise ValueError("subword sampling: expected a bpe or unigram tokenizer; received one of bytes")

    def to_json(self, around: Around) -> str:
        content = {
            "format": self.FORMAT,
            "add_bos": around.bos,
            "add_eos": around.eos,
            "first": self._first,
            "specials": self._specials,
        }
        return json.dumps(content, ensure_ascii=False, indent=1)

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> tuple[ByteBackend, Around]:
        """Returns the backend in a file's JSON, and the tokens around sentences. Raises KeyError for a missing part."""
        TOKEN_IDS.check(len(content["specials"]), "tokenizer")
        return cls(content["specials"], content["first"]), Around(content["add_bos"], content["add_eos"])
