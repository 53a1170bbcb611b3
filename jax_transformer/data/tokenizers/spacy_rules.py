"""Splits text by spaCy's rules of a language, and looks the tokens up in a vocabulary.

spaCy is loaded on the first split: the target side of a translation never needs it.
"""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jax_transformer.data.tokenizers.entry_lists import EntryList
from jax_transformer.data.tokenizers.pipelines import Normalization, normalizer_steps
from jax_transformer.data.tokenizers.special_tokens import (
    BOS,
    EOS,
    UNK,
    Around,
    find_specials,
    unknown_token,
    unused_entries,
)
from jax_transformer.runtime.extras import require

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers.subword_sampling import Segmenter

# The spaces to delete between tokens: 'the dog , it 's ( n't ) .' becomes "the dog, it's (n't)."
NO_SPACE = re.compile(r" (?=[.,!?;:)])|(?<=\() | (?=(?:n['’]t|['’](?:s|m|d|re|ve|ll))(?: |$))", re.IGNORECASE)


class SpacyRules:
    """Splits text as `spacy.blank(language)` does, after normalization."""

    def __init__(self, language: str, normalization: Normalization, lowercase: bool, trained_with: str = "") -> None:
        """Stores the rules, to be loaded on demand. `trained_with`: the version of spaCy that made the vocabulary; ""
        for the installed one.

        Raises:
          ValueError: an unknown normalization.
        """
        from tokenizers import normalizers

        self.language, self.normalization, self.lowercase = language, normalization, lowercase
        self._normalizer = normalizers.Sequence(normalizer_steps(normalization, lowercase))
        self._trained_with = trained_with
        self._tokenizer: Any = None

    @property
    def version(self) -> str:
        """Returns the version of spaCy that made the vocabulary."""
        if not self._trained_with:
            self._load()
        return self._trained_with

    def split(self, sentence: str) -> list[str]:
        """Returns the tokens of a sentence, without white space."""
        if self._tokenizer is None:
            self._load()
        return [token.text for token in self._tokenizer(self._normalizer.normalize_str(sentence)) if not token.is_space]

    def _load(self) -> None:
        if not self.language:
            raise ValueError(
                "language: expected a code such as 'en' for the kind 'spacy'; received ''; set source_language and "
                "target_language"
            )
        self._tokenizer, version = _load_spacy(self.language)
        self._trained_with = self._trained_with or version
        wanted = _minor(self._trained_with)
        if wanted != _minor(version):
            warnings.warn(
                f"tokenizer: expected spaCy {wanted}, with which this vocabulary was made; received {version}, which "
                "may split some text "
                f"otherwise; for the same splitting, pip install 'spacy=={wanted}.*'",
                stacklevel=4,
            )


@functools.cache
def _load_spacy(language: str) -> tuple[Any, str]:
    """Returns spaCy's tokenizer of a language, and its version."""
    require("spacy", "tokenizer spacy")
    import spacy

    try:
        return spacy.blank(language).tokenizer, spacy.__version__
    except Exception as error:  # unknown languages, and those whose own libraries are missing, in several classes
        raise ValueError(f"language: expected one whose rules spaCy has; received {language!r} ({error})") from None


class SpacyBackend(EntryList):
    """Presents spaCy's rules and a vocabulary as a Backend."""

    FORMAT = "jax-transformer spacy 1"

    def __init__(self, rules: SpacyRules, entries: Sequence[str], specials: Mapping[str, int]) -> None:
        """Stores `entries`, each id's token, and `specials`, the special tokens and tags, which no text matches."""
        super().__init__(entries, specials)
        self._rules = rules
        self._unk_id = find_specials(self._specials).get(UNK)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return [[self._id(token) for token in self._rules.split(sentence)] for sentence in sentences]

    def _id(self, token: str) -> int:
        index = self._ids.get(token, self._unk_id)
        if index is None:
            raise unknown_token(token)
        return index

    def decode(self, sequences: list[list[int]]) -> list[str]:
        return [NO_SPACE.sub("", " ".join(self._entries[index] for index in sequence)) for sequence in sequences]

    def token(self, index: int) -> str:
        return self._entries[index]

    def filled(self, size: int) -> SpacyBackend:
        unused = unused_entries(range(self.size, size))
        return SpacyBackend(self._rules, [*self._entries, *unused], self._specials | unused)

    def segmenter(self) -> Segmenter:
        raise ValueError("subword sampling: expected a bpe or unigram tokenizer; received one of spaCy's words")

    def to_json(self, around: Around) -> str:
        content = {
            "format": self.FORMAT, "language": self._rules.language, "spacy_version": self._rules.version,
            "normalization": self._rules.normalization, "lowercase": self._rules.lowercase, "add_bos": around.bos,
            "add_eos": around.eos, "specials": self._specials, "vocabulary": self._entries,
        }  # fmt: skip
        return json.dumps(content, ensure_ascii=False, indent=1)

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> tuple[SpacyBackend, Around]:
        """Returns the backend in a file's JSON, and the tokens around sentences. Raises KeyError for a missing part."""
        rules = SpacyRules(
            content["language"], content["normalization"], content["lowercase"], content["spacy_version"]
        )
        backend = cls(rules, content["vocabulary"], content["specials"])
        around = Around(content["add_bos"], content["add_eos"])
        names = find_specials(backend.specials)
        outside = [name for name in (UNK, BOS, EOS) if not 0 <= names.get(name, 0) < backend.size]
        if outside:
            raise ValueError(f"tokenizer: expected special ids below {backend.size}; received {backend.specials}")
        return backend, around


def _minor(version: str) -> str:
    """Returns the version as major.minor."""
    return ".".join(version.split(".")[:2])
