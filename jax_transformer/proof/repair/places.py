"""Find the places of a candidate at which a value may be wrong."""

from __future__ import annotations

from collections.abc import Iterator

from jax_transformer.proof.programs import Ref
from jax_transformer.proof.repair.bench import Bench
from jax_transformer.proof.tape import Operand

MOST_DEPTH = 8
"""Lost operations before a place."""
MOST_RIGHT = 4
"""Right operations between a value, behind which others may be missing, and the first lost one, such as those of
another norm."""
JOINS = ("concatenate", "put")
"""Calls that join values, each of which may be wrong."""


class Places:
    """Finds the places of a candidate at which a value may be wrong."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.candidate, self.reference = bench, bench.candidate, bench.reference

    def all(self) -> list[tuple[tuple[Ref | Operand, ...], int, bool]]:
        """Returns the places where a value may be wrong, with the number of lost operations before each, and whether it
        is shared: results and operands of lost makers, and outputs; and together, the places where the first lost
        makers read one value, which others may read rightly."""
        found: dict[Ref | Operand, tuple[int, bool]] = {}
        ends = {self.candidate.outputs[name] for name in self.bench.different}
        values, made = self.candidate.replay.values, {*self.bench.made}
        for number, bits in self.bench.lost[0].items():
            entry, ref, is_maker = self.candidate.entry(number), Ref(number, 0), self.candidate.is_maker(number)
            depth = bits.bit_count() - is_maker
            is_place = is_maker or entry.name in JOINS or ref in ends
            if depth > MOST_DEPTH or not is_place or [each.kind for each in entry.results] != ["float"]:
                continue
            found[ref] = depth, False
            for place, operand in enumerate(entry.operands):
                if values[operand].kind == "float":
                    is_shared = self.bench.is_shared(self.candidate, operand)
                    found[Operand(number, place)] = depth, is_shared
                    for each in self._moved(operand) if is_shared else ():
                        found.setdefault(each, (depth, True))
        for ref, depth in self.right_before():
            found.setdefault(ref, (depth, True))
        kept: list[tuple[tuple[Ref | Operand, ...], int, bool]]
        kept = [((place,), *rest) for place, rest in found.items() if place not in made]
        kept += [(places, 0, True) for places in self._read_first() if made.isdisjoint(places)]
        return sorted(kept, key=lambda each: (each[1], -len(each[0])))

    @property
    def _first(self) -> set[int]:
        """Returns the lost makers of the candidate whose operands are right."""
        first = (number for number, bits in self.bench.lost[0].items() if bits.bit_count() == 1)
        return {number for number in first if self.candidate.is_maker(number)}

    def _read_first(self) -> list[tuple[Ref | Operand, ...]]:
        """Returns the places where several of the first lost makers read one value, by value."""
        first, leads = self._first, dict[int, bool]()  # whether all that reads a value are first makers, through moves
        for number in sorted(self.candidate.needed, reverse=True):
            readers = self.candidate.readers.get(number, ())
            is_move = not self.candidate.is_maker(number)
            leads[number] = bool(readers) and all(leads[each] for each in readers) if is_move else number in first
        found: dict[Ref, list[Ref | Operand]] = {}
        for number in sorted(number for number, is_first in leads.items() if is_first):
            for place, ref in enumerate(self.candidate.entry(number).operands):
                if self.candidate.is_maker(ref.entry) or not leads[ref.entry]:
                    found.setdefault(ref, []).append(Operand(number, place))
        return [tuple(places) for places in found.values() if len(places) > 1]

    def right_before(self) -> Iterator[tuple[Ref, int]]:
        """Yields results of right makers before lost ones, and how many right ones are between."""
        level, seen = [*self._first], {*self.bench.lost[0]}
        for depth in range(MOST_RIGHT + 1):
            below, level = level, []
            while below:
                for ref in self.candidate.entry(below.pop()).operands:
                    if ref.entry not in seen and self.candidate.replay.values[ref].known is None:
                        seen.add(ref.entry)
                        (level if self.candidate.is_maker(ref.entry) else below).append(ref.entry)
            if depth:
                yield from ((Ref(number, 0), depth) for number in level if self.candidate.readers.get(number))

    def _moved(self, ref: Ref) -> Iterator[Ref]:
        """Yields a value, and the values that it is moved from, up to the operation that makes it."""
        waiting = [ref]
        while waiting:
            ref = waiting.pop()
            value = self.candidate.replay.values[ref]
            if value.kind == "float" and value.known is None:
                yield ref
                waiting += [] if self.candidate.is_maker(ref.entry) else self.candidate.entry(ref.entry).operands
