"""Edits that replace tables together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from jax_transformer.proof.programs import Ref
from jax_transformer.proof.repair.bench import Bench
from jax_transformer.proof.repair.edits import Edit
from jax_transformer.proof.repair.sides import Side, is_one_number
from jax_transformer.proof.repair.sources import MOST_ASSIGNMENTS, Sources
from jax_transformer.proof.tape import Operand

MOST_TABLES = 3
"""Tables that are replaced together."""


class Tables:
    """Edits that replace tables together."""

    def __init__(self, bench: Bench, sources: Sources) -> None:
        self.bench, self.candidate, self.reference = bench, bench.candidate, bench.reference
        self.sources = sources

    def edits(self) -> Iterator[list[Edit]]:
        """Yields edits that replace all tables of the candidate alone by tables of the reference alone: cosines and
        sines of positions are wrong together. The first of the tables are replaced; else those that operations read."""
        ours, theirs = (self._own(side) for side in self.bench.sides)
        entries = {node: self.candidate.results[node].entry for node in ours}
        above = {node: self.candidate.above([entry]) for node, entry in entries.items()}
        first = [node for node in ours if not any(entries[other] in above[node] for other in ours if other != node)]
        last = [node for node in ours if not any(entries[node] in above[other] for other in ours if other != node)]
        yield from self._replaced(first, theirs)
        if last != first:
            yield from self._replaced(last, theirs)

    def _replaced(self, ours: Sequence[int], theirs: Sequence[int]) -> Iterator[list[Edit]]:
        if not 0 < len(ours) <= MOST_TABLES:
            return
        places = {
            node: tuple(
                Operand(number, place)
                for number in sorted(self.candidate.needed)
                for place, operand in enumerate(self.candidate.entry(number).operands)
                if self.candidate.node(operand) == node
            )
            for node in ours
        }
        for chosen in itertools.islice(itertools.permutations(theirs, len(ours)), MOST_ASSIGNMENTS):
            sources = [self.reference.results[other] for other in chosen]
            shapes = [self.candidate.index.arrays[node].shape for node in ours]
            by_node = [
                [Edit(places[node], source, order) for order in self._orders(source, shape)]
                for node, source, shape in zip(ours, sources, shapes, strict=True)
            ]
            yield from map(list, zip(*by_node, strict=False))  # the same layout for all tables of an edit

    def _orders(self, source: Ref, shape: tuple[int, ...]) -> list[np.ndarray | None]:
        """Returns possible orders of a table's elements in a shape: one table may have each column once, another
        twice."""
        own = self.reference.replay.values[source].shape
        if not shape or not own or math.prod(own[:-1]) != math.prod(shape[:-1]):
            return self.sources.orders(source, shape)[:1]
        places, ours, theirs = np.arange(math.prod(own)).reshape(*shape[:-1], own[-1]), shape[-1], own[-1]
        if theirs > ours and theirs % ours == 0:
            return [places[..., :ours], places[..., :: theirs // ours]]
        if ours > theirs and ours % theirs == 0:
            return [np.concatenate([places] * (ours // theirs), -1), np.repeat(places, ours // theirs, -1)]
        return self.sources.orders(source, shape)[:1]

    def _own(self, side: Side) -> list[int]:
        """Returns the constants that lost operations read and the other program lacks, without single numbers."""
        read = side.read_by(self.bench.lost[side is self.reference])
        return [
            node
            for node, ref in side.results.items()
            if node in read and side.replay.values[ref].known is not None
            if not is_one_number(side.index.arrays[node]) and not self.bench.is_shared(side, ref)
        ]
