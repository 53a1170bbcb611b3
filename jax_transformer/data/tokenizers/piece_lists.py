"""Runs a sentencepiece .model whose pieces get their ids from a separate list, as Marian's and M2M-100's do."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jax_transformer.data.tokenizers.entry_lists import EntryList
from jax_transformer.data.tokenizers.language_rules import RULES, LanguageRules
from jax_transformer.data.tokenizers.sentencepiece_model import UNKNOWN_MARK, read_sentencepiece
from jax_transformer.data.tokenizers.special_tokens import SPACE_MARK, UNK, Around, unused_entries

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers.subword_sampling import Segmenter


class PieceListBackend(EntryList):
    """Presents a sentencepiece model and a list of pieces as a Backend. The list may lack pieces of the model, and have
    further ones.

    If texts may begin with a code such as >>deu<<, the code is cut off and looked up in the list, where it is a tag. If
    there are rules for languages, texts may begin with two tags, and are prepared already.
    """

    FORMAT = "jax-transformer piece list 1"

    def __init__(
        self,
        model: bytes,
        entries: Sequence[str],
        specials: Mapping[str, int],
        *,
        takes_codes: bool,
        languages: str = "",
    ) -> None:
        """Stores the model; `entries`, each id's piece; `specials`, including <unk>, which no text but a code matches;
        and the name of the rules for languages, "" for none.

        Raises:
          ValueError: `model` isn't a sentencepiece model, or there is no <unk>; unknown rules.
        """
        self._model = model
        self._processor = read_sentencepiece(model)
        super().__init__(entries, specials)
        self._takes_codes = takes_codes
        if languages not in ("", *RULES):
            raise ValueError(f"tokenizer: languages must be one of {', '.join(RULES)}; received {languages!r}")
        self._languages = languages
        self._unk_id = self._unknown_id()

    @property
    def language_rules(self) -> LanguageRules | None:
        """Returns the rules for the languages of tags."""
        return RULES.get(self._languages)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        codes, texts = zip(*(self._divided(sentence) for sentence in sentences), strict=True) if sentences else ((), ())
        split = self._processor.encode(list(texts), out_type=str, num_threads=1)
        return [
            [*code, *(self._ids.get(piece, self._unk_id) for piece in pieces)]
            for code, pieces in zip(codes, split, strict=True)
        ]

    def _divided(self, sentence: str) -> tuple[list[int], str]:
        """Splits off the code, or two tags, at the start of a sentence; returns their ids, if any, and the rest."""
        if self._languages:
            first, _, rest = sentence.partition(" ")
            second, _, rest = rest.partition(" ")
            has_both = first in self._specials and second in self._specials
            return ([self._specials[first], self._specials[second]], rest) if has_both else ([], sentence)
        end = sentence.find("<<") + 2
        if not self._takes_codes or not sentence.startswith(">>") or end < 2:
            return [], sentence
        return [self._specials.get(sentence[:end], self._unk_id)], sentence[end:]

    def decode(self, sequences: list[list[int]]) -> list[str]:
        return [self._joined(sequence) for sequence in sequences]

    def _joined(self, sequence: list[int]) -> str:
        pieces = [UNKNOWN_MARK if index == self._unk_id else self._entries[index] for index in sequence]
        text: str = self._processor.decode_pieces(pieces)  # unknown pieces are left unchanged
        return text.replace(SPACE_MARK, " ").strip().replace(UNKNOWN_MARK, UNK)

    def token(self, index: int) -> str:
        return self._entries[index]

    def filled(self, size: int) -> PieceListBackend:
        unused = unused_entries(range(self.size, size))
        entries, specials = [*self._entries, *unused], self._specials | unused
        return PieceListBackend(
            self._model, entries, specials, takes_codes=self._takes_codes, languages=self._languages
        )

    def segmenter(self) -> Segmenter:
        raise ValueError(
            "subword sampling: expected a bpe or unigram tokenizer; received a sentencepiece model with a list of "
            "pieces"
        )

    def to_json(self, around: Around) -> str:
        content = {
            "format": self.FORMAT,
            "takes_codes": self._takes_codes,
            **({"languages": self._languages} if self._languages else {}),
            "add_bos": around.bos,
            "add_eos": around.eos,
            "tag_last": around.tag_last,
            "specials": self._specials,
            "entries": self._entries,
            "model": base64.b64encode(self._model).decode("ascii"),
        }
        return json.dumps(content, ensure_ascii=False, indent=1)

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> tuple[PieceListBackend, Around]:
        """Returns the backend in a file's JSON, and the tokens around sentences. Raises KeyError for a missing part."""
        model = base64.b64decode(content["model"], validate=True)
        backend = cls(
            model,
            content["entries"],
            content["specials"],
            takes_codes=content["takes_codes"],
            languages=content.get("languages", ""),
        )
        return backend, Around(content["add_bos"], content["add_eos"], content.get("tag_last", False))
