"""Streams a training corpus shard by shard without storing it.

If the dataset has no splits for valid and test, the first pairs of the stream serve. The training pairs follow, counted
from 0 here, in shards of `stream_pairs`. Every shard but the last of a pass is full, so its number determines where it
begins.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jax_transformer.config.data import DataConfig
from jax_transformer.data.encoding import SplitEncoder
from jax_transformer.data.held_out import held_out_counts
from jax_transformer.data.hub import Unreachable, open_stream
from jax_transformer.data.report import SplitReport
from jax_transformer.data.tables import Pair
from jax_transformer.data.text_files import CorpusError
from jax_transformer.data.token_pairs import Sentences, TokenPairs
from jax_transformer.data.tokenizers import Tokenizer

CHUNK = 10_000
"""Number of pairs whose text is in memory at once."""
RETRY_SECONDS = (1.0, 5.0, 25.0)
"""Seconds to wait before each retry. (The library below also retries single requests.)"""
LENGTHS, STREAM = "train.lengths", "stream.json"


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
        """Returns all pairs, without texts: don't call `texts`."""
        nothing = np.zeros(0, np.uint8), np.zeros(1, np.int64)
        source, target = (
            Sentences(
                np.concatenate([np.zeros(0, np.int32), *ids]),
                np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths])),
                *nothing,
            )
            for ids, lengths in zip(self._ids, self._lengths, strict=True)
        )
        return TokenPairs(source, target, max_length)


@dataclass(frozen=True, eq=False)
class Beginning:
    """Holds the facts about the first shard of a stream that a prepared corpus stores."""

    lengths: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]
    """Numbers of source and target tokens of each kept pair."""
    revision: str
    """Version of the dataset: see `open_stream`."""

    @classmethod
    def load(cls, entry: Path) -> Beginning:
        """Loads the files that `save` wrote."""
        lengths = np.fromfile(entry / LENGTHS, "<i4").reshape(2, -1)
        revision: str = json.loads((entry / STREAM).read_text(encoding="utf-8"))["revision"]
        return cls((lengths[0], lengths[1]), revision)

    @staticmethod
    def save(directory: Path, pairs: TokenPairs, revision: str) -> None:
        """Writes the lengths and the revision to a cache entry."""
        np.stack([pairs.source_lengths, pairs.target_lengths]).astype("<i4").tofile(directory / LENGTHS)
        (directory / STREAM).write_text(json.dumps({"revision": revision}), encoding="utf-8")


def read_beginning(config: DataConfig) -> tuple[dict[str, list[Pair]], str, str]:
    """Reads the first shard of the stream as "train", and valid and test; returns also the dataset's name with its
    version, and the revision.

    Raises:
      CorpusError: no training pair after those taken for valid and test; and as `open_stream` and
        `StreamedPairs.pairs_from` do.
    """
    stream = open_stream(config)
    splits = {role: list(pairs.pairs_from(0)) for role, pairs in stream.splits.items() if role != "train"}
    pairs = stream.splits["train"].pairs_from(0)
    taken = held_out_counts(config, stream.splits)
    for role, count in taken.items():
        splits[role] = list(islice(pairs, count))
    train = list(islice(pairs, config.stream_pairs))
    if not train:
        counts = " and ".join(f"{role}_pairs={count}" for role, count in taken.items()) or "none to take out"
        raise CorpusError(
            f"{stream.splits['train'].name}: expected training pairs, {counts}; received "
            f"{sum(map(len, splits.values()))} pairs in all. "
            "Take fewer, or check the dataset."
        )
    splits["train"] = train
    return (
        {role: splits[role] for role in ("train", "valid", "test") if role in splits},
        stream.version,
        stream.revision,
    )


class Shard(NamedTuple):
    """Holds consecutive training pairs of a stream as ids."""

    start: int
    """Number of training pairs before this shard."""
    pairs: TokenPairs
    """The kept pairs, without text."""
    report: SplitReport
    """Counts of pairs read and dropped. Overlapping and duplicated pairs aren't detected."""


class TrainingStream:
    """Iterates over the training pairs of a streamed corpus, starting at any shard."""

    def __init__(
        self, config: DataConfig, tokenizers: tuple[Tokenizer, Tokenizer], revision: str, log: Callable[[str], None]
    ) -> None:
        """Stores the settings; `log` is called with a line before each retry."""
        self._config, self._tokenizers, self._revision, self._log = config, tokenizers, revision, log

    def shards(self, start: int = 0) -> Iterator[Shard]:
        """Yields the shards of one pass from pair `start`, the beginning of a shard, and holds none of them.

        Raises:
          Unreachable: the dataset couldn't be read after several attempts; a later call may continue where this one
            stopped.
          CorpusError: it holds something that can't be read, or not as text.
        """
        attempts = 0
        pairs: Iterator[Pair] | None = None
        while True:
            try:
                pairs = self._open(start) if pairs is None else pairs
                shard = self._encode(pairs, start)
            except Unreachable as error:
                if attempts == len(RETRY_SECONDS):
                    raise
                seconds = RETRY_SECONDS[attempts]
                attempts, pairs = attempts + 1, None
                self._log(f"{error} Trying again in {seconds:g} s ({attempts} of {len(RETRY_SECONDS)}).")
                time.sleep(seconds)
                continue
            attempts = 0
            is_last = shard.report.read < self._config.stream_pairs
            start += shard.report.read
            if shard.report.read:
                yield shard
            del shard
            if is_last:
                return

    def _open(self, start: int) -> Iterator[Pair]:
        stream = open_stream(self._config, self._revision)
        return stream.splits["train"].pairs_from(sum(held_out_counts(self._config, stream.splits).values()) + start)

    def _encode(self, pairs: Iterator[Pair], start: int) -> Shard:
        writer = PairsInMemory()
        encoder = SplitEncoder(writer, "train", self._tokenizers, self._config)
        left = self._config.stream_pairs
        while left and (chunk := list(islice(pairs, min(CHUNK, left)))):
            nowhere = np.zeros(len(chunk), np.bool_)
            encoder.add(chunk, 0, nowhere, nowhere)
            left -= len(chunk)
        return Shard(start, writer.pairs(self._config.max_length), encoder.report())
