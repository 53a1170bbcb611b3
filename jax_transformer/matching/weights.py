"""Follows the elements of weights through the operations of a program that move them, or compute something of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from jax_transformer.proof.distinct import distinct
from jax_transformer.proof.programs import MOVES, Operation, Program

NONE = -1
"""No element: a zero, or a constant."""
OF_EACH = frozenset((
    "negate", "inverse", "power", "root", "exp", "log", "erf", "tanh", "sin", "cos", "step", "rounded", "cut",
))  # fmt: skip
"""Operations on each element."""
OF_PAIRS = frozenset(("add", "subtract", "multiply"))


class Elements:
    """Numbers the elements of a program's weights, all in one row, and follows them.

    Args:
      program: the program.
      weights: the inputs of the program that are weights, by name; others are data.
    """

    def __init__(self, program: Program, weights: Mapping[str, tuple[int, ...]]) -> None:
        self.program, self.shapes = program, dict(weights)
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        ends = np.cumsum([0, *self.sizes])
        self.starts = dict(zip(self.shapes, map(int, ends), strict=False))
        self.total = int(ends[-1])
        self._follow()

    def numbers(self, name: str) -> np.ndarray:
        """Returns the numbers of a weight's elements, in its shape."""
        shape = self.shapes[name]
        return np.arange(math.prod(shape)).reshape(shape) + self.starts[name]

    def name_of(self, number: int) -> str:
        """Returns the weight that has an element."""
        names = list(self.starts)
        return names[int(np.searchsorted(list(self.starts.values()), number, side="right")) - 1]

    def row(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns all weights in one row."""
        return np.concatenate([np.ravel(arrays[name]) for name in self.shapes] or [np.zeros(0)])

    def _follow(self) -> None:
        operations = self.program.operations
        self.is_known = np.zeros(len(operations), bool)
        """The operations that depend on no weight and no data."""
        self.is_moved = np.zeros(len(operations), bool)
        """Those whose results are elements of weights."""
        self.places: list[np.ndarray | None] = [None] * len(operations)
        """Which element each one of a result is, or is computed of alone; None where it is computed of several."""
        for node, one in enumerate(operations):
            self.is_known[node] = one.name != "input" and all(self.is_known[each] for each in one.inputs)
            if not self.is_known[node]:
                self.places[node], self.is_moved[node] = self._places(one)

    def _places(self, one: Operation) -> tuple[np.ndarray | None, bool]:
        if one.name == "input":
            name = one.attributes["name"]
            return (self.numbers(name), True) if name in self.shapes else (None, False)
        inputs = [self._of_input(each) for each in one.inputs]
        given = [each for each in inputs if each is not None]
        if len(given) < len(inputs) or one.name == "constant":
            return None, False
        if one.name == "put" and one.attributes["adds"]:
            return None, False
        if one.name in MOVES:
            moves = all(self.is_moved[each] for each in one.inputs)
            return moved(one, given), moves
        with_weights = [place for place, each in enumerate(one.inputs) if not self.is_known[each]]
        if one.name not in (*OF_EACH, *OF_PAIRS) or not with_weights:
            return None, False
        first, *others = (given[place] for place in with_weights)
        is_of_each = first.shape == one.shape and all(np.array_equal(first, other) for other in others)
        return (first, False) if is_of_each else (None, False)

    def _of_input(self, node: int) -> np.ndarray | None:
        return np.full(self.program.operations[node].shape, NONE) if self.is_known[node] else self.places[node]

    @cached_property
    def consumers(self) -> list[list[int]]:
        """Returns which operations read each one."""
        found: list[list[int]] = [[] for _ in self.program.operations]
        for node, one in enumerate(self.program.operations):
            for each in dict.fromkeys(one.inputs):
                found[each].append(node)
        return found

    @cached_property
    def ancestors(self) -> list[int]:
        """Returns, as bits, the operations that each one follows from, itself included."""
        found: list[int] = []
        for node, one in enumerate(self.program.operations):
            bits = 1 << node
            for each in one.inputs:
                bits |= found[each]
            found.append(bits)
        return found

    def column_groups(self, node: int) -> list[np.ndarray]:
        """Returns the columns of a product of matrices [B, M, N] in groups, if what follows takes them apart: query,
        key and value of one fused kernel."""
        shape = self.program.operations[node].shape
        whole = np.arange(shape[2])
        columns: dict[int, np.ndarray] = {node: np.broadcast_to(whole, shape)}
        groups: list[np.ndarray] = []
        waiting = [node]
        while waiting:
            current = waiting.pop()
            for follower in self.consumers[current]:
                one = self.program.operations[follower]
                if follower in columns:
                    continue
                of_weights = [each for each in one.inputs if each != current]
                is_plain = all(self.is_known[each] or self.places[each] is not None for each in of_weights)
                if one.name == "take":
                    taken = distinct(moved(one, [columns[current]]))
                    taken = taken[taken >= 0]
                    if taken.size < whole.size:
                        groups += [taken] if taken.size else []
                        continue
                    columns[follower] = moved(one, [columns[current]])
                elif one.name in ("reshape", "transpose"):
                    columns[follower] = moved(one, [columns[current]])
                elif one.name in OF_PAIRS and is_plain and one.shape == columns[current].shape:
                    columns[follower] = columns[current]
                else:
                    return [whole]
                waiting.append(follower)
        every = _joined(groups)
        if sum(group.size for group in every) < whole.size:
            return [whole]
        return sorted(every, key=lambda group: int(group[0]))


def _joined(groups: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns groups, those that have columns in common as one."""
    found: list[np.ndarray] = []
    for group in groups:
        apart = [other for other in found if not np.intersect1d(other, group).size]
        common = [other for other in found if np.intersect1d(other, group).size]
        found = [*apart, distinct(np.concatenate([group, *common]))]
    return found


def moved(one: Operation, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Moves numbers of elements as an operation does its inputs; NONE where it has a constant."""
    x, attributes = inputs[0], one.attributes
    if one.name == "reshape":
        return x.reshape(one.shape)
    if one.name == "transpose":
        return x.transpose(attributes["order"])
    if one.name == "broadcast":
        return np.broadcast_to(x, one.shape)
    if one.name == "take":
        return np.append(np.ravel(x), NONE)[np.maximum(attributes["places"], NONE)]
    if one.name == "concatenate":
        return np.concatenate(inputs, attributes["axis"])
    if one.name == "where":
        return np.where(attributes["condition"], x, inputs[1])
    assert one.name == "put"
    flat, places = np.array(x).ravel(), attributes["places"]
    kept = places >= 0
    flat[places[kept]] = np.ravel(inputs[1])[kept]
    return flat.reshape(x.shape)
