"""Defines the interface of all tokenizers: special tokens, tags, files, and random segmentations."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, takewhile
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from jax_transformer.data.tokenizers.special_tokens import (
    BOS,
    EOS,
    NO_TOKEN,
    PAD,
    PLACEHOLDERS,
    UNK,
    UNUSED,
    Around,
    find_specials,
    shown_name,
)
from jax_transformer.runtime.arguments import check_texts
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.trees import nearest

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers.language_rules import LanguageRules
    from jax_transformer.data.tokenizers.subword_sampling import Segmenter

Ids = Sequence[int] | npt.NDArray[np.integer]


class Backend(Protocol):
    """Splits text and looks up tokens; leaves <bos>, <eos> and tags to the Tokenizer."""

    @property
    def size(self) -> int:
        """Returns the number of ids."""

    @property
    def specials(self) -> Mapping[str, int]:
        """Returns the entries that no text matches, with their ids: special tokens and tags."""

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each sentence, without special tokens other than <unk>."""

    def decode(self, sequences: list[list[int]]) -> list[str]:
        """Returns the text of ids, without special tokens other than <unk>."""

    def token(self, index: int) -> str:
        """Returns the entry with this id."""

    def filled(self, size: int) -> Backend:
        """Returns the same backend with `unused_entries` up to `size` ids, which must not be fewer."""

    def segmenter(self) -> Segmenter:
        """Returns the sampler of segmentations. Raises ValueError if there is only one way to segment."""

    def to_json(self, around: Around) -> str:
        """Returns the file's text for a tokenizer that puts these tokens around sentences."""


class Tokenizer:
    """Converts text to ids and back.

    `train_tokenizer`, `load_tokenizer` and `from_json` make one. It never changes.

    The id of a special token that the vocabulary lacks is -1; without <pad>, pad_id is unk_id. A vocabulary without
    <unk> encodes only known tokens.

    Example:
      >>> from jax_transformer.data import SpecialIds, train_tokenizer
      >>> words = train_tokenizer(["who sleeps"], kind="whitespace", specials=SpecialIds(0, 1, 2, 3), add_eos=True)
      >>> (ids,) = words.encode(["who sleeps"])
      >>> ids[-1] == words.eos_id, words.decode([ids])
      (True, ['who sleeps'])
    """

    def __init__(self, backend: Backend, *, add_bos: bool, add_eos: bool, tag_last: bool = False) -> None:
        """Wraps `backend`. Raises ValueError unless it has the tokens to add, under one of their common names."""
        found = find_specials(backend.specials)
        lacking = [name for name, is_added in ((BOS, add_bos), (EOS, add_eos)) if is_added and name not in found]
        if lacking:
            known = ", ".join(found)
            raise ValueError(
                f"tokenizer: expected {' and '.join(lacking)}, to add to sentences; received only "
                f"{known or 'no special token'}"
            )
        self._backend = backend
        self._around = Around(add_bos, add_eos, tag_last)
        self._segmenter: Segmenter | None = None
        self._language = self._second_tag = ""
        self.unk_id, self.bos_id, self.eos_id = (found.get(name, NO_TOKEN) for name in (UNK, BOS, EOS))
        self.pad_id = found.get(PAD, self.unk_id)
        roles = {self.pad_id, self.unk_id, self.bos_id, self.eos_id}
        more = {shown_name(entry): index for entry, index in backend.specials.items() if index not in roles}
        self._unused_ids = frozenset(index for name, index in more.items() if UNUSED.fullmatch(name))
        self._tag_ids = {
            name: index
            for name, index in sorted(more.items(), key=lambda item: item[1])
            if index not in self._unused_ids and not PLACEHOLDERS.fullmatch(name)
        }
        self._hidden_ids = frozenset({*roles, *more.values()}) - self._unused_ids - {self.unk_id}

    @property
    def vocab_size(self) -> int:
        """Returns the number of ids, specials included: every id is below it."""
        return self._backend.size

    @property
    def tags(self) -> tuple[str, ...]:
        """Returns the tags that `encode` can put before a sentence, by id. In a vocabulary from a file, every special
        token without another role is a tag, except placeholders such as <mask> and <extra_id_0>."""
        return tuple(self._tag_ids)

    @property
    def sentinel_ids(self) -> tuple[int, ...]:
        """Returns the ids of <extra_id_0>, <extra_id_1>, …, which stand for hidden spans; empty if there are none."""
        found = {shown_name(entry): index for entry, index in self._backend.specials.items()}
        names = takewhile(found.__contains__, map("<extra_id_{}>".format, count()))
        return tuple(found[name] for name in names)

    @property
    def tag_ids(self) -> Mapping[str, int]:
        """Returns the id of each of `tags`, such as the first token of a target in models with a language tag."""
        return MappingProxyType(self._tag_ids)

    def tag_id(self, tag: str, option: str) -> int:
        """Returns the id of a tag that was set by `option`.

        Raises:
          ValueError: the vocabulary has no such tag; the message has the option and the nearest tag.
        """
        if tag not in self._tag_ids:
            more = ", …" if len(self.tags) > 10 else ""
            known = f"one of {', '.join(self.tags[:10])}{more}" if self.tags else "none, for the vocabulary has no tags"
            raise ValueError(f"{option}: expected {known}; received {tag!r}{nearest(tag, self.tags)}")
        return self._tag_ids[tag]

    @property
    def tag_is_last(self) -> bool:
        """Whether `encode` puts the tag after the sentence, as in mBART. A target's tag then starts the decoder."""
        return self._around.tag_last

    @property
    def adds_bos(self) -> bool:
        """Whether `encode` puts <bos> before each sentence."""
        return self._around.bos

    @property
    def adds_eos(self) -> bool:
        """Whether `encode` puts <eos> after each sentence."""
        return self._around.eos

    @property
    def hidden_ids(self) -> frozenset[int]:
        """Returns the ids that `decode` leaves out: all special tokens except <unk>, and except <pad> if it is also
        <unk>."""
        return self._hidden_ids

    def encode(self, sentences: Sequence[str], tag: str = "") -> list[list[int]]:
        """Returns the ids of each sentence, with <bos> and <eos> if this tokenizer adds them; unknown tokens are
        unk_id.

        Args:
          tag: one of `tags`, whose id precedes each sentence, after <bos>, or with `tag_is_last` follows it, after
            <eos>; "" for none. Inside a sentence its text is plain text. If the vocabulary has rules for the languages
            of its tags, they prepare the sentence.

        Raises:
          ValueError: an unknown tag; an unknown token, if the vocabulary has no <unk>; a single string, or anything but
            strings.
        """
        sentences, language = check_texts("sentences", sentences), self._language or tag
        rules = self._rules
        if rules is not None and language:
            sentences = [rules.prepare(sentence, language) for sentence in sentences]
        return self._surrounded(self._backend.encode(sentences), tag)

    def sample_encode(
        self, sentences: Sequence[str], *, seed: int | tuple[int, ...], strength: float, tag: str = ""
    ) -> list[list[int]]:
        """Encodes like `encode`, with a random segmentation of each word that depends only on the arguments and the
        vocabulary.

        A bpe draws by BPE-dropout (Provilkov et al., 2020): at each step, each possible merge is left out with
        probability `strength`. A unigram draws a segmentation x of a word with a probability proportional to
        P(x)^strength (Kudo, 2018): a larger strength stays closer to the best segmentation. With strength 0, both
        return the result of `encode`.

        Args:
          seed: one or more integers, 0 or more.

        Raises:
          ValueError: a strength out of range; an unknown tag; a tokenizer without subwords.
        """
        from jax_transformer.data.tokenizers.subword_sampling import sample_segmentations

        if strength == 0.0:
            return self.encode(sentences, tag)
        if self._segmenter is None:
            self._segmenter = self._backend.segmenter()
        return self._surrounded(sample_segmentations(self._segmenter, sentences, seed, strength), tag)

    def decode(self, ids: Iterable[Ids]) -> list[str]:
        """Returns the text of each whole sequence, without tags, <pad>, <bos> and <eos> in any place. Unknown tokens,
        and ids without a token (see `filled`), are shown as "<unk>".

        If pad_id equals unk_id, a run of it at the end of a sequence is padding; elsewhere it is an unknown token.

        Raises:
          ValueError: an id outside the vocabulary; anything but sequences of integers.
        """
        texts, rules = self._backend.decode([self._visible(sequence) for sequence in ids]), self._rules
        return texts if rules is None or not self._language else [rules.finish(text, self._language) for text in texts]

    def tokens(self, ids: Ids) -> list[str]:
        """Returns each id's token, specials included. Raises ValueError for an id outside the vocabulary."""
        special = {index: shown_name(entry) for entry, index in self._backend.specials.items()}
        return [special[index] if index in special else self._backend.token(index) for index in self._checked(ids)]

    def has_vocabulary_of(self, other: Tokenizer) -> bool:
        """Checks that each id has the same token in both. (They may still split text differently.)"""

        def entries(tokenizer: Tokenizer) -> tuple[list[str], list[int]]:
            specials = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id]
            return tokenizer.tokens(range(tokenizer.vocab_size)), specials

        return self.vocab_size == other.vocab_size and entries(self) == entries(other)

    def adding(self, *, bos: bool, eos: bool) -> Tokenizer:
        """Returns a tokenizer of the same vocabulary that adds <bos> and <eos> as specified."""
        return self._like(self._backend, replace(self._around, bos=bos, eos=eos))

    def with_second_tag(self, tag: str) -> Tokenizer:
        """Returns a tokenizer that puts this tag after the one that `encode` is given, such as the tag of the target's
        language in models that read both. Raises ValueError if the vocabulary lacks it."""
        self.tag_id(tag, "target tag")
        changed = self._like(self._backend, self._around)
        changed._second_tag = tag
        return changed

    def in_language(self, tag: str) -> Tokenizer:
        """Returns a tokenizer of texts in the language of a tag: `encode` prepares them, and `decode` finishes them,
        by the rules that the vocabulary has for languages; the same tokenizer if it has none."""
        if self._rules is None:
            return self
        changed = self._like(self._backend, self._around)
        changed._language = tag
        return changed

    def filled(self, size: int) -> Tokenizer:
        """Adds ids without a token up to `size`, the rows of a model's embedding. No text matches them.

        Raises:
          ValueError: fewer rows than tokens; a vocabulary without <unk>, to which such ids are decoded.
        """
        if size == self.vocab_size:
            return self
        if size < self.vocab_size:
            raise ValueError(
                f"tokenizer: expected at most {size} tokens, the rows of the embedding; received {self.vocab_size}"
            )
        if self.unk_id == NO_TOKEN:
            raise ValueError(
                f"tokenizer: expected {size} tokens, or <unk> for those that are missing; received {self.vocab_size} "
                "without it"
            )
        return self._like(self._backend.filled(size), self._around)

    def to_json(self) -> str:
        """Returns the text of a file that `from_json` reads.

        For every tokenizer that is a pipeline of `tokenizers`, it is a standard `tokenizer.json`, readable by
        `tokenizers.Tokenizer.from_file`. The format can't express one thing: other readers take "<eos>" in a sentence
        for the special token unless they set `encode_special_tokens`, as this class does.
        """
        return self._backend.to_json(self._around)

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Reads a tokenizer that `to_json` wrote. Raises ValueError for anything else, or a newer version."""
        return cls._with(*read_backend(text))

    @classmethod
    def _with(cls, backend: Backend, around: Around) -> Tokenizer:
        return cls(backend, add_bos=around.bos, add_eos=around.eos, tag_last=around.tag_last)

    def _like(self, backend: Backend, around: Around) -> Tokenizer:
        """Returns a tokenizer with this one's language and second tag."""
        changed = self._with(backend, around)
        changed._language, changed._second_tag = self._language, self._second_tag
        return changed

    @property
    def _rules(self) -> LanguageRules | None:
        return getattr(self._backend, "language_rules", None)

    def _surrounded(self, sentences: list[list[int]], tag: str) -> list[list[int]]:
        """Adds the ids before and after each sentence."""
        tags = [self.tag_id(name, "source tag") for name in (tag, self._second_tag) if name]
        before, after = [self.bos_id] * self._around.bos, [self.eos_id] * self._around.eos
        (after if self._around.tag_last else before).extend(tags)
        return [[*before, *ids, *after] for ids in sentences] if before or after else sentences

    def _visible(self, sequence: Ids) -> list[int]:
        ids = self._checked(sequence)
        if self.pad_id == self.unk_id:
            while ids and ids[-1] == self.pad_id:
                ids.pop()
        return [self.unk_id if token in self._unused_ids else token for token in ids if token not in self._hidden_ids]

    def _checked(self, sequence: Ids) -> list[int]:
        try:
            ids = list(map(index, sequence))
        except TypeError:
            raise ValueError(
                "token ids: expected a list of integers for each sequence, such as [[4, 5]]; received "
                f"{reprlib.repr(sequence)} as one sequence"
            ) from None
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            outside = next(token for token in ids if not 0 <= token < self.vocab_size)
            raise ValueError(
                f"token ids: expected 0 to {self.vocab_size - 1} (the vocabulary's size less one); received {outside}"
            )
        return ids


def is_own_format(text: str) -> bool:
    """Checks whether the text of a tokenizer's file has a format of this library, which the library `tokenizers` can't
    read."""
    return re.match(r'\s*\{\s*"format"', text) is not None


def read_backend(text: str) -> tuple[Backend, Around]:
    """Returns the backend in a file's text, and the tokens around sentences."""
    if not is_own_format(text):
        from jax_transformer.data.tokenizers.pipelines import read_pipeline

        return read_pipeline(text)
    from jax_transformer.data.tokenizers.byte_tokens import ByteBackend
    from jax_transformer.data.tokenizers.merge_lists import MergeListBackend
    from jax_transformer.data.tokenizers.piece_lists import PieceListBackend
    from jax_transformer.data.tokenizers.sentencepiece_model import SentencePieceBackend
    from jax_transformer.data.tokenizers.spacy_rules import SpacyBackend
    from jax_transformer.data.tokenizers.split_lists import SplitListBackend

    try:
        content = parse_json(text)
    except ValueError as error:
        raise ValueError(f"tokenizer: expected JSON; received {text[:40]!r} ({error})") from None
    backends: tuple[Any, ...] = (
        *(SpacyBackend, SentencePieceBackend, PieceListBackend, MergeListBackend, ByteBackend, SplitListBackend),
    )
    for own in backends:
        if content["format"] == own.FORMAT:
            return _backend_in(own, content)
    formats = ", ".join(repr(own.FORMAT) for own in backends)
    raise ValueError(
        f"tokenizer: expected a tokenizer.json, or one of the formats {formats}; received the format "
        f"{content['format']!r}; upgrade "
        "jax-transformer"
    )


def _backend_in(own: Any, content: dict[str, Any]) -> tuple[Backend, Around]:
    try:
        read: tuple[Backend, Around] = own.from_content(content)
    except KeyError as error:
        raise ValueError(
            f"tokenizer: expected {error} in a file of the format {own.FORMAT!r}; received {', '.join(content)}"
        ) from None
    return read
