"""Programs over the real numbers: exact operations, functions and moves of elements, in execution order.

A JAX or PyTorch program is lowered for given shapes, ids and masks. Integers, booleans, and their consequences are
computed during lowering; only floats remain.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from jax_transformer.programs.sites import Site

Kind = Literal["float", "int", "bool", "indicator"]
RequiredKind = Literal["not negative", "positive", "not zero"]

MOVES = ("input", "constant", "reshape", "transpose", "broadcast", "take", "concatenate", "put", "where")
ARITHMETIC = (
    *("add", "subtract", "multiply", "negate", "inverse", "power"),
    *("matmul", "sum", "cumulative_sum", "row_mean"),
    *("agreed", "rounded", "given", "chosen"),
)
"""agreed is the first of its inputs; the program has no value unless they are all equal. rounded is its input, a
constant whose float64 value the framework rounded differently from NumPy. given is the first of its inputs, undefined
wherever another one is. chosen is the first of its inputs, y + s (x − y), followed by s, x and y: an entry that isn't
chosen may be undefined."""
FUNCTIONS = ("root", "exp", "row_exp", "log", "erf", "tanh", "sin", "cos", "step", "equal", "largest", "places", "cut")
"""Functions known only by their axioms. row_exp is exp of a row minus its mean; step is [x > 0]. largest reads the
entries that count, those that aren't masked. cut is the identity, of which a proof uses only that it is a function with
0 at 0: programs that are equal for any such function are equal for this one. places is 1 for the entry of a row with a
given rank, and 0 for the rest."""
OPERATIONS = (*MOVES, *ARITHMETIC, *FUNCTIONS)


class UnknownOperation(Exception):
    """Raised for an operation without a rule, or one that depends on data in an unsupported way."""

    def __init__(self, operation: str, where: str = "", reason: str = "no rule covers it") -> None:
        super().__init__(f"{operation}: {reason}{f' ({where})' if where else ''}")
        self.operation, self.line, self.reason = operation, where, reason


class OutOfBounds(UnknownOperation):
    """Raised for a read that is out of an array's bounds: a program has no number there, nor in anything that depends
    on it."""


class WideIntegers(Exception):
    """Raised for a program that computes integers wider than 32 bits, while it is read with 32 bits."""


class Ref(NamedTuple):
    """References a value that a call returned (see `tape`)."""

    entry: int
    number: int
    """Which of the call's results it is."""


@dataclass(frozen=True, eq=False)
class Value:
    """An array in a program."""

    shape: tuple[int, ...]
    kind: Kind
    """"indicator": a boolean that depends on weights, computed as the number 0 or 1."""
    known: np.ndarray | None = None
    """Integers and booleans: the array. Floats that depend on no weight: their float64, which decides comparisons and
    finds masks, and is no part of the proof."""
    node: int | None = None
    """The operation that computes it; None for integers and booleans."""
    fills: np.ndarray | None = None
    """Constants that mask entries (see `masks`); None: there are none."""
    table: np.ndarray | None = None
    """Integers that depend on weights: the candidates, along one more axis (see `choices`)."""
    ref: Ref | None = None
    """The call that returned it; None within calls."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Operation:
    """Computes one array."""

    name: str
    inputs: tuple[int, ...]
    """Earlier operations."""
    shape: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    line: str = ""
    """The framework's own operation and its source line."""
    site: Site = field(default_factory=Site)
    """Place in the user's program."""
    refs: list[Ref] = field(default_factory=list)
    """Calls that returned its result: equal values from several places of a program are one operation."""


@dataclass(frozen=True)
class Requirement:
    """Describes the domain of a root, a logarithm or an inverse."""

    kind: RequiredKind
    of: int
    """Operation whose results have to be of this kind."""
    is_shown: bool
    """Whether they are for almost all weights, as follows from how they are computed."""
    may_be_infinite: bool = False
    """Whether the result may be ∞ for many weights: that of log 0, or 1/0."""


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers that depend on no weight."""

    array: np.ndarray
    radius: np.ndarray
    """Possible change of each element by the roundings of a program's types."""


@dataclass(frozen=True, eq=False)
class Program:
    """Operations in execution order, and the names of some of their values."""

    operations: tuple[Operation, ...]
    outputs: Mapping[str, Value]
    narrowing: tuple[str, ...] = ()
    """Casts to a narrower float type, which are left out of the function."""
    read: Mapping[str, int] = field(default_factory=dict)
    """How often each of the framework's operations was lowered."""
    axioms: Mapping[str, Mapping[str, None]] = field(default_factory=dict)
    """Axioms used by lowering → sites."""
    requirements: Mapping[int, Requirement] = field(default_factory=dict)
    """Operations that aren't defined for all numbers → their requirements."""
    tables: Mapping[int, Table] = field(default_factory=dict)
    """The last operations that depend on no weight → their values."""
    unknown: Mapping[str, UnknownOperation] = field(default_factory=dict)
    """Outputs without a rule, by name → reason."""
    tape: Any = field(default=None, repr=False)
    """The calls that built it: a `Tape`."""

    @property
    def doubtful(self) -> dict[int, Requirement]:
        """Returns the operations that may be undefined for many weights, with their requirements."""
        return {node: one for node, one in self.requirements.items() if not one.is_shown}

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the weights by name."""
        return {one.attributes["name"]: one.shape for one in self.operations if one.name == "input"}

    @property
    def rounds(self) -> bool:
        """Returns whether some operation rounds to a type narrower than float64."""
        return bool(self.narrowing) or any(
            one.name == "rounded" and "unit" in one.attributes for one in self.operations
        )

    def size(self, node: int) -> int:
        """Returns the number of elements of an operation's result."""
        return math.prod(self.operations[node].shape)

    def restricted(self, names: Collection[str]) -> Program:
        """Returns the program with some of its outputs, and the operations that they need."""
        outputs = {name: value for name, value in self.outputs.items() if name in names}
        needed, waiting = set[int](), [value.node for value in outputs.values() if value.node is not None]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += self.operations[node].inputs
                waiting += [self.requirements[node].of] if node in self.requirements else []
        numbers = {node: number for number, node in enumerate(sorted(needed))}
        operations = tuple(
            replace(self.operations[node], inputs=tuple(numbers[each] for each in self.operations[node].inputs))
            for node in numbers
        )
        moved = {
            name: value if value.node is None else replace(value, node=numbers[value.node])
            for name, value in outputs.items()
        }
        tables = {numbers[node]: table for node, table in self.tables.items() if node in numbers}
        requirements = self._renumbered(numbers)
        return replace(self, operations=operations, outputs=moved, requirements=requirements, tables=tables)

    def _renumbered(self, numbers: Mapping[int, int]) -> dict[int, Requirement]:
        kept = {node: one for node, one in self.requirements.items() if node in numbers}
        return {numbers[node]: replace(one, of=numbers[one.of]) for node, one in kept.items()}

    def sha256(self) -> str:
        """Returns a digest of operations, constants and outputs, without source lines."""
        digest = hashlib.sha256()
        for one in self.operations:
            digest.update(repr((one.name, one.inputs, one.shape, key_of(one.attributes))).encode())
        for name, value in self.outputs.items():
            digest.update(repr((name, value.node, value.shape, value.kind, digest_of(value.known))).encode())
        return digest.hexdigest()


def key_of(attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns attributes as something that can be compared and hashed."""
    return tuple(
        (name, digest_of(value) if isinstance(value, np.ndarray | np.generic) else value)
        for name, value in sorted(attributes.items())
    )


def digest_of(array: Any) -> str | None:
    if array is None:
        return None
    array = np.ascontiguousarray(array)
    return hashlib.sha256(repr((array.dtype.str, array.shape)).encode() + array.tobytes()).hexdigest()
