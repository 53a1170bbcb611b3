"""Stores pairs as token ids in flat arrays, in memory or in files.

The files of each split and side hold the ids of all sentences end to end (`train.source.ids`, int32), their beginnings
(`.offsets`, int64), the texts end to end (`.txt`), and their beginnings (`.text_offsets`, int64). One more file of each
split holds the corpus of each pair (`train.corpus`, uint16). All are little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jax_transformer.data.stored_array import StoredArray

SIDES = ("source", "target")

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sentences:
    """Holds one side of a split in flat arrays: sentence i is ids[offsets[i]:offsets[i + 1]]."""

    ids: Int32s
    offsets: Int64s
    text: npt.NDArray[np.uint8]
    """The sentences in UTF-8, each with a line end: sentence i is text[text_offsets[i]:text_offsets[i + 1] - 1]."""
    text_offsets: Int64s

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Int32s:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @classmethod
    def pack(cls, ids: Sequence[Sequence[int]], texts: Sequence[str] = ()) -> Sentences:
        """Packs lists of ids and, if needed, their texts into flat arrays."""
        lines = [f"{text}\n".encode() for text in texts]
        offsets, text_offsets = (np.cumsum([0, *map(len, parts)], dtype=np.int64) for parts in (ids, lines))
        flat = np.fromiter(chain.from_iterable(ids), np.int32, int(offsets[-1]))
        return cls(flat, offsets, np.frombuffer(b"".join(lines), np.uint8), text_offsets)

    @classmethod
    def without_ids(cls, lengths: Int64s) -> Sentences:
        """Returns sentences that have only lengths, without ids and texts."""
        nothing = np.zeros(0, np.int64)
        return cls(
            nothing.astype(np.int32), np.concatenate([[0], np.cumsum(lengths)]), nothing.astype(np.uint8), nothing
        )

    @classmethod
    def without_text(cls, ids: Sequence[Int32s], lengths: Sequence[Int64s]) -> Sentences:
        """Returns sentences with these ids, end to end, and lengths, without texts."""
        return cls(
            np.concatenate([np.zeros(0, np.int32), *ids]),
            np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths])),
            np.zeros(0, np.uint8),
            np.zeros(1, np.int64),
        )

    def texts(self, indices: Sequence[int] | npt.NDArray[np.integer] | None = None) -> list[str]:
        """Returns the texts of the sentences `indices`, or of all."""
        wanted = range(len(self)) if indices is None else indices
        return [
            self.text[self.text_offsets[i] : self.text_offsets[i + 1] - 1].tobytes().decode("utf-8") for i in wanted
        ]


@dataclass(frozen=True, eq=False)
class TokenPairs:
    """Holds the pairs of one split. Source ids include the tokenizer's specials; target ids have no <bos> and <eos>.

    Example:
      >>> from jax_transformer.data import TokenPairs
      >>> from jax_transformer.data.token_pairs import Sentences
      >>> pairs = TokenPairs(Sentences.pack([[4, 3], [5, 3]]), Sentences.pack([[6], [7, 8]]), max_length=2)
      >>> len(pairs), pairs.target_lengths.tolist(), pairs.usable_indices.tolist()
      (2, [1, 2], [0])
    """

    source_sentences: Sentences
    target_sentences: Sentences
    max_length: int
    corpus: npt.NDArray[np.uint16] | None = None
    """Number of each pair's corpus in DataConfig.corpora, counted from 0. None: all belong to the first."""

    def __len__(self) -> int:
        return len(self.source_sentences)

    @property
    def source_lengths(self) -> Int64s:
        """Returns the number of tokens of each source, specials included."""
        return np.diff(self.source_sentences.offsets)

    @property
    def target_lengths(self) -> Int64s:
        """Returns the number of tokens of each target, without specials."""
        return np.diff(self.target_sentences.offsets)

    @property
    def usable_indices(self) -> Int64s:
        """Returns the indices of the pairs that fit max_length: all pairs of a training split; in other splits, the
        pairs in the loss."""
        return np.flatnonzero((self.source_lengths <= self.max_length) & (self.target_lengths + 1 <= self.max_length))

    def source(self, index: int) -> Int32s:
        """Returns the ids of source `index`."""
        return self.source_sentences[index]

    def target(self, index: int) -> Int32s:
        """Returns the ids of target `index`."""
        return self.target_sentences[index]

    def source_texts(self, indices: Sequence[int] | npt.NDArray[np.integer] | None = None) -> list[str]:
        """Returns the source texts `indices` (None: all)."""
        return self.source_sentences.texts(indices)

    def target_texts(self, indices: Sequence[int] | npt.NDArray[np.integer] | None = None) -> list[str]:
        """Returns the target texts `indices` (None: all)."""
        return self.target_sentences.texts(indices)


class PairsWriter:
    """Appends pairs to the files of one split, in constant memory."""

    def __init__(self, directory: Path, name: str) -> None:
        self._base = directory / name
        self._written = dict.fromkeys(
            (f"{side}.{suffix}" for side in SIDES for suffix in ("offsets", "text_offsets")), 0
        )
        for name in self._written:
            self._append(name, np.zeros(1, "<i8"))
        self.append(([], []), ([], []), 0)  # so that a split without pairs also has all files

    def append(self, ids: Sequence[Sequence[Sequence[int]]], texts: Sequence[Sequence[str]], corpus: int) -> None:
        """Appends pairs of one corpus: (source ids, target ids) and (source texts, target texts)."""
        for side, some_ids, some_texts in zip(SIDES, ids, texts, strict=True):
            packed = Sentences.pack(some_ids, some_texts)
            self._append(f"{side}.ids", packed.ids.astype("<i4"))
            self._append(f"{side}.txt", packed.text)
            for suffix, offsets in (("offsets", packed.offsets), ("text_offsets", packed.text_offsets)):
                name = f"{side}.{suffix}"
                self._append(name, (offsets[1:] + self._written[name]).astype("<i8"))
                self._written[name] += int(offsets[-1])
        self._append("corpus", np.full(len(texts[0]), corpus, "<u2"))

    def _append(self, suffix: str, values: npt.NDArray[Any]) -> None:
        with open(f"{self._base}.{suffix}", "ab") as file:
            file.write(values.tobytes())


class PairsInMemory:
    """Collects the ids of one split's pairs in memory, with the interface of PairsWriter."""

    def __init__(self) -> None:
        self._ids: tuple[list[npt.NDArray[np.int32]], ...] = ([], [])
        self._lengths: tuple[list[npt.NDArray[np.int64]], ...] = ([], [])

    def append(self, ids: Sequence[Sequence[Sequence[int]]], texts: Sequence[Sequence[str]], corpus: int) -> None:
        """Appends the ids of sources and targets, and discards the texts."""
        for side, some in enumerate(ids):
            packed = Sentences.pack(some, [])
            self._ids[side].append(packed.ids)
            self._lengths[side].append(np.diff(packed.offsets))

    def pairs(self, max_length: int) -> TokenPairs:
        """Returns all pairs, without texts: `texts` doesn't work."""
        source, target = map(Sentences.without_text, self._ids, self._lengths)
        return TokenPairs(source, target, max_length)


def open_pairs(directory: Path, name: str, max_length: int) -> TokenPairs:
    """Opens the split that a PairsWriter wrote. Keeps the offsets and corpora in memory; reads ids and texts on
    demand."""

    def stored(suffix: str, dtype: str) -> Any:
        return StoredArray(directory / f"{name}.{suffix}", dtype)

    source, target = (
        Sentences(
            stored(f"{side}.ids", "<i4"),
            np.asarray(stored(f"{side}.offsets", "<i8")),
            stored(f"{side}.txt", "u1"),
            stored(f"{side}.text_offsets", "<i8"),
        )
        for side in SIDES
    )
    return TokenPairs(source, target, max_length, np.asarray(stored("corpus", "<u2")))
