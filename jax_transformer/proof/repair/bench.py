"""Probe and prove edits of a candidate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.proof.building import Builder
from jax_transformer.proof.deciding import Task, decide, drawn
from jax_transformer.proof.index import fingerprint
from jax_transformer.proof.programs import Ref, UnknownOperation, Value
from jax_transformer.proof.repair.causes import Cause
from jax_transformer.proof.repair.edits import Edit, Moved, same
from jax_transformer.proof.repair.sides import Side, Values, is_one_number
from jax_transformer.proof.tape import Operand, Replay, Source, Stale

MOST_MISSES = 12
"""Maximum number of consecutive operations after an edit that disagree with the reference."""


class Outcome(NamedTuple):
    recovered: int
    """How many of the reference's lost values come out after an edit."""
    is_same: bool
    """Whether all outputs are the reference's."""


class Bench:
    """A candidate, with edits, and its reference, on which more edits are probed."""

    def __init__(self, task: Task) -> None:
        self.task = task
        domains, (ours, theirs) = drawn(task, [0])
        self.at = Values(domains[0], {**theirs, **ours})
        self.reference = Side(self.at, task.reference.tape)
        self.wanted = self._aligned(self.reference.outputs)
        self.probes = 0
        """Edits that were tried."""
        self._follow: dict[int, set[int]] = {}
        """Values → the reference's entries that follow from their elements."""
        self.edit([])

    def edit(self, edits: Sequence[Edit]) -> None:
        """Edits the original candidate."""
        self.candidate = self._edited(edits)
        self.edits = edits
        self.sides = self.candidate, self.reference
        self._shared: dict[tuple[bool, int], bool] = {}
        outputs = self.candidate.outputs
        self.named = [name for name in self.task.candidate.outputs if name in outputs and name in self.wanted]
        self.different = [name for name in self.named if not self._is_right(self.candidate, name)]
        self._learn_orders()
        for name in ("lost", "_lost_prints"):
            self.__dict__.pop(name, None)

    def _edited(self, edits: Sequence[Edit]) -> Side:
        return Side(self.at, self.task.candidate.tape, self._sources_of(edits))

    def _sources_of(self, edits: Sequence[Edit]) -> dict[Ref | Operand, Source]:
        """Returns the sources of edits."""
        return {place: partial(self._put, edit) for edit in edits for place in edit.places}

    def _put(self, edit: Edit, builder: Any, read: Callable[[Ref], Value]) -> Value:
        """Returns the source of an edit, computed as the reference does from values of the candidate."""
        if edit.kept is not None:
            return read(edit.kept)
        own: dict[Ref | Operand, Source] = {ref: partial(moved.put, read) for ref, moved in edit.own.items()}
        value = Replay(self.reference.tape, builder, own).value(edit.source)
        return value if edit.order is None else builder.take(value, edit.order)

    def _probed(self, edit: Edit, builder: Any, read: Callable[[Ref], Value]) -> Value:
        """Returns the source of an edit as the reference has it."""
        value = self.reference.replay.values[edit.source]
        return value if edit.order is None else builder.take(value, edit.order)

    def settled(self, edit: Edit) -> Edit:
        """Rewrites an edit to compute its source from earlier values of the candidate."""
        own, waiting, seen = dict[Ref, Moved](), [edit.source], set[Ref]()
        first, is_closed = min(place.entry for place in edit.places), True
        while waiting:
            ref = waiting.pop()
            if ref in seen:
                continue
            seen.add(ref)
            moved = self.own_value(self.reference.array(ref), first) if self.is_shared(self.reference, ref) else None
            if moved is not None:
                own[ref] = moved
            else:
                waiting += self.reference.entry(ref.entry).operands
                is_known = self.reference.replay.values[ref].known is not None
                is_closed &= is_known or not self.is_shared(self.reference, ref)
        return replace(edit, own=own, is_closed=is_closed)

    def own_value(self, array: np.ndarray | None, first: int) -> Moved | None:
        """Returns the candidate's value before an entry that is an array, in an order; None if it has none."""
        if array is None:
            return None
        for key in self.candidate.index.equal(array):
            ref = self.candidate.results[int(key)]
            if ref.entry < first:
                if same(self.candidate.index.arrays[key], array):
                    return Moved(ref, None)
                order = self.candidate.index.order(array, key)
                if order is not None:
                    return Moved(ref, order)
        return None

    def _is_right(self, side: Side, name: str) -> bool:
        return same(side.array(side.outputs[name]), self.wanted[name])

    def without_idle(self, made: Sequence[tuple[Edit, Cause]]) -> list[tuple[Edit, Cause]]:
        """Removes the edits that the reference's outputs don't need."""
        kept = list(made)
        for each in made:
            others = [other for other in kept if other is not each]
            is_closed = all(edit.is_closed for edit, _ in others)
            if is_closed and self._are_right(self._edited([edit for edit, _ in others])):
                kept = others
        return kept

    def _are_right(self, side: Side) -> bool:
        return all(self._is_right(side, name) for name in self.named)

    def _aligned(self, outputs: Mapping[str, Ref]) -> Mapping[str, Any]:
        arrays = {name: self.reference.array(ref) for name, ref in outputs.items()}
        return self.task.align({name: array for name, array in arrays.items() if array is not None})

    def _learn_orders(self) -> None:
        """Notes in which orders the programs have the values that they share."""
        for node in self.reference.results:
            array = self.reference.index.arrays[node]
            for key in self.candidate.index.equal(array):
                if self.candidate.index.arrays[key].shape != array.shape or key != node:
                    self.reference.index.order(self.candidate.index.arrays[key], node)

    def is_shared(self, side: Side, ref: Ref) -> bool:
        """Returns whether the other program has all elements of a value, or it isn't a float."""
        node = side.node(ref)
        if node is None:
            return True
        key = side is self.candidate, node
        if key not in self._shared:
            self._shared[key] = self._has(self.sides[side is self.candidate], side.array(ref))
        return self._shared[key]

    def _has(self, other: Side, array: np.ndarray | None) -> bool:
        if array is None:
            return False
        if is_one_number(array):
            return not array.size or int(array.flat[0]) in other.numbers
        return bool(other.index.equal(array) or other.index.holding(array))

    @property
    def made(self) -> Iterator[Ref | Operand]:
        """Yields the places of the edits that were made."""
        return (place for edit in self.edits for place in edit.places)

    def is_above(self, value: Value, source: Ref) -> bool:
        """Returns whether the reference computes a source from a value."""
        node, array = value.node or -1, self.at.array(value)
        if node not in self._follow:
            keys = [] if array is None else self.reference.index.equal(array)
            self._follow[node] = {*self.reference.below(self.reference.results[int(key)].entry for key in keys)}
        return source.entry in self._follow[node]

    @cached_property
    def lost(self) -> tuple[dict[int, int], dict[int, int]]:
        """Returns the lost entries of both programs → which makers among them they follow from, themselves included, as
        bits."""
        names = self.different
        theirs = [ref for name, ref in self.reference.outputs.items() if name in names]
        theirs = theirs or [*self.reference.outputs.values()]
        ours = [self.candidate.outputs[name] for name in names]
        return self._lost(self.candidate, ours), self._lost(self.reference, theirs)

    def _lost(self, side: Side, outputs: Sequence[Ref]) -> dict[int, int]:
        found, waiting = set[int](), [*outputs]
        while waiting:
            ref = waiting.pop()
            if ref.entry not in found and (ref in outputs or not self.is_shared(side, ref)):
                found.add(ref.entry)
                waiting += side.entry(ref.entry).operands
        bits: dict[int, int] = {}
        for place, number in enumerate(sorted(found)):
            own = 1 << place if side.is_maker(number) else 0
            for ref in side.entry(number).operands:
                own |= bits.get(ref.entry, 0)
            bits[number] = own
        return bits

    @cached_property
    def _lost_prints(self) -> set[int]:
        """Returns the fingerprints of the reference's lost values."""
        return {found for found in map(self.lost_print, self.lost[1]) if found is not None}

    def cost(self, ref: Ref) -> int:
        """Counts the lost operations that a value of the reference depends on."""
        return self._lost_bits(ref.entry).bit_count()

    def _lost_bits(self, number: int) -> int:
        """Returns the lost operations that an entry of the reference follows from, as bits: what is only moved from
        their results, and read elsewhere, isn't lost itself."""
        lost, found, waiting, seen = self.lost[1], 0, [number], set[int]()
        while waiting:
            each = waiting.pop()
            if each in lost:
                found |= lost[each]
            elif each not in seen:
                seen.add(each)
                operands = self.reference.entry(each).operands
                waiting += [] if self.reference.is_maker(each) else [ref.entry for ref in operands]
        return found

    def value_at(self, place: Ref | Operand) -> Value:
        if isinstance(place, Operand):
            place = self.candidate.entry(place.entry).operands[place.number]
        return self.candidate.replay.values[place]

    def with_edits(self, edits: Iterable[Edit], entries: Collection[int]) -> Replay:
        """Returns a replay of these entries with more edits."""
        more = {place: partial(self._probed, edit) for edit in edits for place in edit.places}
        return self.candidate.replay.edited(self._sources_of(self.edits) | more, entries)

    def probe(self, *edits: Edit) -> Outcome:
        """Recomputes the consequences of edits, as long as they agree with the reference."""
        places = {place for edit in edits for place in edit.places}
        below = self.candidate.below(place.entry for place in places)
        replay, recovered, misses = self.with_edits(edits, {*below}), set[int](), 0
        try:
            for number in below:
                replay.run(number)
                ref = Ref(number, 0)
                if ref in places or not self.candidate.is_maker(number) or ref not in replay.values:
                    continue
                array = self.at.array(replay.values[ref])
                found = None if array is None else fingerprint(array)
                if found in self._lost_prints:
                    recovered.add(found or 0)
                    misses = 0
                elif replay.values[ref].node != self.candidate.node(ref):
                    misses += 1
                    if misses > MOST_MISSES:
                        return Outcome(len(recovered), False)
            arrays = {name: self.at.array(replay.value(self.candidate.outputs[name])) for name in self.named}
        except (Stale, UnknownOperation, ArithmeticError, ValueError):
            return Outcome(0, False)
        return Outcome(len(recovered), all(same(arrays[name], self.wanted[name]) for name in self.named))

    def is_whole(self, edits: Sequence[Edit]) -> bool:
        """Returns whether the outputs are the reference's after more edits."""
        try:
            return self._are_right(self._edited([*self.edits, *edits]))
        except (Stale, UnknownOperation, ArithmeticError, ValueError):
            return False

    def lost_print(self, number: int) -> int | None:
        array = self.reference.array(Ref(number, 0)) if self.reference.is_maker(number) else None
        return None if array is None else fingerprint(array)

    def proof(self, edits: Sequence[Edit]) -> float | None:
        """Returns the bound on the error of a proof that the edited candidate equals the reference; None without a
        proof. The candidate is lowered again, so that it is simplified as if it had been written so."""
        try:
            edited = self.task.candidate.tape.replay(Builder(), self._sources_of(edits))
        except (Stale, UnknownOperation):
            return None
        original = self.reference.tape.replay(Builder())  # before any axiom was used on it
        programs = {
            "candidate": edited.restricted([*self.task.candidate.outputs]),
            "reference": original.restricted([*self.task.reference.outputs]),
        }
        result = decide(replace(self.task, **programs, is_written_out=False))
        is_whole = {*result.equal} >= {*self.named}
        return result.log2_error if result.verdict == "proven" and is_whole else None
