"""Reads a compiled program from its text: how often each computation runs, and the shapes of its instructions.

XLA prints a program as computations of instructions. A loop calls a condition and a body; a fusion calls the
computation that it fuses. XLA's own cost analysis counts the body of a loop once, and XLA's GPU compiler has none.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "f8e4m3fn": 1, "f8e5m2": 1, "s16": 2, "u16": 2, "bf16": 2,
    "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16,
}  # fmt: skip
"""The bytes of an element, by XLA's name of its dtype."""

ARRAY = re.compile(r"(\w+)\[([\d,<=]*)\](\{[^}]*\})?")
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
CALLS = re.compile(r"\b(calls|body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
ON_CHIP = re.compile(r"S\([1-9]\d*\)")
"""Prefix of memory spaces other than the device's main memory."""


@dataclass(frozen=True)
class Array:
    """Holds the shape of an array of a program."""

    dtype: str
    shape: tuple[int, ...]
    on_chip: bool
    """Whether it lies in memory on the chip (a TPU's VMEM) and not in the device's main memory."""

    @property
    def bytes(self) -> float:
        return BYTES.get(self.dtype, 0) * math.prod(self.shape)


@dataclass(frozen=True)
class Instruction:
    """Holds one instruction of a computation."""

    name: str
    opcode: str
    result: tuple[Array, ...]
    """One array, or the leaves of a tuple."""
    operands: tuple[str, ...]
    attributes: str
    """The text after the operands."""
    literal: str
    """The text between the parentheses, such as the value of a constant."""
    is_root: bool

    @property
    def bytes(self) -> float:
        return sum(array.bytes for array in self.result)

    @cached_property
    def calls(self) -> dict[str, list[str]]:
        """Computations that it calls, by role: calls, body, condition, to_apply, branches."""
        called: dict[str, list[str]] = {}
        for role, name in CALLS.findall(self.attributes):
            called.setdefault(role, []).append(name)
        for names in BRANCHES.findall(self.attributes):
            called.setdefault("branches", []).extend(name.strip().lstrip("%") for name in names.split(","))
        return called


@dataclass(frozen=True)
class Computation:
    """Holds a computation: instructions by name, in order."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)

    def operands(self, instruction: Instruction) -> list[Instruction]:
        return [self.instructions[name] for name in instruction.operands if name in self.instructions]

    @property
    def root(self) -> Instruction:
        return next(one for one in self.instructions.values() if one.is_root)


@dataclass(frozen=True)
class Program:
    """Holds the computations of a compiled program, by name."""

    computations: dict[str, Computation]
    entry: str

    def executed(self, most_trips: int = 1) -> Iterator[tuple[Computation, int, bool]]:
        """Yields each computation that runs, its number of runs, and whether it is part of a fusion.

        Scalar functions, such as those of a reduction, are left out. Every branch of a conditional counts.

        Args:
          most_trips: number of iterations of a loop whose condition has no constant bound.
        """
        waiting = [(self.entry, 1, False)]
        while waiting:
            name, times, fused = waiting.pop()
            computation = self.computations[name]
            yield computation, times, fused
            for instruction in computation.instructions.values():
                called, opcode = instruction.calls, instruction.opcode
                if opcode == "while":
                    trips = self.trips(instruction, most_trips)
                    waiting += [(body, times * trips, fused) for body in called["body"]]
                elif opcode == "fusion":
                    waiting += [(fusion, times, True) for fusion in called["calls"]]
                elif opcode in ("call", "async-start", "conditional"):
                    waiting += [(one, times, fused) for one in itertools.chain.from_iterable(called.values())]

    def trips(self, loop: Instruction, unknown: int = 1) -> int:
        """Returns the number of iterations of a loop, from XLA's annotation or its condition `counter < constant`."""
        noted = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
        if noted:
            return int(noted.group(1))
        condition = self.computations[loop.calls["condition"][0]]
        if condition.root.opcode != "compare" or "direction=LT" not in condition.root.attributes:
            return unknown
        compared = condition.operands(condition.root)
        counters = [one for one in compared if one.opcode == "get-tuple-element"]
        bounds = [one for one in compared if one.opcode == "constant"]
        if not (counters and bounds):
            return unknown
        return -(-int(bounds[0].literal) // self._step(loop, _tuple_index(counters[0])))

    def _step(self, loop: Instruction, counter: int) -> int:
        """Returns by how much a loop's body raises its counter, the element `counter` of its state."""
        body = self.computations[loop.calls["body"][0]]
        new = body.instructions.get(body.root.operands[counter]) if body.root.opcode == "tuple" else None
        steps = [one for one in body.operands(new) if one.opcode == "constant"] if new and new.opcode == "add" else []
        return int(steps[0].literal) if steps else 1


def _tuple_index(element: Instruction) -> int:
    match = re.search(r"\bindex=(\d+)", element.attributes)
    return int(match.group(1)) if match else 0


def parse(text: str) -> Program:
    """Reads a program as `compiled.as_text()` prints it.

    Raises:
      ValueError: the text has no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        started = COMPUTATION.match(line)
        if started:
            current = computations.setdefault(started.group(2), Computation(started.group(2)))
            entry = started.group(2) if started.group(1) else entry
        elif line.startswith("}"):
            current = None
        elif current is not None:
            instruction = _instruction(line)
            if instruction is not None:
                current.instructions[instruction.name] = instruction
    if not entry:
        raise ValueError("hlo: expected the text of a compiled program; found no entry computation")
    return Program(computations, entry)


def _instruction(line: str) -> Instruction | None:
    name, equals, rest = line.strip().partition(" = ")
    if not equals:
        return None
    is_root, name = name.startswith("ROOT "), name.removeprefix("ROOT ").lstrip("%")
    shape, rest = _until_closed(rest) if rest.startswith("(") else rest.split(" ", 1)
    opcode, rest = rest.strip().split("(", 1)
    inside, attributes = _until_closed("(" + rest)
    arrays = tuple(
        Array(dtype, tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size), bool(ON_CHIP.search(layout)))
        for dtype, sizes, layout in ARRAY.findall(shape)
    )
    operands = tuple(re.findall(r"%([\w.\-]+)", inside))
    return Instruction(name, opcode, arrays, operands, attributes, inside[1:-1], is_root)


def _until_closed(text: str) -> tuple[str, str]:
    """Splits text that begins with a parenthesis after its closing parenthesis."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[: position + 1], text[position + 1 :]
    return text, ""
