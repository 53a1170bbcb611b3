"""Streams a training corpus shard by shard without storing it.

The files of the training split are divided into `stream_parts` parts. If the dataset has no splits for valid and test,
the first pairs of the first part are used. The training pairs follow, counted from 0 in each part, in blocks of
`stream_pairs / stream_parts`. Every block but a part's last is full, so its number determines its beginning. A shard
joins the blocks of one number, in the order of the parts. A pass ends when all parts have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np

from jax_transformer.config.data import DataConfig
from jax_transformer.data.corpus import held_out_counts
from jax_transformer.data.encoding import SplitEncoder, SplitReport
from jax_transformer.data.exchange import Block, Exchange, OnlyProcess, join_blocks
from jax_transformer.data.hub import OpenedStream, Unreachable, open_stream
from jax_transformer.data.tables import Pair
from jax_transformer.data.token_pairs import PairsInMemory, TokenPairs
from jax_transformer.data.tokenizers import Tokenizer

CHUNK = 10_000
"""Number of pairs whose text is in memory at once."""
RETRY_SECONDS = (1.0, 5.0, 25.0)
"""Seconds to wait before each retry. (The underlying library also retries single requests.)"""


class Shard(NamedTuple):
    """Holds training pairs of a stream as ids: consecutive pairs of each part, in the order of the parts."""

    start: int
    """Number of training pairs before this shard if no part had ended yet: a multiple of stream_pairs."""
    pairs: TokenPairs
    """The kept pairs, without text."""
    report: SplitReport
    """Counts of pairs read and dropped. Overlapping and duplicated pairs aren't detected."""


class TrainingStream:
    """Iterates over the training pairs of a streamed corpus, starting at any shard."""

    def __init__(
        self,
        config: DataConfig,
        tokenizers: tuple[Tokenizer, Tokenizer],
        revision: str,
        log: Callable[[str], None],
        exchange: Exchange | None = None,
    ) -> None:
        """Stores the settings; `log` is called with a line before each retry.

        `exchange` gives the parts that other processes read. None: this process reads all.
        """
        self._config, self._exchange = config, exchange or OnlyProcess()
        self._begin_pass = partial(_Pass, config, tokenizers, revision, log)

    def shards(self, start: int = 0) -> Iterator[Shard]:
        """Yields the shards of one pass from pair `start`, the beginning of a shard, and holds none of them.

        Raises:
          Unreachable: the dataset couldn't be read after several attempts; a later call may continue where this one
            stopped.
          CorpusError: the dataset has damaged or non-text content; with several processes, also if it couldn't be
            read.
        """
        reading, size = self._begin_pass(), self._config.stream_pairs // self._config.stream_parts
        going = list(range(self._config.stream_parts))
        while going:
            blocks = self._exchange.blocks(going, partial(reading.block, start=start // self._config.stream_parts))
            going = [part for part, block in zip(going, blocks, strict=True) if block.report.read == size]
            whole = join_blocks(blocks)
            del blocks
            if whole.report.read:
                yield Shard(start, *whole)
            del whole
            start += self._config.stream_pairs


class _Pass:
    """Reads each part of a stream once, block by block."""

    def __init__(
        self, config: DataConfig, tokenizers: tuple[Tokenizer, Tokenizer], revision: str, log: Callable[[str], None]
    ) -> None:
        self._config, self._tokenizers, self._revision, self._log = config, tokenizers, revision, log
        self._stream: OpenedStream | None = None
        self._pairs: dict[int, Iterator[Pair]] = {}

    def block(self, part: int, start: int) -> Block:
        """Returns the block of a part that begins at its pair `start`. The first call may start anywhere; later calls
        must continue where the previous one ended.

        Raises:
          Unreachable, CorpusError: see `TrainingStream.shards`.
        """
        attempts = 0
        while True:
            try:
                if part not in self._pairs:
                    self._pairs[part] = self._open(part, start)
                return self._encode(self._pairs[part])
            except Unreachable as error:
                if attempts == len(RETRY_SECONDS):
                    raise
                seconds = RETRY_SECONDS[attempts]
                attempts += 1
                self._stream = None
                self._pairs.pop(part, None)
                self._log(f"{error} Trying again in {seconds:g} s ({attempts} of {len(RETRY_SECONDS)}).")
                time.sleep(seconds)

    def _open(self, part: int, start: int) -> Iterator[Pair]:
        """Returns the training pairs of a part from `start` on."""
        self._stream = self._stream or open_stream(self._config, self._revision)
        splits = self._stream.splits
        held_out = sum(held_out_counts(self._config, splits).values()) if part == 0 else 0
        return splits["train"].part(part, self._config.stream_parts).pairs_from(held_out + start)

    def _encode(self, pairs: Iterator[Pair]) -> Block:
        writer = PairsInMemory()
        encoder = SplitEncoder(writer, "train", self._tokenizers, self._config)
        left = self._config.stream_pairs // self._config.stream_parts
        while left and (chunk := list(islice(pairs, min(CHUNK, left)))):
            nowhere = np.zeros(len(chunk), np.bool_)
            encoder.add(chunk, 0, nowhere, nowhere)
            left -= len(chunk)
        return Block(writer.pairs(self._config.max_length), encoder.report())
