"""Tokenizers: text to ids and back, on Hugging Face `tokenizers`.

Four kinds are trained here. Each is a plain pipeline, normalise → split → look up → join, whose parts are all in its `tokenizer.json`:

| kind | a token is | decode(encode(text)) is |
|---|---|---|
| words | a word (with inner apostrophes and hyphens), a number, or one punctuation character | the text up to spaces around punctuation |
| whitespace | what stands between white space | the text, each run of white space made one space |
| characters | one code point | the text |
| bpe | a learned piece of a word, its leading space included (as ▁) | the text, but for U+2581 (▁) itself, which becomes a space |

The last column is for known tokens, and before lowercasing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import tokenizers  # elsewhere imported where it is used, so that importing this module costs little

Ids = Sequence[int] | npt.NDArray[np.integer]
Kind = Literal["words", "whitespace", "characters", "bpe", "unigram", "spacy"]

PAD, UNK, BOS, EOS = "<pad>", "<unk>", "<bos>", "<eos>"
NO_LIMIT = 2**48
CHUNK = 10_000

WORD = r"\w+(?:[-'’]\w+|(?<=\d)[.,]\d+)*|[^\w\s]"
SPACE_MARK = "▁"
# A piece of BPE never mixes letters, digits and other characters, nor runs over a space: "dog." and "dog" share their pieces.
PIECE = r"▁?(?:[\p{L}\p{M}]+(?:['’][\p{L}\p{M}]+)*|\p{N}+|[^▁\p{L}\p{M}\p{N}]+)|▁"


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the special tokens. `pad` may equal `unk`; then there is no <pad>."""

    pad: int
    unk: int
    bos: int
    eos: int

    def __post_init__(self) -> None:
        roles = asdict(self)
        if min(roles.values()) < 0 or len(set(roles.values())) < (3 if self.pad == self.unk else 4):
            raise ValueError(f"special ids: expected four different ids, 0 or more (only pad may equal unk); received {roles}")

    def names(self) -> dict[str, int]:
        """Each special token's text with its id, by id."""
        ids = {UNK: self.unk, BOS: self.bos, EOS: self.eos}
        if self.pad != self.unk:
            ids[PAD] = self.pad
        return dict(sorted(ids.items(), key=lambda item: item[1]))


class Tokenizer:
    """Text to ids and back; made by `train_tokenizer` or `from_json`, never changed afterwards."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Wraps `backend`, which must know <unk>, <bos> and <eos>; ValueError otherwise."""
        ids = {name: backend.token_to_id(name) for name in (UNK, BOS, EOS)}
        known = {name: index for name, index in ids.items() if index is not None}
        if len(known) < len(ids):
            raise ValueError(f"tokenizer: expected the special tokens {', '.join(ids)}; received only {', '.join(known) or 'none of them'}")
        backend.encode_special_tokens = True  # "<eos>" in a user's sentence is text; the file format has no place for this flag
        self._backend = backend
        self.unk_id, self.bos_id, self.eos_id = known[UNK], known[BOS], known[EOS]
        pad_id = backend.token_to_id(PAD)
        self.pad_id = self.unk_id if pad_id is None else pad_id

    @property
    def vocab_size(self) -> int:
        """Number of ids, specials included: every id is below it."""
        return self._backend.get_vocab_size()

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The ids of each sentence, with <bos> and <eos> where this tokenizer adds them; unknown tokens are unk_id."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(sentences))]

    def decode(self, ids: Iterable[Ids]) -> list[str]:
        """The text of each sequence, to its end: <pad>, <bos> and <eos> are left out wherever they stand, unknown tokens read "<unk>".

        Where pad_id equals unk_id, a run of it at the end of a sequence is padding, and elsewhere it is an unknown token.

        Raises:
          ValueError: an id outside the vocabulary.
        """
        return self._backend.decode_batch([self._visible(sequence) for sequence in ids], skip_special_tokens=False)

    def tokens(self, ids: Ids) -> list[str]:
        """Each id's token, specials included. Raises ValueError for an id outside the vocabulary."""
        return [str(self._backend.id_to_token(token)) for token in self._checked(ids)]

    def adding(self, *, bos: bool, eos: bool) -> Tokenizer:
        """The same vocabulary, adding <bos> and <eos> to what it encodes, or not."""
        backend = _load_backend(self.to_json())
        _set_post_processor(backend, bos, eos)
        return Tokenizer(backend)

    def to_json(self) -> str:
        """A standard `tokenizer.json`, readable by `tokenizers.Tokenizer.from_file`.

        One thing is beyond the format: another reader takes "<eos>" in a sentence for the special token unless it sets
        `encode_special_tokens`, as this class does.
        """
        return self._backend.to_str()

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """The tokenizer that `to_json` wrote. Raises ValueError for anything else."""
        return cls(_load_backend(text))

    def _visible(self, sequence: Ids) -> list[int]:
        ids = self._checked(sequence)
        hidden = {self.bos_id, self.eos_id}
        if self.pad_id != self.unk_id:
            hidden.add(self.pad_id)
        else:
            while ids and ids[-1] == self.pad_id:
                ids.pop()
        return [token for token in ids if token not in hidden]

    def _checked(self, sequence: Ids) -> list[int]:
        ids = [int(token) for token in sequence]
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            outside = next(token for token in ids if not 0 <= token < self.vocab_size)
            raise ValueError(f"token ids: expected 0 to {self.vocab_size - 1} (the vocabulary's size less one); received {outside}")
        return ids


def train_tokenizer(
    sentences: Iterable[str],
    *,
    kind: Kind,
    specials: SpecialIds,
    vocab_size: int = 0,
    min_frequency: int = 1,
    lowercase: bool = False,
    add_bos: bool = False,
    add_eos: bool = False,
) -> Tokenizer:
    """Learns a vocabulary from `sentences`; the same sentences give the same tokenizer, byte for byte.

    The specials have their ids; the other tokens fill the ids that are left by frequency in `sentences`, then by code point.

    Args:
      vocab_size: most entries, specials included; 0 means no limit, which bpe can't do without. The rarest tokens give way.
      min_frequency: tokens seen less often are left out; for bpe, pairs of pieces seen less often aren't merged, while every character of
        `sentences` is kept.
      add_bos, add_eos: whether `encode` puts <bos> before and <eos> after each sentence.

    Raises:
      ValueError: an unknown kind; sentences without a token; a vocabulary too small for the specials (and bpe's characters), or so small
        that a special's id lies beyond its end.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"tokenizer kind: expected one of {', '.join(get_args(Kind))}; received {kind!r}")
    reserved = specials.names()
    if (vocab_size or kind == "bpe") and vocab_size <= len(reserved):
        raise ValueError(f"vocab_size: expected more than the {len(reserved)} special tokens; received {vocab_size}")
    backend = _untrained_backend(kind, lowercase)
    if kind == "bpe":
        model = _train_bpe(backend, list(sentences), reserved, vocab_size, min_frequency)
    else:
        model = _train_words(backend, sentences, reserved, vocab_size, min_frequency)
    backend.model = model
    backend.add_special_tokens(list(reserved))
    _set_post_processor(backend, add_bos, add_eos)
    return Tokenizer(backend)


def _untrained_backend(kind: Kind, lowercase: bool) -> tokenizers.Tokenizer:
    """The pipeline of a kind, with an empty model."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    steps: list[Any] = [normalizers.Lowercase()] if lowercase else []
    model: Any = models.WordLevel({UNK: 0}, unk_token=UNK)
    split: Any
    join: list[Any]
    if kind == "words":
        split = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
        join = [*_joined_by_spaces(), _delete(r" (?=[.,!?;:)])"), _delete(r"(?<=\() ")]
    elif kind == "whitespace":
        # A sentence may hold a special token's text: cut after its "<", it is no longer looked up as one.
        literal = "(?:pad|unk|bos|eos)>"
        cut = pre_tokenizers.Split(Regex(f"^<(?={literal}$)"), "isolated")
        split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), cut])
        join = [*_joined_by_spaces(), _delete(rf"(?<=^<| <) (?={literal}(?: |$))")]
    elif kind == "characters":
        split = pre_tokenizers.Split(Regex("(?m)."), "isolated")  # (?m): the dot is any character, line ends too
        join = [decoders.Fuse()]
    else:
        model = models.BPE(unk_token=UNK)
        # A space before the sentence makes its first word the same token as elsewhere; decoding takes one space away again.
        steps += [normalizers.Prepend(SPACE_MARK), normalizers.Replace(" ", SPACE_MARK)]
        split = pre_tokenizers.Split(Regex(PIECE), "isolated")
        join = [decoders.Fuse(), decoders.Replace(SPACE_MARK, " "), decoders.Strip(" ", 1, 0)]
    backend = Tokenizer(model)
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = split
    backend.decoder = decoders.Sequence(join)
    return backend


def _joined_by_spaces() -> list[Any]:
    from tokenizers import decoders

    # WordPiece puts a space before each token that doesn't start with the prefix; none of ours starts with a space.
    return [decoders.WordPiece(prefix=" ", cleanup=False), decoders.Fuse()]


def _delete(pattern: str) -> Any:
    from tokenizers import Regex, decoders

    return decoders.Replace(Regex(pattern), "")


def _train_words(backend: Any, sentences: Iterable[str], reserved: dict[str, int], vocab_size: int, min_frequency: int) -> Any:
    """A model that looks whole tokens up."""
    from tokenizers import models, trainers

    room = vocab_size - len(reserved) if vocab_size else NO_LIMIT
    trainer = trainers.WordLevelTrainer(vocab_size=room, min_frequency=min_frequency, show_progress=False)
    backend.train_from_iterator(sentences, trainer)
    vocabulary: dict[str, int] = backend.get_vocab()
    ordered = sorted(vocabulary, key=lambda token: vocabulary[token])  # the trainer's ids are by frequency, then by code point
    return models.WordLevel(_place(ordered, reserved, min_frequency), unk_token=UNK)


def _train_bpe(backend: Any, sentences: list[str], reserved: dict[str, int], vocab_size: int, min_frequency: int) -> Any:
    """A model that merges characters into pieces, its ids by how often each piece occurs in the encoded `sentences`."""
    from tokenizers import models, trainers

    room = vocab_size - len(reserved)
    backend.train_from_iterator(sentences, trainers.BpeTrainer(vocab_size=room, min_frequency=min_frequency, show_progress=False))
    vocabulary: dict[str, int] = backend.get_vocab()
    characters = sum(len(token) == 1 for token in vocabulary)
    if characters >= room:
        raise ValueError(
            f"vocab_size: expected more than {len(reserved) + characters} for bpe, {len(reserved)} special tokens and the {characters} "
            f"characters of the training text; received {vocab_size}"
        )
    counts: Counter[int] = Counter()
    for start in range(0, len(sentences), CHUNK):
        encodings = backend.encode_batch_fast(sentences[start : start + CHUNK])
        counts.update(chain.from_iterable(encoding.ids for encoding in encodings))
    ordered = sorted(vocabulary, key=lambda token: (-counts[vocabulary[token]], token))
    merges = [(left, right) for left, right in json.loads(backend.to_str())["model"]["merges"]]
    return models.BPE(_place(ordered, reserved, min_frequency), merges, unk_token=UNK)


def _place(ordered: list[str], reserved: dict[str, int], min_frequency: int) -> dict[str, int]:
    """Ids for the `ordered` tokens, around the reserved ones."""
    if not ordered:
        raise ValueError(f"training text: expected a token seen {min_frequency} times or more; received none. Check the text.")
    size = len(ordered) + len(reserved)
    beyond = {name: index for name, index in reserved.items() if index >= size}
    if beyond:
        raise ValueError(f"special ids: expected ids below the vocabulary's size, {size}; received {beyond}")
    taken = set(reserved.values())
    free = (index for index in range(size) if index not in taken)
    return dict(reserved) | dict(zip(ordered, free, strict=True))


def _set_post_processor(backend: Any, bos: bool, eos: bool) -> None:
    """Makes `backend` add <bos> and <eos> to each sentence it encodes, or neither."""
    from tokenizers import processors

    added = [name for name, wanted in ((BOS, bos), (EOS, eos)) if wanted]
    template = [name for name in (BOS if bos else "", "$A", EOS if eos else "") if name]
    if added:
        ids = [(name, backend.token_to_id(name)) for name in added]
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    else:
        backend.post_processor = None


def _load_backend(text: str) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception for every malformed file
        raise ValueError(f"tokenizer: expected the text of a tokenizer.json; received {text[:40]!r} ({error})") from None
