"""Find the first operation on each side whose inputs the other side has, and whose result it hasn't."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jax_transformer.proof.domains import mix
from jax_transformer.proof.programs import Program

Pair = tuple[Program, Program]
PrintsOfBoth = tuple[dict[int, int], dict[int, int]]


@dataclass(frozen=True)
class Place:
    """An operation that computes something else than the other side."""

    operation: str
    line: str
    constants: tuple[float, ...] = ()
    """The numbers that it reads and the other side doesn't have."""

    def __str__(self) -> str:
        numbers = f" with {', '.join(repr(each) for each in self.constants)}" if self.constants else ""
        return f"{self.line or self.operation}{numbers}"


Places = tuple[Place | None, Place | None]


def fingerprint(array: np.ndarray) -> int:
    """Returns a number that depends on the elements, not on their order or shape."""
    with np.errstate(over="ignore"):
        return int(mix(np.asarray(array).astype(np.uint64).ravel()).sum(dtype=np.uint64)) ^ (array.size << 1)


def locate(programs: Pair, prints: PrintsOfBoth, outputs: tuple[list[int], list[int]]) -> Places:
    """Returns where each program first leaves the other, None if that can't be told.

    Both may compute the same in other orders, so an operation alone doesn't tell. Operations that read the same on both
    sides do, and among these such as have the same name.

    Args:
      prints: fingerprints of both programs' operations at a point where an output differs.
      outputs: the operations whose values differ, or among which one does.
    """
    suspects = [
        _suspects(program, own, {*others.values()}, of_side)
        for program, own, others, of_side in zip(programs, prints, prints[::-1], outputs, strict=True)
    ]
    pairs = [(ours, theirs) for ours in suspects[0] for theirs in suspects[1]]
    alike = [pair for pair in pairs if _read_the_same(programs, prints, pair)]
    of_one_name = [
        pair for pair in alike if len({p.operations[n].name for p, n in zip(programs, pair, strict=True)}) == 1
    ]
    first = next(iter(of_one_name or alike), (next(iter(suspects[0]), None), next(iter(suspects[1]), None)))
    ours, theirs = (
        None if node is None else _place(program, own, {*others.values()}, node)
        for program, own, others, node in zip(programs, prints, prints[::-1], first, strict=True)
    )
    return ours, theirs


def _suspects(program: Program, own: dict[int, int], others: set[int], outputs: list[int]) -> list[int]:
    """Returns the operations that the other side doesn't have, that read what it has, and whose results lead to an
    output without passing by a value that it has."""
    found, waiting = set[int](), [*outputs]
    while waiting:
        node = waiting.pop()
        if node not in found and own[node] not in others:
            found.add(node)
            waiting += program.operations[node].inputs
    return [
        node
        for node in sorted(found)
        if not _is_constant(program, node)
        and all(each not in found or _is_constant(program, each) for each in program.operations[node].inputs)
    ]


def _read_the_same(programs: Pair, prints: PrintsOfBoth, pair: tuple[int, int]) -> bool:
    read = [
        {own[each] for each in program.operations[node].inputs if not _is_constant(program, each)}
        for program, own, node in zip(programs, prints, pair, strict=True)
    ]
    return bool(read[0] & read[1])


def _place(program: Program, own: dict[int, int], others: set[int], node: int) -> Place:
    one = program.operations[node]
    numbers = [_number(program, each) for each in one.inputs if own[each] not in others]
    return Place(one.name, one.line, tuple(number for number in numbers if number is not None))


def _is_constant(program: Program, node: int) -> bool:
    one = program.operations[node]
    if one.name in ("broadcast", "reshape", "inverse"):
        return _is_constant(program, one.inputs[0])
    return one.name == "constant"


def _number(program: Program, node: int) -> float | None:
    one = program.operations[node]
    while one.name in ("broadcast", "reshape", "inverse"):
        one = program.operations[one.inputs[0]]
    array = one.attributes.get("array")
    return float(array) if array is not None and array.size == 1 else None
