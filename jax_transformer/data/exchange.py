"""Exchanges blocks of a streamed corpus between the processes of a run, so that each reads only its share.

A block is the contribution of one part of the stream to a shard, as ids. The exchange uses files instead of the
devices, because it runs in the prefetching thread, at different times in different processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from jax_transformer.data.encoding import SplitReport, add_reports
from jax_transformer.data.text_files import CorpusError
from jax_transformer.data.token_pairs import SIDES, Sentences, TokenPairs
from jax_transformer.runtime.files import atomic_write

POLL_SECONDS = 0.05
WAIT_SECONDS = 24 * 3600
"""Time limit for a block of another process, which may first have to skip a long beginning of its part. (Processes also
watch each other, so that the death of one is noticed at once.)"""


class Block(NamedTuple):
    """Holds consecutive pairs of one part of a stream, or of several parts, as ids."""

    pairs: TokenPairs
    """The kept pairs, without text."""
    report: SplitReport
    """Counts of pairs read and dropped. Overlapping and duplicated pairs aren't detected."""


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Concatenates one or more blocks."""
    if len(blocks) == 1:
        return blocks[0]
    sides = zip(*((block.pairs.source_sentences, block.pairs.target_sentences) for block in blocks), strict=True)
    source, target = (
        Sentences.without_text([some.ids for some in side], [np.diff(some.offsets) for some in side]) for side in sides
    )
    pairs = TokenPairs(source, target, blocks[0].pairs.max_length)
    return Block(pairs, add_reports([block.report for block in blocks]))


def save_block(block: Block, path: Path) -> None:
    """Writes a block to a file."""
    arrays: dict[str, Any] = {
        f"{side}_{name}": array
        for side, sentences in zip(SIDES, (block.pairs.source_sentences, block.pairs.target_sentences), strict=True)
        for name, array in (("ids", sentences.ids), ("lengths", np.diff(sentences.offsets)))
    }
    report = json.dumps(dataclasses.asdict(block.report))
    with path.open("wb") as file:
        np.savez(file, max_length=block.pairs.max_length, report=np.array(report), **arrays)


def load_block(path: Path) -> Block:
    """Reads a block that `save_block` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        source, target = (
            Sentences.without_text([stored[f"{side}_ids"]], [stored[f"{side}_lengths"]]) for side in SIDES
        )
        pairs = TokenPairs(source, target, int(stored["max_length"]))
        counts = json.loads(str(stored["report"]))
    return Block(pairs, SplitReport.from_dict(counts))


class Exchange(Protocol):
    """Gives every process of a run the blocks of all parts, although only one process reads each part."""

    def blocks(self, parts: Sequence[int], read: Callable[[int], Block]) -> list[Block]:
        """Returns the next block of each part, in the order of `parts`; calls `read` only for this process's parts.

        Every process must make the same calls, with the same parts.

        Raises:
          CorpusError: a part can't be read. All processes raise the error of the first such part.
        """

    def close(self) -> None:
        """Stops waiting for other processes. Call it once this process needs no more blocks, even during a wait."""


class OnlyProcess:
    """Reads all parts in this process."""

    def blocks(self, parts: Sequence[int], read: Callable[[int], Block]) -> list[Block]:
        """See `Exchange`."""
        return [read(part) for part in parts]

    def close(self) -> None:
        """See `Exchange`."""


class FileExchange:
    """Exchanges blocks through a directory that all processes share. Process k of n reads the parts k, k + n, k + 2n, …

    Each call of `blocks` is a round. A process publishes each of its blocks, or a failure in its place, under the
    number of the round, and removes it once every process has recorded that it read the round. The last process to
    close removes the directory.
    """

    def __init__(self, directory: Path, number: int, count: int) -> None:
        """Creates the directory, if no process has. It must be new and used only by these processes.

        Args:
          directory: the same path in all processes.
          number: number of this process.
          count: number of processes.
        """
        self._directory, self._number, self._count = directory, number, count
        self._round = 0
        self._published: deque[tuple[int, Path]] = deque()
        self._closed = threading.Event()
        directory.mkdir(parents=True, exist_ok=True)

    def blocks(self, parts: Sequence[int], read: Callable[[int], Block]) -> list[Block]:
        """Returns the next block of each part; see `Exchange`.

        Raises:
          CorpusError: see `Exchange`.
          TimeoutError: another process published nothing for a day.
        """
        self._round += 1
        own = dict(self._publish(parts, read))
        blocks = [own[part] if part in own else self._receive(part) for part in parts]
        self._note_round()
        self._remove_read()
        return blocks

    def close(self) -> None:
        """Stops waiting, and removes the directory if all other processes have closed, too."""
        if self._closed.is_set():
            return
        self._closed.set()
        with contextlib.suppress(OSError):  # the next start removes leftovers
            (self._directory / f"closed-{self._number}").touch()
            if {f"closed-{number}" for number in range(self._count)} <= set(os.listdir(self._directory)):
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory.parent.rmdir()

    def _publish(self, parts: Sequence[int], read: Callable[[int], Block]) -> Iterator[tuple[int, Block]]:
        """Yields the blocks of this process's parts, up to the first that can't be read."""
        for part in parts:
            if part % self._count == self._number:
                try:
                    block = read(part)
                except CorpusError as error:
                    with self._new_file(f"{self._name(part)}.failed") as path:
                        path.write_text(str(error), encoding="utf-8")
                    return  # received in its turn, since an earlier part of another process may have failed, too
                with self._new_file(f"{self._name(part)}.npz") as path:
                    save_block(block, path)
                yield part, block

    @contextlib.contextmanager
    def _new_file(self, name: str) -> Iterator[Path]:
        with atomic_write(self._directory / name, durable=True) as temporary:
            yield temporary
        self._published.append((self._round, self._directory / name))

    def _receive(self, part: int) -> Block:
        """Waits for a block of this round."""
        deadline = time.monotonic() + WAIT_SECONDS
        block, failure = (self._directory / f"{self._name(part)}.{suffix}" for suffix in ("npz", "failed"))
        while True:
            names = os.listdir(self._directory)  # also refreshes the cache of a network file system
            if failure.name in names:
                raise CorpusError(failure.read_text(encoding="utf-8"))
            if block.name in names:
                return load_block(block)
            if self._closed.wait(POLL_SECONDS):
                raise RuntimeError("the exchange was closed while a block was awaited")
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"stream: expected part {part + 1} from process {part % self._count} within {WAIT_SECONDS} s; it "
                    "didn't come"
                )

    def _name(self, part: int) -> str:
        return f"{self._round}-{part}"

    def _note_round(self) -> None:
        with atomic_write(self._directory / f"read-{self._number}") as temporary:
            temporary.write_text(str(self._round), encoding="utf-8")

    def _remove_read(self) -> None:
        """Removes the blocks of this process that all have read."""
        done = min(self._last_round(number) for number in range(self._count))
        while self._published and self._published[0][0] <= done:
            self._published.popleft()[1].unlink(missing_ok=True)

    def _last_round(self, number: int) -> int:
        """Returns the last round that a process has recorded as read."""
        try:
            return int((self._directory / f"read-{number}").read_text(encoding="utf-8"))
        except OSError:
            return 0
