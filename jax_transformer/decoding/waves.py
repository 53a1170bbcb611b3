"""Decode batches such that ended sentences leave: two batches of which half has ended go on as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from jax_transformer.decoding.generation import Generated, Search

MOST_WAITING = 2
"""Half-empty batches in memory at once, in a stream. With 8, a file takes 3 % fewer steps, and much more memory."""

Ended = list[tuple[int, Generated]]
"""Sentences that have ended at the same time, by number, each with its hypotheses [num_return, T] and their scores."""


@dataclass
class Wave:
    """Holds a batch while it is decoded."""

    search: Search
    sentences: list[int | None]
    """The number of each row's sentence. None: the row pads the batch, or its sentence has ended."""

    @property
    def size(self) -> int:
        """Returns the number of sentences that go on."""
        return sum(sentence is not None for sentence in self.sentences)

    def advance(self, column: int | None, size: int) -> Ended:
        """Decodes up to a column of the target, until the room is full, or until at most `size` sentences go on."""
        self.search.advance(column, size)
        sequences, scores = self.search.hypotheses()
        ended = [row for row in np.flatnonzero(self.search.has_ended) if self.sentences[row] is not None]
        found = [(self.sentences[row], Generated(sequences[row], scores[row])) for row in ended]
        for row in ended:
            self.sentences[row] = None
        return found  # type: ignore[return-value]

    def absorb(self, other: Wave) -> None:
        """Takes the sentences of another wave, which is at the same column, into free rows."""
        taken = [row for row, sentence in enumerate(other.sentences) if sentence is not None]
        free = [row for row, sentence in enumerate(self.sentences) if sentence is None][: len(taken)]
        self.search.take_rows(free, other.search, taken)
        for row, theirs in zip(free, taken, strict=True):
            self.sentences[row] = other.sentences[theirs]


def decode_in_waves(waves: Iterable[Wave], *, merge: bool) -> Iterator[Ended]:
    """Yields all sentences, each when it has ended.

    Args:
      waves: those of equal shapes follow each other.
      merge: whether a wave stops when half of its rows are free, until another one of its shape has come as far.
    """
    for (rows, _), alike in groupby(waves, key=lambda wave: wave.search.shape):
        half = rows // 2 if merge else 0
        waiting: dict[int, Wave] = {}  # by column
        for wave in alike:
            yield from _decode(wave, waiting, half)
            yield from _decode_waiting(waiting, half, MOST_WAITING)
        yield from _decode_waiting(waiting, half, 0)


def _decode_waiting(waiting: dict[int, Wave], half: int, most: int) -> Iterator[Ended]:
    """Goes on with the waves that are behind, each to the column of the next, until at most `most` wait."""
    while len(waiting) > most:
        wave = waiting.pop(min(waiting))
        yield wave.advance(min(waiting, default=None), 0)
        yield from _decode(wave, waiting, half)


def _decode(wave: Wave, waiting: dict[int, Wave], half: int) -> Iterator[Ended]:
    """Decodes until at most half of the sentences go on and no wave waits at the same column."""
    while wave.size:
        if wave.size > half:
            yield wave.advance(None, half)
        elif other := waiting.pop(wave.search.length, None):
            wave.absorb(other)
        else:
            waiting[wave.search.length] = wave
            return
