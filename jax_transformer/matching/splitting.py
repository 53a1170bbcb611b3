"""Writes products and sums with several weights so that each weight meets a value on its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jax_transformer.matching.weights import Elements
from jax_transformer.proof.programs import Operation, Program

SPLIT = frozenset(("add", "multiply"))
MOVED = frozenset(("reshape", "transpose", "broadcast"))


def one_weight_at_a_time(program: Program, weights: Mapping[str, tuple[int, ...]]) -> Program:
    """Returns a program with x · v · w for x · (v · w), and x + v + w for x + (v + w), if v and w are computed of one
    weight each, and x isn't. A batch norm multiplies by such a product, of its scale and of the root of its variance:
    the search finds the partner of a weight by the value that it meets, and v and w meet each other.

    The result has operations and outputs alone.
    """
    elements = Elements(program, weights)
    operations: list[Operation] = []
    numbers: list[int] = []

    def add(one: Operation, *inputs: int) -> int:
        operations.append(replace(one, inputs=inputs))
        return len(operations) - 1

    for node, one in enumerate(program.operations):
        factors = _factors(elements, node)
        if factors is None:
            numbers.append(add(one, *(numbers[each] for each in one.inputs)))
            continue
        value, pair, moves = factors
        found = numbers[value]
        for each in pair:
            moved = numbers[each]
            for move in moves:
                moved = add(program.operations[move], moved)
            found = add(one, found, moved)
        numbers.append(found)
    outputs = {
        name: value if value.node is None else replace(value, node=numbers[value.node])
        for name, value in program.outputs.items()
    }
    return Program(tuple(operations), outputs).restricted(outputs)


def _factors(elements: Elements, node: int) -> tuple[int, tuple[int, int], list[int]] | None:
    """Returns a value, two weights that it meets together, and the moves of these on the way; None at other
    operations."""
    one = elements.program.operations[node]
    if one.name not in SPLIT:
        return None
    for value, pair in (one.inputs, one.inputs[::-1]):
        moves = list[int]()
        while elements.program.operations[pair].name in MOVED:
            moves.append(pair)
            pair = elements.program.operations[pair].inputs[0]
        inner = elements.program.operations[pair]
        is_of_two = inner.name == one.name and elements.places[pair] is None
        if is_of_two and _is_value(elements, value) and all(elements.places[each] is not None for each in inner.inputs):
            return value, (inner.inputs[0], inner.inputs[1]), moves[::-1]
    return None


def _is_value(elements: Elements, node: int) -> bool:
    return elements.places[node] is None and not elements.is_known[node]
