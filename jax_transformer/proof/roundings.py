"""Bound how far what depends on no weight may be from the numbers that a program means, by the rounding of its types.

Constants are rounded to a program's types, tables were computed in them, and so is what operations without a rule
compute. All operations in float64 that have a rule are exact, as everywhere in a proof; those in a narrower type round
what reaches a table. How much of these roundings does is seen by computing each operation again, on operands that are
moved by theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jax_transformer.proof.constants import half_ulp, is_meant, rounding_of
from jax_transformer.proof.programs import MOVES, Operation, Table, Value

WIDEST = 2.0**-53
"""The unit roundoff of float64."""
OF_TABLE, OF_WIDE_TABLE = 8, 4
"""Halves of a unit in the last place by which an element of a table may be off, in a narrow type and in float64: it is
computed in several steps, whose functions are less exact in narrow types."""
OF_FUNCTION = 4
"""The same of what one operation computes: libraries' functions are exact to about two units."""
PROBES = 4
"""How often an operation is computed on other operands."""
LARGEST = 2.0**-6
"""A larger change, relative to the largest element of a table, is no rounding: the operation isn't continuous."""
MARGIN = 2.0
"""By what the largest change that these show is multiplied."""

Compute = Callable[[list[np.ndarray]], Sequence[np.ndarray]]


class Roundings:
    """Answers for the operations of a builder, which may grow."""

    def __init__(self, operations: Sequence[Operation], values: Sequence[Value]) -> None:
        self.operations, self.values = operations, values
        self._tables: dict[int, Table] = {}

    def table(self, node: int) -> Table:
        """Returns what an operation computes that depends on no weight, its exact operations in float64, and how far
        each element may be off."""
        waiting = [node]
        while waiting:
            each = waiting[-1]
            missing = [one for one in self.operations[each].inputs if one not in self._tables]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if each not in self._tables:
                self._tables[each] = self._found(each)
        return self._tables[node]

    def as_run(self, node: int) -> np.ndarray:
        """Returns how far each element of what the program itself computed may be off."""
        table, known = self.table(node), self.values[node].known
        with np.errstate(all="ignore"):
            apart = np.abs(known - table.array)
        return np.asarray(table.radius + np.where(np.isfinite(apart), apart, 0.0))

    def _found(self, node: int) -> Table:
        one = self.operations[node]
        read = [self._tables[each] for each in one.inputs]
        arrays, radii = [each.array for each in read], [each.radius for each in read]
        if one.name == "constant":
            array = one.attributes["array"]
            return Table(array, np.broadcast_to(of_constant(one), array.shape))
        array = _computed(one, arrays)
        if one.name in MOVES:
            return Table(array, _computed(one, radii))
        if one.name == "rounded":
            return Table(array, radii[0] + half_ulp(array, one.attributes.get("unit", 0.0)))
        return Table(array, moved_by(lambda others: [_computed(one, others)], arrays, radii, [array])[0])


def of_constant(one: Operation) -> np.ndarray:
    """Returns how far the elements of a constant may be off. A number is rounded once, in float64 not at all: it is
    what is written. A table was computed."""
    attributes, array = one.attributes, one.attributes["array"]
    if "radius" in attributes:
        return np.asarray(attributes["radius"])
    unit = attributes.get("unit", 0.0)
    return rounding_of(array, unit) if array.size == 1 else of_table(array, unit or WIDEST)


def of_table(array: np.ndarray, unit: float) -> np.ndarray:
    """Returns how far the elements of a table may be off that something computed in a type with this unit roundoff.
    Where it has both signs, it is a sum or an oscillation: its elements are off by the roundings of larger numbers,
    such as the arguments of cosines, which grow with the position. Its zeros may be what is left of others."""
    finite = np.where(np.isfinite(array), array, 0.0)
    largest = np.abs(finite).max(initial=0.0)
    if is_meant(finite, unit).all():
        return np.zeros(array.shape)
    steps = OF_TABLE if unit > WIDEST else OF_WIDE_TABLE
    radius = steps * half_ulp(finite, unit) + np.where(np.abs(finite) < 4 * unit * largest, unit * largest, 0.0)
    if finite.min() < 0 < finite.max():
        axis = next(axis for axis, size in enumerate(finite.shape) if size > 1)
        place = np.arange(1, finite.shape[axis] + 1).reshape([-1 if each == axis else 1 for each in range(finite.ndim)])
        radius = radius + steps / 2 * unit * largest * place
    return np.asarray(radius)


def moved_by(
    compute: Compute, arrays: Sequence[np.ndarray], radii: Sequence[np.ndarray | None], results: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns by how much results change if operands are off by up to their radii.

    Args:
      compute: operands → results.
      radii: None for operands that are exact.
    """
    found = [np.zeros(np.shape(each)) for each in results]
    if not any(radius is not None and np.any(radius) for radius in radii):
        return found
    key = np.random.default_rng(0)
    for _ in range(PROBES):
        with np.errstate(all="ignore"):
            others = [
                array if radius is None else array + radius * key.choice([-1.0, 1.0], array.shape)
                for array, radius in zip(arrays, radii, strict=True)
            ]
        for place, (other, result) in enumerate(zip(compute(others), results, strict=True)):
            with np.errstate(all="ignore"):
                change = _change(np.asarray(result, np.float64), np.asarray(other, np.float64))
            found[place] = np.maximum(found[place], MARGIN * change)
    return found


def _change(result: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns by how much results change, 0 where they jump: a number that is rounded down is what it is."""
    finite = np.isfinite(result) & np.isfinite(other)
    before, after = np.where(finite, result, 0.0), np.where(finite, other, 0.0)
    change, largest = np.abs(before - after), np.abs(before).max(initial=0.0)
    is_jump = (change > LARGEST * largest) | ((before % 1 == 0) & (after % 1 == 0))
    return np.where(is_jump, 0.0, change)


def _computed(one: Operation, inputs: list[np.ndarray]) -> np.ndarray:
    from jax_transformer.proof.domains import Reals
    from jax_transformer.proof.evaluating import compute

    return compute(one, inputs, Reals(), {})
