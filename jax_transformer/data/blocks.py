"""Blocks of a streamed corpus: the pairs that one part gives to a shard, as ids, in memory or in a file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from jax_transformer.data.report import SplitReport, add_reports
from jax_transformer.data.token_pairs import SIDES, Sentences, TokenPairs


class Block(NamedTuple):
    """Holds consecutive pairs of one part of a stream, or of several parts, as ids."""

    pairs: TokenPairs
    """The kept pairs, without text."""
    report: SplitReport
    """Counts of pairs read and dropped. Overlapping and duplicated pairs aren't detected."""


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
        source, target = map(_without_text, self._ids, self._lengths)
        return TokenPairs(source, target, max_length)


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Returns the pairs of all blocks, of which there is at least one, in their order."""
    if len(blocks) == 1:
        return blocks[0]
    sides = zip(*((block.pairs.source_sentences, block.pairs.target_sentences) for block in blocks), strict=True)
    source, target = (
        _without_text([some.ids for some in side], [np.diff(some.offsets) for some in side]) for side in sides
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
    """Returns the block that `save_block` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        source, target = (_without_text([stored[f"{side}_ids"]], [stored[f"{side}_lengths"]]) for side in SIDES)
        pairs = TokenPairs(source, target, int(stored["max_length"]))
        counts = json.loads(str(stored["report"]))
    return Block(pairs, SplitReport.from_dict(counts))


def _without_text(ids: Sequence[npt.NDArray[np.int32]], lengths: Sequence[npt.NDArray[np.int64]]) -> Sentences:
    """Returns sentences of these ids end to end, and of these lengths, without texts."""
    return Sentences(
        np.concatenate([np.zeros(0, np.int32), *ids]),
        np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths])),
        np.zeros(0, np.uint8),
        np.zeros(1, np.int64),
    )
