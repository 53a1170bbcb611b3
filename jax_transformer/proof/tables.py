"""Identify constants and tables of two programs that agree within the rounding of the types that made them (axiom
"rounded constants").

A table is a value that depends on no weight: a constant, or the last of the operations that compute it. Each table of
the candidate that agrees with a table of the reference, up to the roundings of either, is replaced by it. So the
compared candidate differs from the original one only by roundings. The choice of partners is a guess that proves
nothing; the comparison does. Tables without rounding are compared as they are.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jax_transformer.proof.constants import ROUNDED, as_read
from jax_transformer.proof.programs import Operation, Program, Table, key_of
from jax_transformer.proof.roundings import constant_error

AXIOM = ROUNDED
MOST_AXES = 4
"""Tables of more axes are compared in one order."""
MOST_COMPARED = 2**30
"""Maximum number of elements that are compared to find lines of other tables."""


@dataclass(frozen=True, eq=False)
class Named:
    """A table of a program."""

    node: int
    digest: int
    """Digest of the operations that compute it, equal for equal computations."""
    table: Table

    @property
    def is_rounded(self) -> bool:
        return bool(self.table.radius.any())


@dataclass(frozen=True, eq=False)
class Match:
    """Describes a table as elements of the reference's tables."""

    sources: tuple[int, ...]
    """The operations that compute them."""
    places: np.ndarray
    """Place of each element in the concatenation of all sources and their negatives."""
    apart: float
    """The largest difference."""


def unified(candidate: Program, reference: Program) -> tuple[Program, Program] | None:
    """Returns both programs, with narrow constants read as the numbers that round to them, and the candidate with the
    reference's tables where they agree up to rounding; None if neither changes anything."""
    if AXIOM in candidate.axioms:
        return None
    theirs, notes = _tables_of(reference), list[str]()
    digests = {each.digest for each in theirs}
    replaced: dict[int, Match] = {}
    for one in _tables_of(candidate):
        match = None if one.digest in digests else partner(one, theirs)
        if match is not None:
            replaced[one.node] = match
            notes.append(_note(candidate.operations[one.node], one.table, match.apart))
    grafted = _grafted(candidate, reference, replaced) if replaced else candidate
    ours, others = _read_as_rounded(grafted) or grafted, _read_as_rounded(reference) or reference
    if (ours, others) == (candidate, reference):
        return None
    axioms = {**candidate.axioms, AXIOM: dict.fromkeys(notes)}
    return replace(ours, axioms=axioms), others


def size_of(note: str) -> float:
    """Returns the difference that a note of the axiom has."""
    found = re.search(r" by ([0-9.e+-]+)", note)
    return float(found[1]) if found else 0.0


def _read_as_rounded(program: Program) -> Program | None:
    """Returns a program whose narrow constants are read as the numbers that round to them; None without such
    constants."""
    operations = list(program.operations)
    for node, one in enumerate(operations):
        if one.name == "constant" and ("unit" in one.attributes or "radius" in one.attributes):
            numbers = as_read(**one.attributes, is_rounded=True) or {}
            if any(number.axiom == ROUNDED for number in numbers.values()):
                operations[node] = replace(one, attributes={**one.attributes, "is_rounded": True})
    return None if operations == [*program.operations] else replace(program, operations=tuple(operations))


def moved(program: Program, other: Program, seed: int) -> Program | None:
    """Returns a program whose constants and tables are moved randomly by up to their rounding, unless the other program
    computes the same ones in the same way; None without such constants."""
    key, theirs, digests = np.random.default_rng(seed), {*_digests(other)}, _digests(program)
    operations = list(program.operations)
    for node, one in enumerate(operations):
        is_read = one.attributes.get("is_rounded", False) and one.attributes["array"].size == 1  # as an exact number
        if one.name == "constant" and not is_read and digests[node] not in theirs:
            array, radius = one.attributes["array"], np.broadcast_to(constant_error(one), one.shape)
            if radius.any():
                changed = array + radius * key.choice([-1.0, 1.0], array.shape)
                operations[node] = replace(one, attributes={**one.attributes, "array": changed})
    return replace(program, operations=tuple(operations)) if operations != [*program.operations] else None


# --- within


def _tables_of(program: Program) -> list[Named]:
    digests = _digests(program)
    return [Named(node, digests[node], table) for node, table in program.tables.items()]


def _digests(program: Program) -> list[int]:
    found: list[int] = []
    for one in program.operations:
        found.append(hash((one.name, one.shape, key_of(one.attributes), tuple(found[each] for each in one.inputs))))
    return found


def partner(one: Named, others: Sequence[Named]) -> Match | None:
    """Returns the places of a table's elements in the nearest agreeing table."""
    others = [other for other in others if one.is_rounded or other.is_rounded]
    found = [match for other in others for match in _whole(one.table, other)]
    if found:
        return min(found, key=lambda match: match.apart)
    return _by_lines(one.table, others) if one.table.array.size > 1 else None


def _whole(table: Table, other: Named) -> Iterator[Match]:
    """Yields the orders of axes, and the signs, in which a table agrees with another."""
    array = other.table.array
    if array.size != table.array.size:
        return
    squeezed = np.arange(array.size).reshape([size for size in array.shape if size > 1])
    orders = itertools.permutations(range(squeezed.ndim)) if squeezed.ndim <= MOST_AXES else [range(squeezed.ndim)]
    for order in orders:
        places = squeezed.transpose(tuple(order)).reshape(table.array.shape)
        for sign in (1, -1):
            apart = np.abs(sign * array.ravel()[places] - table.array)
            if _agree(apart, table, other.table.radius.ravel()[places]).all():
                moved_places = places if sign == 1 else places + array.size
                yield Match((other.node,), moved_places, float(apart.max(initial=0.0)))


def _by_lines(table: Table, others: Sequence[Named]) -> Match | None:
    """Composes a table from lines of the other program's tables along one axis: it may repeat the columns of a table,
    or combine two tables."""
    sources = tuple(other.node for other in others)
    total = sum(other.table.array.size for other in others)
    for axis in [axis for axis, size in enumerate(table.array.shape) if size > 1]:
        rows = np.moveaxis(np.arange(table.array.size).reshape(table.array.shape), axis, -1)
        lines = rows.reshape(-1, table.array.shape[axis])
        if len(lines) * total > MOST_COMPARED:
            continue
        found = [_nearest_line(table, line, others, total) for line in lines]
        if all(each is not None for each in found):
            places, apart = np.zeros(table.array.size, np.int64), 0.0
            for line, each in zip(lines, found, strict=True):
                assert each is not None
                places[line], apart = each[0], max(apart, each[1])
            return Match(sources, places.reshape(table.array.shape), apart)
    return None


def _nearest_line(
    table: Table, line: np.ndarray, others: Sequence[Named], total: int
) -> tuple[np.ndarray, float] | None:
    """Returns the places of the nearest line of another table, or of its negative, that agrees with a line."""
    best, nearest, first = None, np.inf, 0
    own = Table(table.array.ravel()[line], table.radius.ravel()[line])
    for other in others:
        array = other.table.array
        for axis, size in enumerate(array.shape):
            if size != line.size:
                continue
            places = np.moveaxis(np.arange(array.size).reshape(array.shape), axis, -1).reshape(-1, size)
            for sign in (1, -1):
                apart = np.abs(sign * array.ravel()[places] - own.array)
                agrees = _agree(apart, own, other.table.radius.ravel()[places]).all(axis=1)
                for place in np.flatnonzero(agrees):
                    if (distance := float(apart[place].max())) < nearest:
                        best, nearest = first + places[place] + (0 if sign == 1 else total), distance
        first += array.size
    return None if best is None else (best, nearest)


def _agree(apart: np.ndarray, table: Table, radius: np.ndarray) -> np.ndarray:
    """Returns a mask of the numbers that are equal, or nearer than two roundings: neighbours in one type differ by
    both."""
    most = table.radius + radius
    return np.asarray((apart == 0) | (apart < most))


def _grafted(candidate: Program, reference: Program, replaced: Mapping[int, Match]) -> Program:
    """Replaces the candidate's table operations by the reference's."""
    wanted = {source for match in replaced.values() for source in match.sources}
    operations, numbers = list[Operation](), dict[int, int]()
    for node in sorted(_needed(reference, wanted)):
        one = reference.operations[node]
        numbers[node] = len(operations)
        operations.append(replace(one, inputs=tuple(numbers[each] for each in one.inputs)))
    own: dict[int, int] = {}
    for node, one in enumerate(candidate.operations):
        if node in replaced:
            own[node] = _taken(operations, replaced[node], numbers, one)
        else:
            own[node] = len(operations)
            operations.append(replace(one, inputs=tuple(own[each] for each in one.inputs)))
    outputs = {
        name: value if value.node is None else replace(value, node=own[value.node])
        for name, value in candidate.outputs.items()
    }
    tables = {own[node]: table for node, table in candidate.tables.items() if node not in replaced}
    requirements = {
        own[node]: replace(required, of=own[required.of])
        for node, required in candidate.requirements.items()
        if node not in replaced
    }
    program = replace(candidate, operations=tuple(operations), outputs=outputs)
    program = replace(program, tables=tables, requirements=requirements)
    return program.restricted(outputs.keys())


def _taken(operations: list[Operation], match: Match, numbers: Mapping[int, int], one: Operation) -> int:
    """Appends the operations that take a table's elements from other tables."""

    def append(name: str, inputs: Sequence[int], shape: tuple[int, ...], **attributes: object) -> int:
        operations.append(Operation(name, tuple(inputs), shape, attributes, one.line))
        return len(operations) - 1

    parts = [numbers[source] for source in match.sources]
    sizes = [int(np.prod(operations[part].shape, dtype=np.int64)) for part in parts]
    flat = [append("reshape", [part], (size,)) for part, size in zip(parts, sizes, strict=True)]
    whole = flat[0] if len(flat) == 1 else append("concatenate", flat, (sum(sizes),), axis=0)
    if (match.places >= sum(sizes)).any():
        negative = append("negate", [whole], (sum(sizes),))
        whole = append("concatenate", [whole, negative], (2 * sum(sizes),), axis=0)
    return append("take", [whole], one.shape, places=match.places.reshape(one.shape))


def _needed(program: Program, nodes: set[int]) -> set[int]:
    found, waiting = set[int](), [*nodes]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += program.operations[node].inputs
    return found


def _note(one: Operation, table: Table, apart: float) -> str:
    place = one.line.partition(", ")[2] or one.line
    what = repr(float(table.array.reshape(()))) if table.array.size == 1 else f"a table {list(table.array.shape)}"
    return f"{what} by {apart:.1e}{f', {place}' if place else ''}"
