"""Find the first operation on each side whose inputs the other side has, and whose result it hasn't."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jax_transformer.proof.domains import mix
from jax_transformer.proof.programs import Program


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


def fingerprint(array: np.ndarray) -> int:
    """Returns a number that depends on the elements, not on their order or shape."""
    with np.errstate(over="ignore"):
        return int(mix(np.asarray(array).astype(np.uint64).ravel()).sum(dtype=np.uint64)) ^ (array.size << 1)


def locate(program: Program, own: dict[int, int], others: set[int], output: int) -> Place | None:
    """Returns where a program first leaves the other.

    Args:
      own: fingerprints of its operations at a point where an output differs.
      others: those of the other program.
      output: the operation whose value differs.
    """
    suspects, waiting = set[int](), [output]
    while waiting:
        node = waiting.pop()
        if node in suspects or own[node] in others:
            continue
        suspects.add(node)
        waiting += program.operations[node].inputs
    for node in sorted(suspects):
        one = program.operations[node]
        if one.name == "constant" or not one.inputs:
            continue
        if all(each not in suspects or _is_constant(program, each) for each in one.inputs):
            numbers = [_number(program, each) for each in one.inputs if each in suspects]
            return Place(one.name, one.line, tuple(each for each in numbers if each is not None))
    return None


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
