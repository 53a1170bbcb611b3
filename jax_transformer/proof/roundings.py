"""Bound the rounding error of values that depend on no weight.

Constants are rounded to a program's types, tables were computed in them, and so are the results of operations without a
rule. All operations in float64 with a rule are exact, as everywhere in a proof; those in a narrower type round the
values that reach a table. The effect of these errors is measured by computing each operation again, on operands moved
by their errors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jax_transformer.proof.constants import half_ulp, is_meant, rounding_of
from jax_transformer.proof.programs import MOVES, Operation, Table, Value

WIDEST = 2.0**-53
"""The unit roundoff of float64."""
TABLE_ERROR, WIDE_TABLE_ERROR = 8, 4
"""Possible errors of a table's elements in halves of a unit in the last place, in a narrow type and in float64: they
are computed in several steps, whose functions are less exact in narrow types."""
FUNCTION_ERROR = 4
"""The same for the result of one operation: libraries' functions are exact to about two units."""
PROBES = 4
"""Number of repeated computations on moved operands."""
LARGEST = 2.0**-6
"""A larger change, relative to the largest element of a table, is no rounding: the operation isn't continuous."""
MARGIN = 2.0
"""Factor on the largest change that these show."""

Compute = Callable[[list[np.ndarray]], Sequence[np.ndarray]]


class Roundings:
    """Answers for the operations of a builder, which may grow."""

    def __init__(self, operations: Sequence[Operation], values: Sequence[Value]) -> None:
        self.operations, self.values = operations, values
        self._tables: dict[int, Table] = {}

    def table(self, node: int) -> Table:
        """Returns the result of an operation that depends on no weight, with exact operations in float64, and the
        possible error of each element."""
        waiting = [node]
        while waiting:
            each = waiting[-1]
            missing = [one for one in self.operations[each].inputs if one not in self._tables]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if each not in self._tables:
                self._tables[each] = self._computed_table(each)
        return self._tables[node]

    def as_run(self, node: int) -> np.ndarray:
        """Returns the possible error of each element that the program itself computed."""
        table, known = self.table(node), self.values[node].known
        with np.errstate(all="ignore"):
            apart = np.abs(known - table.array)
        return np.asarray(table.radius + np.where(np.isfinite(apart), apart, 0.0))

    def _computed_table(self, node: int) -> Table:
        one = self.operations[node]
        read = [self._tables[each] for each in one.inputs]
        arrays, radii = [each.array for each in read], [each.radius for each in read]
        if one.name == "constant":
            array = one.attributes["array"]
            return Table(array, np.broadcast_to(constant_error(one), array.shape))
        array = _computed(one, arrays)
        if one.name in MOVES:
            return Table(array, _computed(one, radii))
        if one.name == "rounded":
            return Table(array, radii[0] + half_ulp(array, one.attributes.get("unit", 0.0)))
        return Table(array, moved_by(lambda others: [_computed(one, others)], arrays, radii, [array])[0])


def constant_error(one: Operation) -> np.ndarray:
    """Returns the possible errors of a constant's elements. A number is rounded once, and not at all in float64, where
    it is what was written. A table was computed."""
    attributes, array = one.attributes, one.attributes["array"]
    if "radius" in attributes:
        return np.asarray(attributes["radius"])
    unit = attributes.get("unit", 0.0)
    return rounding_of(array, unit) if array.size == 1 else table_error(array, unit or WIDEST)


def table_error(array: np.ndarray, unit: float) -> np.ndarray:
    """Returns the possible errors of a table's elements that were computed in a type with this unit roundoff. A table
    with both signs is a sum or an oscillation: its elements carry the roundings of larger numbers, such as the
    arguments of cosines, which grow with the position. Its zeros may be remainders of such numbers."""
    finite = np.where(np.isfinite(array), array, 0.0)
    largest = np.abs(finite).max(initial=0.0)
    if is_meant(finite, unit).all():
        return np.zeros(array.shape)
    steps = TABLE_ERROR if unit > WIDEST else WIDE_TABLE_ERROR
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
    """Returns the change of results, 0 at jumps: a number that is rounded down stays exact."""
    finite = np.isfinite(result) & np.isfinite(other)
    before, after = np.where(finite, result, 0.0), np.where(finite, other, 0.0)
    change, largest = np.abs(before - after), np.abs(before).max(initial=0.0)
    is_jump = (change > LARGEST * largest) | ((before % 1 == 0) & (after % 1 == 0))
    return np.where(is_jump, 0.0, change)


def _computed(one: Operation, inputs: list[np.ndarray]) -> np.ndarray:
    from jax_transformer.proof.domains import Reals
    from jax_transformer.proof.evaluating import compute

    return compute(one, inputs, Reals(), {})
