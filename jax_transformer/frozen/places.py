"""Finds the first activation of a frozen reference that a candidate doesn't compute, and the candidate's place.

Names of activations aren't compared: each is looked for among all values that the candidate computes, in any order of
their elements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from jax_transformer.comparison.capture import OWN
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.proof.domains import Floats
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.programs import MOVES, Program

SMALLEST = 4
"""Elements from which on a value is looked for: fewer may be equal by chance."""


class Located(NamedTuple):
    """Holds where two programs part, as far as their values show it."""

    computed: tuple[str, ...]
    """Activations that the candidate computes, too."""
    activation: str = ""
    """The first that it doesn't compute, though it computes all that this one is computed from; "" if none is known."""
    before: str = ""
    """The last activation before that one that it computes."""
    place: str = ""
    """The candidate's first operation, on the way to its output, that computes what the reference doesn't."""


class _Values:
    """Looks up arrays among others, whatever the order of their elements is."""

    def __init__(self, arrays: Collection[np.ndarray], within: float) -> None:
        self.within = within
        self.by_size: dict[int, list[np.ndarray]] = {}
        for array in arrays:
            if array.size >= SMALLEST and np.isfinite(array).all():
                self.by_size.setdefault(array.size, []).append(np.sort(array, axis=None))

    def has(self, array: np.ndarray) -> bool:
        if array.size < SMALLEST or not np.isfinite(array).all():
            return False
        mine = np.sort(array, axis=None).astype(np.float64)
        size = float(np.sqrt(np.mean(mine**2)))
        most = self.within * size
        return any(
            abs(other[0] - mine[0]) <= 100 * size and float(np.sqrt(np.mean((other - mine) ** 2))) <= most
            for other in self.by_size.get(array.size, ())
        )


def locate(
    candidate: Program, weights: Arrays, reference: Program | None, others: Arrays, activations: Arrays, within: float
) -> Located:
    """Finds where a candidate's values part from those of a reference.

    Args:
      weights: the candidate's, and floating-point inputs, by the names of its program.
      reference: its program; None if there is none: then nothing is said of order.
      others: the weights and inputs of that.
      activations: the reference's, in float64 and execution order.
      within: the relative RMS within which two values are one.
    """
    ours = _evaluated(candidate, weights)
    own = _Values(ours.values(), within)
    computed = tuple(name for name, array in activations.items() if array.dtype.kind == "f" and own.has(array))
    if reference is None:
        return Located(computed)
    theirs = _evaluated(reference, others)
    values = _Values([*theirs.values(), *activations.values()], within)
    activation = _first_lost(reference, {*computed}, activations)
    order = list(activations)
    before = [name for name in order[: order.index(activation)] if name in computed] if activation else []
    return Located(computed, activation, before[-1] if before else "", _place(candidate, ours, values))


def _evaluated(program: Program, weights: Arrays) -> dict[int, np.ndarray]:
    """Returns what each operation computes in float64, by its number."""
    found: dict[int, np.ndarray] = {}
    inputs = {name: weights[name] for name in program.inputs}

    def watch(node: int, array: np.ndarray) -> None:
        found[node] = np.asarray(array, np.float64)

    evaluate(program, Floats(), inputs, watch)
    return found


def _first_lost(program: Program, computed: Collection[str], activations: Mapping[str, np.ndarray]) -> str:
    """Returns the first activation without which the output can't be had, all of whose sources are computed."""
    nodes: dict[int, list[str]] = {}
    for name, value in program.outputs.items():
        if value.node is not None and value.known is None and name in activations:
            nodes.setdefault(value.node, []).append(name)
    lost = {node for node, names in nodes.items() if not {*names} & {*computed}}
    kept = {*nodes} - lost
    output = program.outputs.get(OWN)
    if output is None or output.node is None:
        return ""

    def upstream(start: int) -> set[int]:
        """Returns the lost activations that a value is computed from, through none that is computed."""
        found, seen, waiting = set[int](), set[int](), [start]
        while waiting:
            node = waiting.pop()
            if node in seen or node in kept:
                continue
            seen.add(node)
            if node in lost:
                found.add(node)
            waiting += program.operations[node].inputs
        return found

    reached = upstream(output.node)
    first = [node for node in reached if upstream(node) == {node}]
    names = [name for node in first for name in nodes[node]]
    return next((name for name in activations if name in names), "")


def _place(program: Program, values: Mapping[int, np.ndarray], reference: _Values) -> str:
    """Returns the site of the first operation that computes what the reference doesn't, on the way to the output."""
    output = program.outputs[OWN].node
    if output is None:
        return ""
    lost, seen, waiting = list[int](), set[int](), [output]
    while waiting:
        node = waiting.pop()
        if node in seen or node not in values or reference.has(values[node]):
            continue
        seen.add(node)
        lost.append(node)
        waiting += program.operations[node].inputs
    first = [
        node
        for node in sorted(lost)
        if program.operations[node].name not in MOVES
        and not any(each in seen for each in program.operations[node].inputs)
        and values[node].size >= SMALLEST
    ]
    if not first:
        return ""
    one = program.operations[first[0]]
    line = one.line or one.name
    return f"{line} in {one.site.where}" if one.site.where else line
