"""Find the first operation on each side whose inputs the other side has, and whose result it lacks.

A side *has* an array if one of its own arrays holds all its elements, in any order: axes may be permuted, projections
fused, a decoding step computed together with all others. Moves of elements (reshapes, slices, concatenations) make
nothing new, unless both sides look up the same array at different places. A value that the other side lacks is
nevertheless correct if the other side has a value that is computed from it: both reach that in different ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from jax_transformer.proof.distinct import distinct
from jax_transformer.proof.index import Index, fingerprint
from jax_transformer.proof.needs import needed
from jax_transformer.proof.programs import Operation, Program

MOST_ELEMENTS = 2**25
"""Programs of more elements are compared by whole arrays alone."""
MOST_CALLS = 20
"""Maximum number of stack frames in a place."""
MOVES = ("reshape", "transpose", "broadcast", "concatenate", "put", "take")


@dataclass(frozen=True)
class Place:
    """An operation whose result differs from the other side's."""

    operation: str
    line: str
    constants: tuple[float, ...] = ()
    """Constants that it reads and the other side lacks."""
    masks: str = ""
    """The entry that it hides, or shows, unlike the other side."""
    module: str = ""
    """The path of the module that runs it, and the steps of loops."""
    stack: tuple[str, ...] = ()
    """The calls that led to it, from the innermost on."""

    def __str__(self) -> str:
        numbers = f" with {', '.join(repr(each) for each in self.constants)}" if self.constants else ""
        masks = f", {self.masks}" if self.masks else ""
        return f"{self.line or self.operation}{numbers}{masks}{f', in {self.module}' if self.module else ''}"


Places = tuple[Place | None, Place | None]


@dataclass
class Seen:
    """Holds a program's values at a point where an output differs."""

    program: Program
    prints: dict[int, int] = field(default_factory=dict)
    """Fingerprints of the operations' results."""
    elements: dict[int, np.ndarray] = field(default_factory=dict)
    """The elements of the operations' results, sorted."""
    prints_as_read: dict[int, int] = field(default_factory=dict)
    """Fingerprints of the elements that outputs depend on."""
    _arrays: dict[int, np.ndarray] = field(default_factory=dict)

    def watch(self, node: int, array: np.ndarray) -> None:
        self.prints[node] = fingerprint(array)
        if self._keeps_elements:
            self._arrays[node] = array

    def sort(self, outputs: Iterable[int]) -> None:
        """Sorts all elements, and marks those that these outputs depend on."""
        needs = needed(self.program, outputs, {node: array == 0 for node, array in self._arrays.items()})
        for node, array in self._arrays.items():
            if node in needs and needs[node].any():
                self.prints_as_read[node] = fingerprint(array[needs[node]])
        self._sort(dict.fromkeys(self._arrays, ...))

    def sort_needed(self, outputs: Iterable[int]) -> None:
        """Sorts the elements that these outputs depend on, but zeros."""
        needs = needed(self.program, outputs, {node: array == 0 for node, array in self._arrays.items()})
        self._sort({node: needs[node] & (array != 0) for node, array in self._arrays.items() if node in needs})

    def _sort(self, kept: Mapping[int, Any]) -> None:
        for node, elements in kept.items():
            self.elements[node] = np.sort(self._arrays.pop(node)[elements], axis=None)
        self._arrays.clear()

    @cached_property
    def looked_up(self) -> Counter[int]:
        """Returns the fingerprints of arrays whose elements are looked up, with the number of elements."""
        found = Counter[int]()
        for one in self.operations:
            if one.name == "take":
                found[self.prints[one.inputs[0]]] += int(np.prod(one.shape, dtype=np.int64))
        return found

    @property
    def operations(self) -> tuple[Operation, ...]:
        return self.program.operations

    @cached_property
    def _keeps_elements(self) -> bool:
        return sum(int(np.prod(one.shape, dtype=np.int64)) for one in self.operations) <= MOST_ELEMENTS

    @cached_property
    def all_prints(self) -> set[int]:
        return {*self.prints.values()}

    @cached_property
    def all_prints_as_read(self) -> set[int | None]:
        return {*self.prints_as_read.values()}

    @cached_property
    def lookups(self) -> set[int]:
        """Returns the fingerprints of arrays whose elements are looked up."""
        return {*self.looked_up}

    @cached_property
    def is_constant(self) -> list[bool]:
        """Returns whether each operation is a constant, or a number made of constants."""
        found: list[bool] = []
        for one in self.operations:
            is_number = one.name in ("reshape", "broadcast", "inverse") or not one.shape
            from_constants = bool(one.inputs) and all(found[each] for each in one.inputs)
            found.append(one.name == "constant" or (is_number and from_constants))
        return found

    @cached_property
    def numbers(self) -> set[int]:
        """Returns the elements of constants."""
        constants = [self.elements[node] for node in self.elements if self.is_constant[node]]
        return {0, 1, *distinct(np.concatenate(constants)).tolist()} if constants else {0, 1}

    @cached_property
    def _index(self) -> Index:
        return Index(self.elements)

    def holds(self, elements: np.ndarray) -> bool:
        """Returns whether one array has all these sorted elements, each as often."""
        return self._index.holds(elements)


@dataclass
class _Side:
    """Holds one program relative to the other one."""

    own: Seen
    other: Seen
    _shared: dict[int, bool] = field(default_factory=dict)
    _shared_as_read: dict[int, bool] = field(default_factory=dict)

    def is_shared(self, node: int) -> bool:
        """Returns whether the other program has the result of an operation, as a whole or as far as it is read."""
        if node not in self._shared:
            self._shared[node] = self._is_shared(node)
        return self._shared[node]

    def is_shared_as_read(self, node: int) -> bool:
        """Returns whether the other program has the elements of a result that outputs depend on: rows of padding may
        differ."""
        if node not in self._shared_as_read:
            self._shared_as_read[node] = self.is_shared(node) or self._is_held_as_read(node)
        return self._shared_as_read[node]

    def _is_held_as_read(self, node: int) -> bool:
        one = self.own.operations[node]
        if one.name == "take" and self.own.prints[one.inputs[0]] in self.other.lookups:
            return False
        if one.name in MOVES:
            return all(map(self.is_shared_as_read, one.inputs))
        return self.own.prints_as_read.get(node) in self.other.all_prints_as_read

    def _is_shared(self, node: int) -> bool:
        one, own, other = self.own.operations[node], self.own, self.other
        if one.name == "input" or own.is_constant[node] or own.prints[node] in other.all_prints:
            return True
        if one.name == "take" and own.prints[one.inputs[0]] in other.lookups:
            return False
        if one.name in MOVES:
            return all(map(self.is_shared, one.inputs))
        return node in own.elements and own.elements[node].size > 0 and bool(other.elements) and self._is_held(node)

    def _is_held(self, node: int) -> bool:
        return self.other.holds(self.own.elements[node])

    def suspects(self, outputs: list[int], different: list[int]) -> list[int]:
        """Returns the operations that the other side lacks, whose inputs it has, and whose results reach an output
        without passing through a value that it has. Of several, those that lead to values that it has are dropped, and
        those that lead to fewer of the differing outputs."""
        new, waiting = set[int](), [*outputs]
        while waiting:
            node = waiting.pop()
            if node not in new and not self.is_shared_as_read(node):
                new.add(node)
                waiting += self.own.operations[node].inputs
        found = self._first(new - self._rejoining()) or self._first(new)
        reach = self._reach(different) if len(found) > 1 else {}
        most = max((reach[node].bit_count() for node in found), default=0) if reach else 0
        return [node for node in found if not reach or reach[node].bit_count() == most]

    def _reach(self, outputs: list[int]) -> dict[int, int]:
        """Returns the outputs that each operation leads to, as bits."""
        reach = dict.fromkeys(range(len(self.own.operations)), 0)
        for place, node in enumerate(outputs):
            reach[node] |= 1 << place
        for node in reversed(reach):
            for each in self.own.operations[node].inputs:
                reach[each] |= reach[node]
        return reach

    def _first(self, new: set[int]) -> list[int]:
        """Returns the operations, in order, that read none of the others' results; moves only if they look up."""
        makers = {node for node in new if self._makes(node)}
        return [node for node in sorted(makers) if not any(each in makers for each in self._sources(node))]

    def _makes(self, node: int) -> bool:
        """Returns whether an operation is more than a move of others' results."""
        one = self.own.operations[node]
        return one.name not in MOVES or (one.name == "take" and self.is_shared(one.inputs[0]))

    def _sources(self, node: int) -> Iterator[int]:
        """Yields the operations that a result is made from, through moves."""
        waiting, found = [*self.own.operations[node].inputs], set[int]()
        while waiting:
            each = waiting.pop()
            if each not in found:
                found.add(each)
                yield each
                if self.own.operations[each].name in MOVES:
                    waiting += self.own.operations[each].inputs

    def _rejoining(self) -> set[int]:
        """Returns the operations whose results lead to values that the other side has."""
        found = set[int]()
        constants = self.own.numbers | self.other.numbers
        for node in reversed(range(len(self.own.operations))):
            elements = self.own.elements.get(node, np.zeros(0))
            is_number = not elements.size or int(elements[-1]) in constants
            if elements.size > 1 and elements[0] == elements[-1]:
                is_number = True  # such as the weights of a softmax over one key
            if node in found or (not is_number and self.is_shared(node)):
                found.update(self.own.operations[node].inputs)
        return found

    def end(self, outputs: list[int]) -> int | None:
        """Returns the operation of an output that the other side has and continues from."""
        if len(outputs) != 1:
            return None
        node = outputs[0]
        while self.own.operations[node].name == "reshape":
            node = self.own.operations[node].inputs[0]
        return node

    def reads(self, node: int) -> tuple[set[int], set[int]]:
        """Returns the fingerprints of an operation's operands without constants, and of the computed ones among
        them."""
        inputs = [each for each in self.own.operations[node].inputs if not self.own.is_constant[each]]
        computed = [each for each in inputs if self.own.operations[each].name != "input"]
        return {self.own.prints[each] for each in inputs}, {self.own.prints[each] for each in computed}

    def hidden(self, node: int | None) -> np.ndarray | None:
        """Returns a mask of the entries that an operation replaces by a constant, if it does nothing else."""
        one = None if node is None else self.own.operations[node]
        if one is None or one.name != "where":
            return None
        is_constant = [self.own.is_constant[each] for each in one.inputs]
        condition = np.asarray(one.attributes["condition"], bool)
        return None if is_constant[0] == is_constant[1] else condition if is_constant[0] else ~condition

    def place(self, node: int | None, masks: str) -> Place | None:
        if node is None:
            return None
        one = self.own.operations[node]
        new = [each for each in one.inputs if self.own.prints[each] not in self.other.all_prints]
        numbers = [_number(self.own.program, each) for each in new]
        constants = tuple(number for number in numbers if number is not None)
        stack = tuple(map(str, one.site.frames()[:MOST_CALLS]))
        return Place(one.name, one.line, constants, masks, one.site.where, stack)


Nodes = tuple[list[int], list[int]]
"""Operations of both programs."""


def locate(seen: tuple[Seen, Seen], outputs: Nodes, different: Nodes) -> Places:
    """Returns the operation at which each program first diverges from the other; None if it can't be determined.

    Args:
      outputs: operations with different values, or at least one of them.
      different: the operations of all differing outputs.
    """
    _sort(seen, different)
    sides = _Side(*seen), _Side(*seen[::-1])
    suspects = [side.suspects(*nodes) for side, *nodes in zip(sides, outputs, different, strict=True)]
    pair = _closest(sides, suspects)
    ours, theirs = (
        side.end(nodes) if node is None else node for side, node, nodes in zip(sides, pair, outputs, strict=True)
    )
    hidden = sides[0].hidden(ours), sides[1].hidden(theirs)
    return sides[0].place(ours, _masks(*hidden)), sides[1].place(theirs, _masks(*hidden[::-1]))


def _sort(seen: tuple[Seen, Seen], different: Nodes) -> None:
    """Sorts the sides' elements. If they look up different numbers of elements in the same arrays, such as embeddings,
    their batches have different shapes: then elements at pads aren't compared."""
    shared = seen[0].looked_up.keys() & seen[1].looked_up.keys()
    has_one_shape = all(seen[0].looked_up[each] == seen[1].looked_up[each] for each in shared)
    for one, nodes in zip(seen, different, strict=True):
        if has_one_shape:
            one.sort(nodes)
        else:
            one.sort_needed(nodes)


def _closest(sides: tuple[_Side, _Side], suspects: list[list[int]]) -> tuple[int | None, int | None]:
    """Returns the pair of suspects with the most similar operands; among several, one with equal names."""
    best, closest = (0, False), (next(iter(suspects[0]), None), next(iter(suspects[1]), None))
    for ours in suspects[0]:
        for theirs in suspects[1]:
            (all_ours, computed_ours), (all_theirs, computed_theirs) = sides[0].reads(ours), sides[1].reads(theirs)
            alike = 2 if all_ours == all_theirs else 1 if computed_ours & computed_theirs else 0
            score = alike, sides[0].own.operations[ours].name == sides[1].own.operations[theirs].name
            if alike and score > best:
                best, closest = score, (ours, theirs)
    return closest


def _masks(hidden: np.ndarray | None, others: np.ndarray | None) -> str:
    """Describes the first entry that one side hides behind a constant and the other one doesn't."""
    if hidden is None or others is None or hidden.shape != others.shape or (hidden == others).all():
        return ""
    differing = np.argwhere(hidden != others)
    first = tuple(map(int, differing[0]))
    more = f" and {len(differing) - 1} others" if len(differing) > 1 else ""
    return f"which {'hides' if hidden[first] else 'shows'} entry {first}{more}; the other side doesn't"


def _number(program: Program, node: int) -> float | None:
    one = program.operations[node]
    while one.name in ("broadcast", "reshape", "inverse"):
        one = program.operations[one.inputs[0]]
    array = one.attributes.get("array")
    return float(array.ravel()[0]) if array is not None and array.size == 1 else None
