"""Builds the pipelines of the library `tokenizers` for each kind, and reads and writes tokenizer.json."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from jax_transformer.data.tokenizers.patterns import (
    AFTER_CUT,
    ANY_CHARACTER,
    BEFORE_LITERAL,
    PIECE,
    RUN,
    SPACE_AFTER_BRACKET,
    SPACE_BEFORE_MARK,
    WORD,
)
from jax_transformer.data.tokenizers.special_tokens import (
    BOS,
    EOS,
    SPACE_MARK,
    UNK,
    Around,
    find_specials,
    hidden_name,
    unknown_token,
    unused_entries,
)
from jax_transformer.data.tokenizers.trial import check_steps, is_panic
from jax_transformer.runtime.limits import TOKEN_IDS

if TYPE_CHECKING:
    import tokenizers  # imported inside functions, to keep the import of this module cheap

    from jax_transformer.data.tokenizers.subword_sampling import Segmenter

Normalization = Literal["none", "nfc", "nfkc"]


class PipelineBackend:
    """Presents a `tokenizers.Tokenizer` as a Backend."""

    def __init__(self, pipeline: tokenizers.Tokenizer) -> None:
        # "<eos>" in a user's sentence is text; the file format can't store this flag
        pipeline.encode_special_tokens = True
        pipeline.no_padding()
        pipeline.no_truncation()
        self._pipeline = pipeline
        self._size = 1 + max(pipeline.get_vocab().values(), default=-1)
        added = pipeline.get_added_tokens_decoder()
        self._specials = {token.content: index for index, token in sorted(added.items()) if token.special}

    @property
    def pipeline(self) -> tokenizers.Tokenizer:
        """Returns the wrapped pipeline."""
        return self._pipeline

    @property
    def size(self) -> int:
        return self._size

    @property
    def specials(self) -> Mapping[str, int]:
        return self._specials

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        try:
            encodings = self._pipeline.encode_batch_fast(list(sentences), add_special_tokens=False)
        except BaseException as error:  # a panic, or the library's bare Exception for an unknown token
            if is_panic(error):
                raise _gave_up(error) from None
            if not isinstance(error, Exception):
                raise
            token = self._first_unknown(sentences)
            if token is None:
                raise
            raise unknown_token(token) from None
        return [encoding.ids for encoding in encodings]

    def _first_unknown(self, sentences: Sequence[str]) -> str | None:
        """Returns the first token of the sentences that has no id."""
        pipeline = self._pipeline
        for sentence in sentences:
            text = pipeline.normalizer.normalize_str(sentence) if pipeline.normalizer else sentence
            for token, _ in pipeline.pre_tokenizer.pre_tokenize_str(text) if pipeline.pre_tokenizer else [(text, None)]:
                if pipeline.token_to_id(token) is None:
                    return token
        return None

    def decode(self, sequences: list[list[int]]) -> list[str]:
        try:
            texts = self._pipeline.decode_batch(sequences, skip_special_tokens=False)
        except BaseException as error:
            raise _gave_up(error) if is_panic(error) else error from None
        return [text.replace(hidden_name(UNK), UNK) for text in texts] if hidden_name(UNK) in self._specials else texts

    def token(self, index: int) -> str:
        return str(self._pipeline.id_to_token(index))

    def filled(self, size: int) -> PipelineBackend:
        filled = copy.deepcopy(self._pipeline)
        filled.add_special_tokens([*unused_entries(range(self._size, size))])
        backend = PipelineBackend(filled)
        if backend.size != size:
            raise ValueError(f"tokenizer: expected ids without gaps; received {filled.get_vocab_size()} of {size}")
        return backend

    def segmenter(self) -> Segmenter:
        from jax_transformer.data.tokenizers.subword_sampling import pipeline_segmenter

        return pipeline_segmenter(self._pipeline)

    def to_json(self, around: Around) -> str:
        """Returns the text of a tokenizer.json; see `Backend`. A tag at the end is written as the second part of a
        pair, after <eos>."""
        from tokenizers import processors

        names = {index: entry for entry, index in self._specials.items()}
        added = {role: (names[index], index) for role, index in find_specials(self._specials).items()}
        before, after = ([added[BOS]] if around.bos else []), ([added[EOS]] if around.eos else [])
        single = [*(name for name, _ in before), "$A", *(name for name, _ in after)]
        ending = [added[EOS]] if around.tag_last and EOS in added else []
        pair = {"pair": ["$A", *(name for name, _ in ending), "$B"]} if ending else {}
        special = list(dict.fromkeys([*before, *after, *ending]))
        post = processors.TemplateProcessing(single=single, special_tokens=special, **pair)
        self._pipeline.post_processor = post if special else None
        return self._pipeline.to_str()


def read_pipeline(text: str) -> tuple[PipelineBackend, Around]:
    """Returns the backend in the text of a tokenizer.json, and the tokens around sentences. Raises ValueError for any
    other text."""
    from tokenizers import Tokenizer

    check_steps(text)
    try:
        pipeline = Tokenizer.from_str(text)
    except BaseException as error:  # the library raises bare Exception for every malformed file, or panics
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise ValueError(
            f"tokenizer: expected the text of a tokenizer.json; received {text[:40]!r} ({error})"
        ) from None
    backend = PipelineBackend(pipeline)
    TOKEN_IDS.check(backend.size, "tokenizer")
    found = find_specials(backend.specials)
    around = pipeline.encode("").ids if pipeline.post_processor is not None else []
    return backend, Around(found.get(BOS) in around, found.get(EOS) in around, _ends_in_tag(pipeline.post_processor))


def _ends_in_tag(post: Any) -> bool:
    """Checks whether the template of a pair ends in a special token and the second part."""
    content = json.loads(post.__getstate__()) if post is not None else {}
    return [next(iter(part)) for part in content.get("pair", [])[-2:]] == ["SpecialToken", "Sequence"]


def _gave_up(error: BaseException) -> ValueError:
    return ValueError(
        "tokenizer: expected patterns that take a sentence in a moment; received ones that `tokenizers` gives up "
        f"on this text ({error}). Shorten the line, or use another tokenizer."
    )


def make_pipeline(kind: str, normalization: Normalization, lowercase: bool) -> tokenizers.Tokenizer:
    """Returns the pipeline of a kind, with an empty model."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    steps = normalizer_steps(normalization, lowercase)
    model: Any = models.WordLevel({UNK: 0}, unk_token=UNK)
    split: Any
    join: list[Any]
    if kind == "words":
        split = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
        join = [*_joined_by_spaces(), _delete(SPACE_BEFORE_MARK), _delete(SPACE_AFTER_BRACKET)]
    elif kind == "whitespace":
        cut = pre_tokenizers.Split(Regex(BEFORE_LITERAL), "isolated")
        split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), cut])
        join = [*_joined_by_spaces(), _delete(AFTER_CUT)]
    elif kind == "characters":
        split = pre_tokenizers.Split(Regex(ANY_CHARACTER), "isolated")
        join = [decoders.Fuse()]
    else:
        model = models.BPE(unk_token=UNK) if kind == "bpe" else models.Unigram([(UNK, 0.0)], 0, False)
        # A space before the sentence makes its first word the same token as elsewhere; decoding removes it.
        steps += [normalizers.Prepend(SPACE_MARK), normalizers.Replace(" ", SPACE_MARK)]
        split = pre_tokenizers.Split(Regex(PIECE if kind == "bpe" else RUN), "isolated")
        join = [decoders.Fuse(), decoders.Replace(SPACE_MARK, " "), decoders.Strip(" ", 1, 0)]
    pipeline = Tokenizer(model)
    if steps:
        pipeline.normalizer = normalizers.Sequence(steps)
    pipeline.pre_tokenizer = split
    pipeline.decoder = decoders.Sequence(join)
    return pipeline


def normalizer_steps(normalization: Normalization, lowercase: bool) -> list[Any]:
    """Returns the first steps of a pipeline, for normalization and lowercasing."""
    from tokenizers import normalizers

    forms: dict[str, list[Any]] = {"none": [], "nfc": [normalizers.NFC()], "nfkc": [normalizers.NFKC()]}
    if normalization not in forms:
        raise ValueError(f"normalization: expected one of {', '.join(forms)}; received {normalization!r}")
    return forms[normalization] + ([normalizers.Lowercase()] if lowercase else [])


def _joined_by_spaces() -> list[Any]:
    from tokenizers import decoders

    # WordPiece puts a space before each token that doesn't begin with the prefix; none of ours begins with a space.
    return [decoders.WordPiece(prefix=" ", cleanup=False), decoders.Fuse()]


def _delete(pattern: str) -> Any:
    from tokenizers import Regex, decoders

    return decoders.Replace(Regex(pattern), "")
