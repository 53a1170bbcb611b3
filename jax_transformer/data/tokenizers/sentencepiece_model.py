"""Runs a sentencepiece .model of any kind and normalization with sentencepiece itself."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jax_transformer.data.tokenizers.pipelines import Normalization, normalizer_steps
from jax_transformer.data.tokenizers.special_tokens import Around, unused_entries
from jax_transformer.runtime.extras import require

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers.subword_sampling import Segmenter

UNKNOWN_MARK = "\ue000"


class SentencePieceBackend:
    """Presents a sentencepiece model, with the special tokens that it lacks, as a Backend."""

    FORMAT = "jax-transformer sentencepiece 1"

    def __init__(self, model: bytes, extra: Mapping[str, int], normalization: Normalization, lowercase: bool) -> None:
        """Stores the model, and `extra` special tokens with the ids after the model's own.

        Raises:
          ValueError: `model` isn't a sentencepiece model.
        """
        from tokenizers import normalizers

        self._model, self._extra = model, dict(extra)
        self._normalization, self._lowercase = normalization, lowercase
        self._normalizer = normalizers.Sequence(normalizer_steps(normalization, lowercase))
        self._processor = read_sentencepiece(model)
        own = len(self._processor)
        marked = [i for i in range(own) if self._processor.is_unknown(i) or self._processor.is_control(i)]
        self._specials = {self._processor.id_to_piece(i): i for i in marked} | self._extra
        self._unk_id = self._processor.unk_id()
        self._own = own

    @property
    def size(self) -> int:
        return self._own + len(self._extra)

    @property
    def specials(self) -> Mapping[str, int]:
        return self._specials

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return self._processor.encode(
            [self._normalizer.normalize_str(sentence) for sentence in sentences], num_threads=1
        )

    def decode(self, sequences: list[list[int]]) -> list[str]:
        return [self._decoded(sequence) for sequence in sequences]

    def token(self, index: int) -> str:
        return self._processor.id_to_piece(index)

    def filled(self, size: int) -> SentencePieceBackend:
        return SentencePieceBackend(
            self._model, self._extra | unused_entries(range(self.size, size)), self._normalization, self._lowercase
        )

    def segmenter(self) -> Segmenter:
        from jax_transformer.data.tokenizers.subword_sampling import sentencepiece_segmenter

        return sentencepiece_segmenter(self._processor, self._normalizer, model_kind(self._model))

    def to_json(self, around: Around) -> str:
        content = {
            "format": self.FORMAT,
            "normalization": self._normalization,
            "lowercase": self._lowercase,
            "add_bos": around.bos,
            "add_eos": around.eos,
            "extra": self._extra,
            "model": base64.b64encode(self._model).decode("ascii"),
        }
        return json.dumps(content, ensure_ascii=False, indent=1)

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> tuple[SentencePieceBackend, Around]:
        """Returns the backend in a file's JSON, and the tokens around sentences. Raises KeyError for a missing part."""
        model = base64.b64decode(content["model"], validate=True)
        backend = cls(model, content["extra"], content["normalization"], content["lowercase"])
        return backend, Around(content["add_bos"], content["add_eos"])

    def _decoded(self, sequence: list[int]) -> str:
        if self._unk_id not in sequence:
            return self._processor.decode(sequence)
        pieces = [UNKNOWN_MARK if index == self._unk_id else self._processor.id_to_piece(index) for index in sequence]
        return self._processor.decode_pieces(pieces).replace(UNKNOWN_MARK, "<unk>")


def read_sentencepiece(model: bytes) -> Any:
    """Returns the `sentencepiece.SentencePieceProcessor` of a .model file.

    Raises:
      MissingPackage: sentencepiece isn't installed.
      ValueError: the bytes aren't a sentencepiece model.
    """
    require("sentencepiece", "a sentencepiece model")
    import sentencepiece

    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        len(processor)
    except Exception as error:  # its bindings raise several classes
        raise ValueError(
            f"expected a sentencepiece model; received {len(model)} bytes of something else ({error})"
        ) from None
    return processor


class Piece(NamedTuple):
    """Holds an entry of a .model file."""

    text: str
    score: float
    kind: int
    """1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 a byte."""


def pieces_of(model: bytes) -> list[Piece]:
    """Returns the pieces of a .model file, by id (ModelProto.pieces)."""
    pieces = []
    for number, value in _fields(model):
        if number == 1 and isinstance(value, bytes):
            fields = dict(_fields(value))
            text, score = fields.get(1, b""), fields.get(2, bytes(4))
            assert isinstance(text, bytes)
            assert isinstance(score, bytes)
            pieces.append(Piece(text.decode(), struct.unpack("<f", score)[0], int(fields.get(3, 1))))
    return pieces


NORMAL, UNUSED = 1, 5
"""Kinds of pieces that `restricted` turns into each other."""


def restricted(model: bytes, vocabulary: Collection[str]) -> bytes:
    """Returns a .model file that cuts texts into pieces of a vocabulary and single characters alone, as sentencepiece's
    SetVocabulary makes it do."""
    parts = []
    for number, value, raw in _raw_fields(model):
        fields = dict(_fields(value)) if number == 1 and isinstance(value, bytes) else {}
        text = fields.get(1, b"")
        if fields.get(3, NORMAL) not in (NORMAL, UNUSED) or not isinstance(text, bytes) or not fields:
            parts.append(raw)
            continue
        piece = text.decode()
        kind = NORMAL if piece in vocabulary or len(piece) == 1 else UNUSED
        kept = b"".join(raw for number, _, raw in _raw_fields(bytes(value)) if number != 3)
        body = kept + bytes([3 << 3, kind])
        parts.append(bytes([1 << 3 | 2]) + _integer(len(body)) + body)
    return b"".join(parts)


def character_map_of(model: bytes) -> bytes:
    """Returns a .model file's compiled character map (ModelProto.normalizer_spec.precompiled_charsmap); empty without
    one."""
    normalizer = next((value for number, value in _fields(model) if number == 3 and isinstance(value, bytes)), b"")
    return next((value for number, value in _fields(normalizer) if number == 2 and isinstance(value, bytes)), b"")


def model_kind(model: bytes) -> str:
    """Returns the kind of a .model file: unigram, bpe, word or char (ModelProto.trainer_spec.model_type)."""
    trainer = next((value for number, value in _fields(model) if number == 2 and isinstance(value, bytes)), b"")
    kind = next((value for number, value in _fields(trainer) if number == 3), 1)
    return (
        {1: "unigram", 2: "bpe", 3: "word", 4: "char"}.get(kind, str(kind))
        if isinstance(kind, int)
        else "of another kind"
    )


def _integer(value: int) -> bytes:
    """Writes an integer of a protocol buffer."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the number and value of each field of a protocol buffer: an integer, or the bytes of any other type."""
    return ((number, value) for number, value, _ in _raw_fields(message))


def _raw_fields(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """Yields the number and value of each field, and all of its bytes."""
    position = 0

    def integer() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(message):
        start = position
        number, wire = divmod(integer(), 8)
        if wire == 0:
            value = integer()
            yield number, value, message[start:position]
            continue
        size = {1: 8, 5: 4}[wire] if wire in (1, 5) else integer()
        position += size
        yield number, message[position - size : position], message[start:position]
