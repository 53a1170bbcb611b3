"""Both programs at one point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from jax_transformer.programs.sites import Site
from jax_transformer.proof.building import Builder
from jax_transformer.proof.domains import Arrays, Residues, Undefined
from jax_transformer.proof.evaluating import compute
from jax_transformer.proof.fields import NoInverse
from jax_transformer.proof.index import Index
from jax_transformer.proof.programs import Ref, Table, Value
from jax_transformer.proof.tables import Named, partner
from jax_transformer.proof.tape import Edits, Entry, Replay, Tape

MOVES = frozenset((
    "input", "constant", "computed", "reshape", "transpose", "broadcast", "take", "concatenate", "put", "rounded",
    "in_range", "widened", "as_float", "moved_choices",
))  # fmt: skip
"""Calls that only move elements."""


class Values:
    """Holds a builder, and the values of its operations at a point."""

    def __init__(self, domain: Residues, weights: Arrays) -> None:
        self.builder, self.domain, self.weights = Builder(), domain, weights
        self._arrays: dict[int, np.ndarray | None] = {}
        self._tables: list[tuple[Named, np.ndarray]] = []

    def array(self, value: Value) -> np.ndarray | None:
        """Returns a value's array; None if it isn't defined at this point, or isn't a float."""
        return None if value.node is None else self.array_of(value.node)

    def array_of(self, node: int) -> np.ndarray | None:
        waiting = [node]
        while waiting:
            last = waiting[-1]
            inputs = self.builder.operations[last].inputs
            missing = [each for each in inputs if each not in self._arrays]
            if last in self._arrays or not missing:
                waiting.pop()
                if last not in self._arrays:
                    self._arrays[last] = self._computed(last)
            else:
                waiting += missing
        return self._arrays[node]

    def _computed(self, node: int) -> np.ndarray | None:
        one = self.builder.operations[node]
        inputs = [self._arrays[each] for each in one.inputs]
        defined = [each for each in inputs if each is not None]
        if len(defined) < len(inputs):
            return None
        if one.name == "input" and one.attributes["name"] not in self.weights:
            return None  # no output that is compared reads it
        if one.name == "constant" and one.attributes.keys() & {"unit", "radius"}:
            one = replace(one, attributes={**one.attributes, "is_rounded": True})
        try:
            found = compute(one, defined, self.domain, self.weights)
        except (NoInverse, Undefined):
            return None
        return self._as_before(node, found)

    def _as_before(self, node: int, found: np.ndarray) -> np.ndarray:
        """Returns the numbers of earlier tables, where a new one consists of theirs but for rounding."""
        value = self.builder._values[node]
        if value.known is None or value.known.dtype.kind != "f" or not np.isfinite(value.known).all():
            return found
        table = Table(value.known, self.builder.radius(value))
        match = partner(Named(len(self._tables), node, table), [each for each, _ in self._tables])
        if match is not None:
            arrays = np.concatenate([self._tables[source][1].ravel() for source in match.sources])
            both = np.concatenate([arrays, self.domain.field.negate(arrays)])
            return np.asarray(both[match.places])
        self._tables.append((Named(len(self._tables), node, table), found))
        return found


class Side:
    """Holds the calls of one program, and their results."""

    def __init__(self, values: Values, tape: Tape, edits: Edits | None = None) -> None:
        self.at, self.tape = values, tape
        self.replay = Replay(tape, values.builder, edits or {})
        for number in range(len(tape.entries)):
            self.replay.run(number)
        self.outputs = {name: each for name, each in tape.outputs.items() if isinstance(each, Ref)}
        self.needed = self.above([ref.entry for ref in self.outputs.values()])
        self.readers: dict[int, list[int]] = {}
        for number in sorted(self.needed):
            for ref in self.entry(number).operands:
                self.readers.setdefault(ref.entry, []).append(number)

    def entry(self, number: int) -> Entry:
        return self.tape.entries[number]

    def array(self, ref: Ref) -> np.ndarray | None:
        return self.at.array(self.replay.values[ref])

    def node(self, ref: Ref) -> int | None:
        return self.replay.values[ref].node

    def is_maker(self, number: int) -> bool:
        entry = self.entry(number)
        is_known = all(each.is_known for each in entry.results)
        return entry.name not in MOVES and not is_known

    def above(self, entries: Sequence[int]) -> set[int]:
        """Returns entries and all that they follow from."""
        return _reached(entries, lambda number: [ref.entry for ref in self.entry(number).operands])

    def below(self, entries: Iterable[int]) -> list[int]:
        """Returns entries and their needed consequences, in order."""
        return sorted(_reached(entries, lambda number: self.readers.get(number, ())))

    def maker_above(self, number: int) -> int:
        """Returns the entry that makes what an entry moves; the first move of several values, if there is one."""
        while not self.is_maker(number) and len(self.entry(number).operands) == 1:
            number = self.entry(number).operands[0].entry
        return number

    def makers_below(self, entries: Iterable[int]) -> set[int]:
        """Returns the makers among entries, and those that read what the others move."""
        found, waiting = set[int](), [*entries]
        while waiting:
            number = waiting.pop()
            if self.is_maker(number):
                found.add(number)
            else:
                waiting += self.readers.get(number, ())
        return found

    @cached_property
    def results(self) -> dict[int, Ref]:
        """Returns the operations that outputs need and calls returned → the first of those calls."""
        found: dict[int, Ref] = {}
        for number in sorted(self.needed):
            for place, signature in enumerate(self.entry(number).results):
                node = self.node(Ref(number, place))
                if node is not None and signature.kind == "float" and self.array(Ref(number, place)) is not None:
                    found.setdefault(node, Ref(number, place))
        return found

    @cached_property
    def index(self) -> Index:
        arrays = {node: self.array(ref) for node, ref in self.results.items()}
        return Index({node: array for node, array in arrays.items() if array is not None})

    @cached_property
    def numbers(self) -> set[int]:
        """Returns the numbers that fill whole arrays."""
        return {int(array.flat[0]) for array in self.index.arrays.values() if array.size and is_one_number(array)}

    def read_by(self, numbers: Iterable[int]) -> dict[int | None, Site]:
        """Returns the operands of operations, through moves → site of the first reader."""
        found = dict[int | None, Site]()
        for number in sorted(numbers):
            waiting = [*self.entry(number).operands] if self.is_maker(number) else []
            while waiting:
                ref = waiting.pop()
                found.setdefault(self.node(ref), self.entry(number).site)
                if not self.is_maker(ref.entry):
                    waiting += self.entry(ref.entry).operands
        return found

    def weight(self, value: Value) -> str:
        """Returns the weight that a value is, or takes elements of."""
        root = self.root(value)
        one = None if root is None else self.at.builder.operations[root]
        return str(one.attributes["name"]) if one is not None and one.name == "input" else ""

    def root(self, value: Value) -> int | None:
        """Returns the operation of which a value has elements, through moves."""
        node = value.node
        while node is not None:
            one = self.at.builder.operations[node]
            if one.name not in ("reshape", "transpose", "take", "broadcast"):
                break
            node = one.inputs[0]
        return node


def is_one_number(array: np.ndarray) -> bool:
    return bool((array == array.flat[0]).all()) if array.size else True


def _reached(entries: Iterable[int], following: Callable[[int], Iterable[int]]) -> set[int]:
    found, waiting = set[int](), [*entries]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += following(number)
    return found
