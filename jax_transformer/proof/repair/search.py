"""Probe edits, from the cheapest on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from jax_transformer.programs.sites import Frame, own_frames
from jax_transformer.proof.programs import Ref
from jax_transformer.proof.repair.bench import Bench
from jax_transformer.proof.repair.edits import Edit, ordered, same
from jax_transformer.proof.repair.kinds import rank, rank_of
from jax_transformer.proof.repair.narrowing import Narrowing
from jax_transformer.proof.repair.places import Places
from jax_transformer.proof.repair.sides import Side
from jax_transformer.proof.repair.sources import Sources
from jax_transformer.proof.repair.tables import Tables
from jax_transformer.proof.tape import Operand

MOST_PROBES = 6000
"""Edits that are tried for all causes."""
MOST_OF_CAUSE = 2000
"""The same for one cause."""
MOST_PROOFS = 16
"""Edits with which a proof is tried."""
MOST_WIDE = 4
"""Edits that are narrowed."""


class Found(NamedTuple):
    whole: list[list[Edit]]
    """Edits after which the outputs are the reference's, from the simplest on."""
    part: list[Edit]
    """The edits of one cause that recover the most, if they recover more than comes with them."""
    is_again: bool = False
    """Whether they are those that were made before, in a further layer."""


class Search:
    """Probes edits of a candidate, from the cheapest on."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.candidate, self.reference = bench, bench.candidate, bench.reference
        self.sources = Sources(bench)
        self.places = Places(bench)
        self.narrowing = Narrowing(bench, self.sources)

    def search(self) -> Found:
        """Probes edits, from the cheapest on."""
        together = [edits for edits in Tables(self.bench, self.sources).edits() if self.bench.is_whole(edits)]
        if together:
            return Found([[*map(self.bench.settled, edits)] for edits in together], [])
        again = self._again()
        if again:
            settled = [*map(self.bench.settled, again)]
            return Found([settled] if self.bench.probe(*again).is_same else [], settled, True)
        whole: list[Edit] = []
        part: tuple[int, Edit | None] = (0, None)
        most: int | None = None
        for level, edit in itertools.islice(self._edits(), max(0, min(MOST_OF_CAUSE, MOST_PROBES - self.bench.probes))):
            self.bench.probes += 1
            if most is not None and level > most:
                break
            outcome = self.bench.probe(edit)
            if outcome.is_same:
                whole.append(edit)
                most = level if most is None else most
            elif outcome.recovered - edit.cost > part[0]:
                part = outcome.recovered - edit.cost, edit
        if not whole and part[1] is not None:
            narrowest = [*map(self.bench.settled, self.narrowing.narrowest(part[1], part[0]))]
            return Found([narrowest] if self.bench.probe(*narrowest).is_same else [], narrowest)
        whole.sort(key=partial(rank, self.bench))
        narrowed = [each for edit in whole[:MOST_WIDE] for each in self.narrowing.narrowed(edit, self._mends)]
        found = [[edit] for edit in whole] + [edits for edits in narrowed if self._mends(edits)]
        found.sort(key=partial(rank_of, self.bench))
        return Found([[*map(self.bench.settled, edits)] for edits in found[:MOST_PROOFS]], [])

    def _mends(self, edits: Sequence[Edit]) -> bool:
        return self.bench.probe(*edits).is_same

    def _edits(self) -> Iterator[tuple[int, Edit]]:
        """Yields edits, and how many lost operations come with each and are before it."""
        found: list[tuple[int, Edit]] = []
        behind = {ref for ref, _ in self.places.right_before()}
        for places, depth, is_shared in self.places.all():
            value = self.bench.value_at(places[0])
            current = self.bench.at.array(value)
            for source in self.sources.by_size.get(value.size, ()):
                cost, array = self.bench.cost(source), self.reference.array(source)
                if array is None or (cost == 0 and (is_shared or isinstance(places[0], Operand))):
                    continue  # shared values have other readers too, so only operands are replaced by narrowing
                is_far = cost > self.sources.most_cost or places[0] in behind
                if is_far and not (is_shared and self.bench.is_above(value, source)):
                    continue
                for order in self.sources.orders(source, value.shape):
                    if not same(current, ordered(array, order)):
                        found.append((depth + cost, Edit(places, source, order, cost)))
        yield from sorted(found, key=lambda each: each[0])

    def _again(self) -> list[Edit]:
        """Returns the edit that was made before, in the next layer that runs its line; [] if there is none."""
        if not self.bench.edits:
            return []
        before, read = self.bench.edits[-1], self.reference.read_by(self.bench.lost[1])
        for places in self._places_again(before):
            value = self.bench.value_at(places[0])
            if before.order is not None and before.order.shape != value.shape:
                continue
            best: tuple[int, list[Edit]] = (0, [])
            for source in self.sources.by_size.get(value.size, ()):
                is_alike = self._called_at(self.reference, source) == self._called_at(self.reference, before.source)
                cost, own = self.bench.cost(source), self.reference.replay.values[source]
                site = None if before.site is None else read.get(own.node)
                if not is_alike or cost > before.cost or (before.site is None) != (site is None):
                    continue
                if before.order is None and own.shape != value.shape:
                    continue
                edit = replace(before, places=places, source=source, cost=cost, site=site, own={})
                score = self.bench.probe(edit).recovered - cost
                best = (score, [edit]) if score > best[0] else best
            if best[1]:
                return best[1]
        return []

    def _places_again(self, before: Edit) -> Iterator[tuple[Ref | Operand, ...]]:
        """Yields the places of an edit's line, first those that the same calls lead to; of an operand behind right
        values, these alone."""

        def alike(groups: Iterable[tuple[Ref | Operand, ...]], read: Callable[[Any], Any]) -> list[Any]:
            return [each for each in groups if [*map(read, each)] == [*map(read, before.places[: len(each)])]]

        places = [places for places, *_ in self.places.all()]
        of_line = alike(places, partial(self._called_at, self.candidate))
        yield from alike([*of_line, *self._operands_again(before)], self._calls_of)
        yield from of_line

    def _operands_again(self, before: Edit) -> list[tuple[Ref | Operand, ...]]:
        """Returns the operands like that of an edit behind right values."""
        if not isinstance(before.place, Operand) or before.site is None:
            return []
        operands = (Operand(number, before.place.number) for number in sorted(self.candidate.needed))
        made = {*self.bench.made}
        call = self._called_at(self.candidate, before.place)
        return [(each,) for each in operands if self._called_at(self.candidate, each) == call and each not in made]

    def _calls_of(self, place: Ref | Operand) -> list[Frame]:
        return own_frames(self.candidate.entry(place.entry).site)

    def _called_at(self, side: Side, place: Ref | Operand) -> tuple[Any, ...]:
        """Returns what tells a place from those of other lines: its call, and the framework's operation."""
        entry = side.entry(place.entry)
        is_operand, site = isinstance(place, Operand), entry.site
        return is_operand, place.number, entry.name, site.operation, site.line
