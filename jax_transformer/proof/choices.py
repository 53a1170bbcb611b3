"""Places that depend on weights: top-k, argmax, argsort, and reads and writes at their results.

A place is a choice among the entries of a row. It is represented by numbers that are 1 for the chosen entry and 0
elsewhere, and a table with the integer of each entry. In a field, these numbers are hashes of the row as a multiset,
the entry and its rank. So both sides make the same choice if their rows have the same order: exp, tanh, a positive
factor of the row and an added constant change nothing.

Frameworks break ties in different ways, so rows with entries that may be equal for many weights are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jax_transformer.proof.building import Builder
from jax_transformer.proof.emitting import MOST_ELEMENTS
from jax_transformer.proof.programs import OutOfBounds, UnknownOperation, Value
from jax_transformer.proof.tape import recorded

MOST_PAIRS = 2**18
"""How many pairs of entries are looked at for ties."""
INCREASING = ("exp", "tanh", "erf", "log", "row_exp")
DEPENDS = "a place depends on weights"

PlacesOf = Callable[[np.ndarray], np.ndarray]
"""Known integers → the places of flat elements that an operation reads or writes."""


@recorded
def ordered(b: Builder, x: Value, axis: int, ranks: Sequence[int], name: str) -> tuple[Value, Value]:
    """Returns the entries of rows with these ranks, and their places; rank 0 is the largest entry."""
    if x.known is not None:
        raise UnknownOperation(name, b.line, "of constants")  # as they run
    axis %= len(x.shape)
    others = [each for each in range(len(x.shape)) if each != axis]
    row = b.transpose(b.as_float(x), [*others, axis])
    b.refuse_doubts(name, row, what="it orders numbers")
    if row.fills is not None:
        raise UnknownOperation(name, b.line, "constants mask entries of its rows")
    (key, is_turned), count, length = _key(b, row), len(ranks), row.shape[-1]
    _refuse_ties(b, key, name)
    shape = (*row.shape[:-1], count, length)
    key_ranks = tuple(length - 1 - rank if is_turned else rank for rank in ranks)
    places = b._emit("places", [key], shape, {"ranks": key_ranks})
    rows = b.broadcast(b.reshape(row, (*row.shape[:-1], 1, length)), shape)
    values = b.sum(b.multiply(places, rows), (len(shape) - 1,))
    table = np.broadcast_to(np.arange(length), shape)
    index = Value(shape[:-1], "int", None, places.node, None, table)
    back = np.argsort([*others, axis]).tolist()
    return b.transpose(values, back), b.transpose(index, back)


def _key(b: Builder, row: Value) -> tuple[Value, bool]:
    """Returns the simplest rows with the same order, and whether their order is reversed."""
    found, is_turned = row, False
    while (step := _simpler(b, found)) is not None and step[0].shape == row.shape:
        found, is_turned = step[0], is_turned != step[1]
    return found, is_turned


def _simpler(b: Builder, row: Value) -> tuple[Value, bool] | None:
    one = b.operations[row.node or 0]
    is_of_rows = one.name != "row_exp" or one.attributes["axis"] == len(row.shape) - 1
    if one.name in INCREASING and is_of_rows and "counts" not in one.attributes:
        return b._values[one.inputs[0]], False
    if one.name == "negate":
        return b._values[one.inputs[0]], True
    if one.name in ("multiply", "add", "subtract"):
        for rest, other in (one.inputs, one.inputs[::-1]):
            known = b._values[other].known
            is_negative = one.name == "multiply" and known is not None and bool((known < 0).all())
            is_turned = is_negative or (one.name == "subtract" and rest == one.inputs[1])
            is_kept = one.name != "multiply" or is_negative or b._signs.positive(other)
            if is_kept and _is_one_number(b, other) and b._values[rest].known is None:
                return b._values[rest], is_turned
    return None


def _is_one_number(b: Builder, node: int) -> bool:
    """Returns whether a value is the same for all entries of a row."""
    one = b.operations[node]
    if one.name != "broadcast":
        return False
    inner = b._values[one.inputs[0]].shape
    return not inner or inner[-1] == 1


def _refuse_ties(b: Builder, row: Value, name: str) -> None:
    """Raises UnknownOperation if entries of a row may be equal for many weights."""
    length = row.shape[-1]
    left, right = np.triu_indices(length, 1)
    places = np.arange(row.size).reshape(row.shape)
    if left.size * (row.size // max(length, 1)) > MOST_PAIRS:
        raise UnknownOperation(name, b.line, "its rows have too many entries to look for ties")
    if not left.size or _has_own_columns(b, row):
        return
    difference = b.subtract(b.take(row, places[..., left]), b.take(row, places[..., right]))
    node = difference.node
    if node is None or not (b._signs.nonzero(node) or b._signs.has_one_zero_set(node)):
        raise UnknownOperation(
            name, b.line, "entries of a row may be equal for many weights, and frameworks choose differently among them"
        )


def _has_own_columns(b: Builder, row: Value) -> bool:
    """Returns whether entries are products of one nonzero vector with columns of a weight that the vector doesn't
    read."""
    node = row.node or 0
    while b.operations[node].name == "reshape" and b.operations[node].shape[-1] == row.shape[-1]:
        node = b.operations[node].inputs[0]
    one = b.operations[node]
    if one.name != "matmul" or one.shape[-1] != row.shape[-1]:
        return False
    return b._signs.nonzero(one.inputs[0]) and b._signs.is_fresh(one.inputs[1], one.inputs[0])


# --- integers


@recorded
def computed(b: Builder, function: Callable[..., np.ndarray], inputs: Sequence[Value]) -> Value:
    """Applies a function of elements to integers, some of which are choices by one row."""
    shape = np.broadcast_shapes(*(each.shape for each in inputs))
    inputs = [b.broadcast(each, shape) for each in inputs]
    nodes = {each.node for each in inputs if each.table is not None}
    if len(nodes) > 1 or any(each.table is None and each.known is None for each in inputs):
        raise UnknownOperation("index", b.line, DEPENDS)
    (node,) = nodes
    assert node is not None
    count = b.operations[node].shape[-1]
    arrays = [
        np.broadcast_to(np.asarray(each.known)[..., None], (*shape, count)) if each.table is None else each.table
        for each in inputs
    ]
    found = np.asarray(function(*arrays))
    if (found == found[..., :1]).all():
        return b.constant(np.array(found[..., 0]))
    if found.dtype.kind in "iu":
        return Value(shape, "int", None, node, None, found)
    number = b.number_of_choice(node, found)
    return Value(shape, "indicator", None, number.node) if found.dtype == bool else number


@recorded
def joined(b: Builder, parts: Sequence[Value], axis: int) -> Value:
    """Concatenates integers, some of which are choices."""
    count = max(each.table.shape[-1] for each in parts if each.table is not None)
    tables, numbers = [], []
    for each in parts:
        if each.table is None:
            table = np.broadcast_to(np.asarray(each.known)[..., None], (*each.shape, count))
            own = b.constant(np.broadcast_to(np.arange(count) == 0, (*each.shape, count)).astype(np.float64))
        elif each.table.shape[-1] == count:
            assert each.node is not None
            table, own = each.table, b._values[each.node]
        else:
            raise UnknownOperation("concatenate", b.line, DEPENDS)
        tables.append(table)
        numbers.append(own)
    whole, table = b.concatenate(numbers, axis), np.concatenate(tables, axis)
    assert whole.node is not None
    b.joined[whole.node] = tuple(parts), axis
    return Value(table.shape[:-1], "int", None, whole.node, None, table)


# --- reads and writes


@recorded
def looked_up(b: Builder, source: Value, index: Value, places_of: PlacesOf, axes: Sequence[int]) -> Value:
    """Returns the elements at places that depend on weights.

    Args:
      axes: the axes of the result that come from the index.
    """
    places, numbers = _at_all(b, index, places_of, axes)
    if (places < 0).any():
        raise OutOfBounds("index", b.line, "an index that depends on weights may be out of bounds")
    return b.sum(b.multiply(numbers, b.take(b.as_float(source), places)), (places.ndim - 1,))


@recorded
def written(
    b: Builder, x: Value, index: Value, places_of: PlacesOf, updates: Value, axes: Sequence[int], *, adds: bool
) -> Value:
    """Writes updates to places that depend on weights, or adds them."""
    places, numbers = _at_all(b, index, places_of, axes)
    if not adds:
        _refuse_meetings(b, numbers, places)
    x, updates = b.as_float(x), b.broadcast(b.as_float(updates), places.shape[:-1])
    spread = b.broadcast(b.reshape(updates, (*updates.shape, 1)), places.shape)
    zeros = b.constant(np.zeros(x.shape))
    new = b.put(zeros, places, b.multiply(numbers, spread), adds=True)
    if not adds and not b.is_number(x, 0):
        hit = b.put(zeros, places, numbers, adds=True)
        x = b.multiply(x, b.subtract(b.constant(1.0), hit))
    return b.add(x, new)


def _at_all(b: Builder, index: Value, places_of: PlacesOf, axes: Sequence[int]) -> tuple[np.ndarray, Value]:
    """Returns the places for each entry that may be chosen, along a new last axis, and the choice among them."""
    assert index.table is not None
    assert index.node is not None
    count = index.table.shape[-1]
    places = np.stack([np.asarray(places_of(index.table[..., each])) for each in range(count)], -1)
    if places.size > MOST_ELEMENTS:
        raise UnknownOperation("index", b.line, f"{places.size} places")
    shape = [1] * (places.ndim - 1)
    for size, axis in zip(index.shape, axes, strict=True):
        shape[axis] = size
    return places, b.broadcast(b.reshape(b._values[index.node], (*shape, count)), places.shape)


def _refuse_meetings(b: Builder, numbers: Value, places: np.ndarray) -> None:
    """Raises UnknownOperation if two updates may go to one place: different ranks of a row never do."""
    inner = b._inner(numbers)
    source, read = b._source(inner, np.arange(inner.size).reshape(inner.shape))
    one = b.operations[source.node or 0]
    meets = one.name != "places"
    if not meets:
        ranks, count = one.shape[-2:]
        read = np.broadcast_to(read, places.shape)
        rows, entries = (read // count).reshape(-1), (read % count).reshape(-1)
        writers: dict[int, set[int]] = {}
        for place, row, entry in zip(places.reshape(-1), rows, entries, strict=True):
            writers.setdefault(int(place), set()).add((int(row) * count) + int(entry))
        pairs = places.reshape(-1)[places.reshape(-1) >= 0]
        meets = sum(len(writers[place]) for place in writers if place >= 0) < pairs.size
        meets |= any(
            len({each // count // ranks for each in own}) > 1 or len({each % count for each in own}) > 1
            for place, own in writers.items()
            if place >= 0
        )
    if meets:
        raise UnknownOperation("scatter", b.line, "two elements may be written to one place")
