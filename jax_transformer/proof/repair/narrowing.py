"""Narrow an edit down to the operands that its value is computed from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from jax_transformer.programs.sites import Site
from jax_transformer.proof.index import fingerprint
from jax_transformer.proof.programs import Ref, UnknownOperation
from jax_transformer.proof.repair.bench import Bench
from jax_transformer.proof.repair.edits import Edit, ordered, ordered_as, same
from jax_transformer.proof.repair.kinds import kind_of, rank_of
from jax_transformer.proof.repair.places import JOINS
from jax_transformer.proof.repair.sources import MOST_ASSIGNMENTS, Sources
from jax_transformer.proof.tape import Operand, Stale

MOST_NARROWED = 800
"""Maximum number of operands to try in place of those that an edit's value is computed from."""
MOST_BEHIND = 2
"""Operations behind a value that the reference has, of which the operands are tried."""
MOST_WEIGHTS = 3
"""Weights that are wrong together, such as the kernel and the bias of a layer."""


class Narrowing:
    """Narrows an edit down to the operands that its value is computed from."""

    def __init__(self, bench: Bench, sources: Sources) -> None:
        self.bench, self.candidate, self.reference = bench, bench.candidate, bench.reference
        self.sources = sources

    def narrowed(self, edit: Edit, is_enough: Callable[[Sequence[Edit]], bool]) -> Iterator[list[Edit]]:
        """Yields edits of operands that make the candidate compute an edit's value itself: of one operand, or of
        several that read other weights. Of a weight, it is enough that what follows is right: outputs may not depend on
        all of the value, such as the bias of keys.

        Args:
          is_enough: whether edits do as much as the edit.
        """
        array, target = self.reference.array(edit.source), edit.place
        if isinstance(target, Operand):
            target = self.candidate.entry(target.entry).operands[target.number]
        if array is None:
            return
        wanted, read = ordered(array, edit.order), self._joined(edit.source) | self._reading(array)
        above, tried = self.candidate.above([target.entry]), 0
        places = [*self._computed_from(target)]
        for place in places:
            entries = above.intersection(self.candidate.below([place.entry]))
            for found in self._operands(place, read):
                tried += 1
                if tried > MOST_NARROWED:
                    break
                is_done = self._computes([found], target, entries, wanted)
                if is_done or (self._reads_other_weight(found) and is_enough([found])):
                    yield [found]
                    break
        for several in self._weights_replaced(places, read):
            entries = above.intersection(self.candidate.below(each.place.entry for each in several))
            if self._computes(several, target, entries, wanted):
                yield several
                break

    def narrowest(self, edit: Edit, score: int) -> list[Edit]:
        """Returns the simplest narrowing of one of these edits that recovers as much; a replaced number is replaced at
        all its places in the line."""

        def is_enough(edits: Sequence[Edit]) -> bool:
            outcome = self.bench.probe(*edits)
            return outcome.is_same or outcome.recovered - sum(each.cost for each in edits) >= score

        found = [[edit]]
        for edits in self.narrowed(edit, is_enough):
            wides = ([self._at_line(edits[0])], edits) if len(edits) == 1 else (edits,)
            found += [*itertools.islice(filter(is_enough, wides), 1)]
        return min(found, key=partial(rank_of, self.bench))

    def _at_line(self, edit: Edit) -> Edit:
        """Returns an edit of a number at all places of its line that read it."""
        if kind_of(self.bench, edit) != "constant" or not isinstance(edit.place, Operand):
            return edit
        side, node = self.candidate, self.bench.value_at(edit.place).node
        entry = side.entry(edit.place.entry)
        more = [
            Operand(number, edit.place.number)
            for number in sorted(side.needed)
            if (side.entry(number).name, side.entry(number).line) == (entry.name, entry.line)
            and side.node(side.entry(number).operands[edit.place.number]) == node
        ]
        return replace(edit, places=(edit.place, *(each for each in more if each != edit.place)))

    def _reads_other_weight(self, edit: Edit) -> bool:
        ours = self.candidate.weight(self.bench.value_at(edit.place))
        theirs = self.reference.weight(self.reference.replay.values[edit.source])
        return bool(ours and theirs) and ours != theirs

    def _computes(self, edits: Iterable[Edit], target: Ref, entries: Collection[int], wanted: np.ndarray) -> bool:
        try:
            return same(self.bench.at.array(self.bench.with_edits(edits, entries).value(target)), wanted)
        except (Stale, UnknownOperation, ArithmeticError, ValueError):
            return False

    def _computed_from(self, target: Ref) -> Iterator[Operand]:
        """Yields the operands that a value is computed from, from the nearest on: back to values that the reference
        has, and behind these a few operations more, which may be right for another reader."""
        waiting, seen = [(target, MOST_BEHIND)], {target.entry}
        while waiting:
            ref, rest = waiting.pop(0)
            for number, operand in enumerate(self.candidate.entry(ref.entry).operands):
                if self.candidate.replay.values[operand].kind != "float":
                    continue
                yield Operand(ref.entry, number)
                is_maker = self.candidate.is_maker(operand.entry)
                left = rest - (is_maker and self.bench.is_shared(self.candidate, operand))
                if left >= 0 and operand.entry not in seen:
                    seen.add(operand.entry)
                    waiting.append((operand, left))

    def _operands(self, place: Operand, read: Mapping[int | None, Site]) -> Iterator[Edit]:
        """Yields the reference's values that may be in place of an operand: those that it reads there, and of a value
        that is only moved, the same elements in another order."""
        value = self.bench.value_at(place)
        current = self.bench.at.array(value)
        if current is None:
            return
        is_moved = not self.candidate.is_maker(place.entry)
        own = {*self.reference.index.equal(current)} if is_moved else set()
        for source in self.sources.fitting(value):
            site = read.get(self.reference.node(source))
            is_small = self.bench.cost(source) <= self.sources.most_cost
            if is_small and (site is not None or self.reference.node(source) in own):
                for order in self.sources.orders(source, value.shape):
                    if not same(current, ordered_as(self.reference.array(source), order)):
                        yield Edit((place,), source, order, self.bench.cost(source), site=site)

    def _weights_replaced(self, places: Sequence[Operand], read: Mapping[int | None, Site]) -> Iterator[list[Edit]]:
        """Yields edits of several operands that read other weights than the reference, such as the scale and the offset
        of another norm."""
        ours = {place: self.candidate.weight(self.bench.value_at(place)) for place in places}
        ours = {place: name for place, name in ours.items() if name and self.candidate.is_maker(place.entry)}
        sources = itertools.chain.from_iterable(self.sources.by_size.values())
        theirs = [source for source in sources if self.reference.node(source) in read]
        named = {source: self.reference.weight(self.reference.replay.values[source]) for source in theirs}
        right = {*named.values()} - {*ours.values(), ""}
        wrong = [name for name in dict.fromkeys(ours.values()) if name not in named.values()][: len(right)]
        if not 1 < len(wrong) == len(right) <= MOST_WEIGHTS:
            return
        for names in itertools.permutations(sorted(right)):
            chosen = dict(zip(wrong, names, strict=True))
            options = [
                [
                    Edit((place,), source, order, self.bench.cost(source), site=read[self.reference.node(source)])
                    for source in theirs
                    if named[source] == chosen[name] and self.reference.replay.values[source].size == size
                    for order in self.sources.orders(source, self.bench.value_at(place).shape)
                ]
                for place, name in ours.items()
                if name in wrong
                for size in [self.bench.value_at(place).size]
            ]
            yield from map(list, itertools.islice(itertools.product(*options), MOST_ASSIGNMENTS))

    def _reading(self, wanted: np.ndarray) -> dict[int | None, Site]:
        """Returns the operands of the reference's lost operations that an array is computed by → sites."""
        prints, bits = fingerprint(wanted), 0
        for number in self.bench.lost[1]:
            if self.bench.lost_print(number) == prints:
                bits |= self.bench.lost[1][number]
        numbers = [number for place, number in enumerate(sorted(self.bench.lost[1])) if bits >> place & 1]
        return self.reference.read_by(numbers)

    def _joined(self, source: Ref) -> dict[int | None, Site]:
        """Returns the operands of the calls that join a value, through moves → sites; none if it isn't joined."""
        found = dict[int | None, Site]()
        waiting = [source.entry] if self.reference.entry(source.entry).name in JOINS else []
        while waiting:
            entry = self.reference.entry(waiting.pop())
            for ref in entry.operands:
                found.setdefault(self.reference.node(ref), entry.site)
                waiting += [] if self.reference.is_maker(ref.entry) else [ref.entry]
        return found
