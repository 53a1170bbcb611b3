"""Append operations to a program: leaves, moves of elements, and kinds of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jax_transformer.programs.sites import Site
from jax_transformer.proof import masks, undefined
from jax_transformer.proof.constants import half_ulp, is_meant, smallest_of, unit_of
from jax_transformer.proof.distinct import distinct
from jax_transformer.proof.programs import (
    Kind,
    Operation,
    Program,
    Requirement,
    Table,
    UnknownOperation,
    Value,
    digest_of,
    key_of,
)
from jax_transformer.proof.roundings import WIDEST, Roundings
from jax_transformer.proof.scales import Scales
from jax_transformer.proof.signs import Signs
from jax_transformer.proof.tape import Tape, recorded, records_values

MOST_ELEMENTS = 2**24
"""The elements of choices at most."""


@records_values
class Emitter:
    """Appends operations to a program. An operation that the program has already isn't appended again."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.line = ""
        """The framework's operation that is lowered now, and its source line."""
        self.site = Site()
        """Site of the current call."""
        self.tape = Tape()
        self.narrowing: dict[str, None] = {}
        self.axioms: dict[str, dict[str, None]] = {}
        """Axioms used while lowering → their sites."""
        self.read: dict[str, int] = {}
        self._nodes: dict[Any, int] = {}
        self._values: list[Value] = []
        self._rewritten: dict[int, Value] = {}
        self._scales = Scales(self.operations, self._values)
        self._roundings = Roundings(self.operations, self._values)
        self._chosen: dict[int, tuple[int, Value, Value]] = {}
        """Results of `where` with a step s as condition → s, the value where it is 1, the value where it is 0."""
        self._signs = Signs(self.operations, self._values, self._chosen)
        self._requirements: dict[int, Requirement] = {}
        self._doubts: list[frozenset[int]] = []
        """The operations that each one depends on, itself included, and that may be undefined for many weights."""
        self._negated: dict[int, Value] = {}
        """1 − s → s, for steps s."""
        self._extremes: dict[int, tuple[int, int]] = {}
        """Maxima → the value, and its lower bound."""
        self.joined: dict[int, tuple[tuple[Value, ...], int]] = {}
        """Concatenated integers that depend on weights → their parts, and the axis."""

    def program(self, outputs: Mapping[str, Value | UnknownOperation]) -> Program:
        """Returns the operations that these outputs need.

        Args:
          outputs: by name; an error for one that no rule computes.

        Raises:
          UnknownOperation: there are such outputs alone.
        """
        known: dict[str, Value] = {}
        unknown: dict[str, UnknownOperation] = {}
        for name, value in outputs.items():
            if isinstance(value, UnknownOperation):
                unknown[name] = value
            elif has_nan(value):
                unknown[name] = UnknownOperation(name, "", "the output is NaN")
            else:
                known[name] = value
        if unknown and not known:
            raise next(iter(unknown.values()))
        self.tape.outputs = {name: getattr(each, "ref", None) or each for name, each in outputs.items()}
        self.tape.read = dict(self.read)
        parts = tuple(self.operations), known, tuple(self.narrowing), dict(self.read), self.axioms
        whole = Program(*parts, self._requirements, self._tables(known.values()), unknown, self.tape)
        return whole.restricted(known.keys())

    def _tables(self, outputs: Iterable[Value]) -> dict[int, Table]:
        """Returns the last operations that depend on no weight."""
        is_known = [
            value.known is not None and one.name != "broadcast" and bool(np.isfinite(value.known).all())
            for one, value in zip(self.operations, self._values, strict=True)
        ]
        read = {value.node for value in outputs if value.node is not None}
        read |= {each for node, one in enumerate(self.operations) if not is_known[node] for each in one.inputs}
        return {node: self._roundings.table(node) for node in sorted(read) if is_known[node]}

    # --- leaves

    def input(self, name: str, shape: Sequence[int]) -> Value:
        return self._emit("input", (), shape, {"name": name})

    def constant(self, array: Any) -> Value:
        """Returns an array that depends on no weight. A float stands for its own value, or for the number that the
        axioms on constants read it as."""
        array = np.asarray(array)
        if array.dtype.kind == "c":
            raise UnknownOperation("constant", self.line, "complex numbers")
        if array.dtype == bool or np.issubdtype(array.dtype, np.integer):
            return Value(array.shape, "bool" if array.dtype == bool else "int", array)
        if array.size > 1 and (array == array.flat[0]).all():
            return self.broadcast(self.constant(array.flat[0]), array.shape)
        unit, array = unit_of(array.dtype), array.astype(np.float64)
        narrow = {"unit": unit} if unit > WIDEST and not is_meant(array, unit).all() else {}
        return self._emit("constant", (), array.shape, {"array": array, **narrow}, known=array)

    def computed(self, array: Any, radius: Any) -> Value:
        """Returns an array that depends on no weight and that the program computed, off by up to `radius`."""
        array = np.asarray(array)
        if array.dtype == bool or np.issubdtype(array.dtype, np.integer):
            return self.constant(array)
        radius = np.broadcast_to(radius, array.shape)
        if array.size > 1 and (array == array.flat[0]).all():
            return self.broadcast(self.computed(array.flat[0], radius.max()), array.shape)
        if not radius.any():
            return self.constant(array)
        array = array.astype(np.float64)
        return self._emit("constant", (), array.shape, {"array": array, "radius": radius}, known=array)

    def radius(self, x: Value) -> np.ndarray:
        """Bounds the rounding error of the elements of a value that depends on no weight, as the program computed it; 0
        for integers."""
        return np.zeros(x.shape) if x.node is None else self._roundings.as_run(x.node)

    # --- moves

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        if shape == x.shape:
            return x
        if x.table is not None:
            return self.moved_choices(x, lambda array: array.reshape(shape))
        if x.size == 1 and x.known is not None and x.node is not None and self.operations[x.node].name == "constant":
            array = x.known.reshape(shape)
            attributes = {**self.operations[x.node].attributes, "array": array}
            if "radius" in attributes:
                attributes["radius"] = attributes["radius"].reshape(shape)
            return self._emit("constant", (), shape, attributes, known=array)
        if x.node is not None and self.operations[x.node].name == "reshape":
            x = self._as(x.kind, self.operations[x.node].inputs[0])
            if shape == x.shape:
                return x
        return self._move("reshape", x, shape, lambda array: np.reshape(array, shape))

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        order = tuple(int(axis) for axis in order)
        if order == tuple(range(len(order))):
            return x
        if x.table is not None:
            return self.moved_choices(x, lambda array: array.transpose(order))
        shape = tuple(x.shape[axis] for axis in order)
        return self._move("transpose", x, shape, lambda array: np.transpose(array, order), order=order)

    def broadcast(self, x: Value, shape: Sequence[int]) -> Value:
        """Broadcasts as NumPy does."""
        shape = tuple(shape)
        if shape == x.shape:
            return x
        if x.table is not None:
            return self.moved_choices(x, lambda array: np.broadcast_to(array, shape))
        inner = self._inner(x)
        if inner is not x and len(inner.shape) == len(x.shape):
            return self.broadcast(inner, shape)
        return self._move("broadcast", x, shape, lambda array: np.broadcast_to(array, shape))

    def take(self, x: Value, places: np.ndarray) -> Value:
        """Returns the elements at these places of the flat array; zero for place −1."""
        places = np.asarray(places, np.int64)
        if x.table is not None:
            return self.moved_choices(x, lambda array: array.ravel()[places])
        x, places = self._source(x, places)
        if places.size == x.size and np.array_equal(places.ravel(), np.arange(x.size)):
            return self.reshape(x, places.shape)

        def moved(array: np.ndarray) -> np.ndarray:
            return np.append(np.ravel(array), np.zeros(1, array.dtype))[places]

        return self._move("take", x, places.shape, moved, places=places)

    def moved_choices(self, x: Value, move: Callable[[np.ndarray], np.ndarray]) -> Value:
        """Returns the elements of choices that a move of elements keeps, in their new places."""
        assert x.table is not None
        assert x.node is not None
        count = x.table.shape[-1]
        elements = np.asarray(move(np.arange(x.size).reshape(x.shape)))
        if elements.size * count > MOST_ELEMENTS:
            raise UnknownOperation("index", self.line, f"{elements.size} places among {count}")
        numbers = self.take(self._values[x.node], elements[..., None] * count + np.arange(count))
        return Value(elements.shape, "int", None, numbers.node, None, x.table.reshape(-1, count)[elements])

    def _source(self, x: Value, places: np.ndarray) -> tuple[Value, np.ndarray]:
        """Returns from which earlier array the elements come, through reshapes, takes, stacks, and writes elsewhere."""
        while x.node is not None and places.size:
            one = self.operations[x.node]
            if one.name == "take":
                places = np.append(one.attributes["places"], -1)[places]
            elif one.name == "concatenate" and math.prod(one.shape[: one.attributes["axis"]]) == 1:
                ends = np.cumsum([self._values[part].size for part in one.inputs])
                part = int(np.searchsorted(ends, places.max(), side="right"))
                start = int(ends[part - 1]) if part else 0
                if places.min() < start:
                    break
                x, places = self._as(x.kind, one.inputs[part]), places - start
                continue
            elif one.name == "put" and not one.attributes["adds"]:
                written = _inverted(one.attributes["places"], x.size)[places]
                is_written = (written >= 0) & (places >= 0)
                if is_written.any() and not is_written.all():
                    break
                x = self._as(x.kind, one.inputs[int(is_written.any())])
                places = written if is_written.any() else places
                continue
            elif one.name != "reshape":
                break
            x = self._as(x.kind, one.inputs[0])
        return x, places

    def _as(self, kind: Kind, node: int) -> Value:
        value = self._values[node]
        return Value(value.shape, kind, value.known, node, value.fills)

    def concatenate(self, parts: Sequence[Value], axis: int) -> Value:
        parts = self._alike(parts)
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        known = shadow(lambda *arrays: np.concatenate(arrays, axis), *parts)
        if parts[0].kind in ("int", "bool"):
            return Value(tuple(shape), parts[0].kind, known)
        fills = None if all(part.fills is None for part in parts) else np.concatenate(list(map(fills_of, parts)), axis)
        return self._emit("concatenate", parts, shape, {"axis": axis}, kind=parts[0].kind, known=known, fills=fills)

    def put(self, x: Value, places: np.ndarray, updates: Value, *, adds: bool) -> Value:
        """Writes updates to places of the flat array, or adds them; drops those at place −1."""
        x, updates = self._alike([x, updates])
        places = np.asarray(places, np.int64).ravel()
        if not adds and self._are_there(x, places, updates):
            return x
        if not adds and distinct(kept := places[places >= 0]).size < kept.size:
            raise UnknownOperation(
                "put", self.line, "two elements are written to one place, in an order that isn't defined"
            )

        def changed(array: np.ndarray, new: np.ndarray, adds: bool = adds) -> np.ndarray:
            flat, kept = np.array(array).ravel(), places >= 0
            if adds:
                np.add.at(flat, places[kept], np.ravel(new)[kept])
            else:
                flat[places[kept]] = np.ravel(new)[kept]
            return flat.reshape(x.shape)

        known = shadow(changed, x, updates)
        if x.kind in ("int", "bool"):
            return Value(x.shape, x.kind, known)
        fills = None if x.fills is None and updates.fills is None else changed(fills_of(x), fills_of(updates))
        attributes = {"places": places, "adds": adds}
        found = self._emit("put", [x, updates], x.shape, attributes, kind=x.kind, known=known, fills=fills)
        return found if adds else self._written_as_a_whole(found) or found

    def _are_there(self, x: Value, places: np.ndarray, updates: Value) -> bool:
        """Returns whether the updates equal x at these places: a block that a kernel reads and doesn't change."""
        if x.node is None or updates.node is None:
            return False
        source, read = self._source(updates, np.arange(updates.size))
        return source.node == x.node and np.array_equal(read, places)

    def _written_as_a_whole(self, x: Value) -> Value | None:
        """Returns the elements of an array that have all been written since it was NaN; None for another array. So the
        initial state of memory that is written before it is read never shows."""
        left, found, parts, node = np.ones(x.size, bool), np.zeros(x.size, np.int64), list[Value](), x.node or 0
        while self.operations[node].name == "put" and not self.operations[node].attributes["adds"]:
            places, (node, written) = self.operations[node].attributes["places"], self.operations[node].inputs
            is_new = (places >= 0) & left[places]
            found[places[is_new]] = sum(part.size for part in parts) + np.flatnonzero(is_new)
            left[places[is_new]] = False
            parts.append(self.reshape(self._values[written], (places.size,)))
        if left.any() or not has_nan(self._values[node]):
            return None
        return self.take(self.concatenate(parts, 0), found.reshape(x.shape))

    # --- kinds

    def as_float(self, x: Value) -> Value:
        if x.kind == "float":
            return x if x.node is None else self._rewritten.get(x.node, x)
        if x.kind == "indicator":
            return Value(x.shape, "float", None, x.node)
        if x.known is None:
            raise UnknownOperation("cast", self.line, "an integer depends on weights")
        return self.constant(x.known.astype(np.float64))

    def rounded(self, x: Value, known: np.ndarray) -> Value:
        """Returns a constant whose floats the framework computed, as its rounding may differ: 0.3/0.1 is below 3.
        Overflows and underflows are kept."""
        if x.node is None or x.kind != "float" or x.known is None or np.array_equal(known, x.known, equal_nan=True):
            return x
        unit, smallest, known = unit_of(known.dtype), smallest_of(known.dtype), np.asarray(known, np.float64)
        if (
            (np.isfinite(known) != np.isfinite(x.known))
            | ((known == 0) & (x.known != 0) & (np.abs(x.known) < smallest))
        ).any():
            if (np.isinf(known) & np.isfinite(x.known)).any():
                self.axioms.setdefault("masks", {})[self.line] = None
            return self.computed(known, half_ulp(known, unit))
        narrow = {"unit": unit} if unit > WIDEST else {}
        return self._emit("rounded", [x], x.shape, {"digest": digest_of(known), **narrow}, known=known)

    @recorded
    def narrow(self, dtype: str) -> None:
        """Notes an operation that rounds to a narrower float type. It is left out of the function."""
        self.narrowing[f"{dtype}{f' ({self.line})' if self.line else ''}"] = None

    # --- within

    def _as_indicator(self, x: Value) -> Value:
        return Value(x.shape, "indicator", None, x.node)

    def _inner(self, x: Value) -> Value:
        """Returns the operand of a broadcast; x itself for another value."""
        if x.node is None or self.operations[x.node].name != "broadcast":
            return x
        return self._values[self.operations[x.node].inputs[0]]

    @recorded
    def is_number(self, x: Value, number: float) -> bool:
        """Returns whether x is this constant."""
        inner = self._inner(x)
        return (
            inner.known is not None
            and inner.size == 1
            and bool((inner.known == number).all())
            and (self.operations[inner.node or 0].name == "constant")
        )

    def _pair(self, x: Value, y: Value) -> tuple[Value, Value]:
        x, y = self.as_float(x), self.as_float(y)
        shape = np.broadcast_shapes(x.shape, y.shape)
        return self.broadcast(x, shape), self.broadcast(y, shape)

    def _alike(self, values: Sequence[Value]) -> list[Value]:
        """Converts values to one kind: known integers or booleans, indicators, or floats."""
        kinds = {value.kind for value in values}
        if len(kinds) == 1 and "float" not in kinds:
            return list(values)
        if kinds == {"int", "bool"}:
            return [self.constant(np.asarray(value.known).astype(np.int64)) for value in values]
        floats = [self.as_float(value) for value in values]
        return floats if "float" in kinds or "int" in kinds else [self._as_indicator(value) for value in floats]

    def _elementwise(self, name: str, x: Value, of_known: Callable[[np.ndarray], np.ndarray] | None) -> Value:
        """Applies a function before x is broadcast, not after."""
        x = self.as_float(x)
        inner = self._inner(x)
        if inner is not x:
            return self.broadcast(self._elementwise(name, inner, of_known), x.shape)
        if x.known is None and masks.infinite(x.fills):
            raise UnknownOperation(name, self.line, "of ∞")
        return self._emit(name, [x], x.shape, known=None if of_known is None else shadow(of_known, x))

    def _move(self, name: str, x: Value, shape: tuple[int, ...], move: Callable[..., Any], **attributes: Any) -> Value:
        known = None if x.known is None else move(x.known)
        if x.kind in ("int", "bool"):
            return Value(shape, x.kind, known)
        fills = None if x.fills is None else move(x.fills)
        return self._emit(name, [x], shape, attributes, kind=x.kind, known=known, fills=fills)

    def _emit(
        self,
        name: str,
        inputs: Sequence[Value],
        shape: Sequence[int],
        attributes: Mapping[str, Any] | None = None,
        *,
        kind: Kind = "float",
        known: np.ndarray | None = None,
        fills: np.ndarray | None = None,
    ) -> Value:
        """Appends an operation, unless the program has it, and returns its value."""
        attributes, shape, nodes = attributes or {}, tuple(shape), []
        for value in inputs:
            assert value.node is not None
            nodes.append(value.node)
        if name in ("add", "multiply"):
            nodes.sort()
        if known is not None and known.dtype.kind == "f":
            fills = masks.fills_of_constant(known)
        elif name not in ("where", "put") and any(map(has_nan, inputs)):
            raise UnknownOperation(name, self.line, "a constant is NaN")
        fills = masks.tidy(fills)
        key = name, tuple(nodes), shape, key_of(attributes)
        if key not in self._nodes:
            self._nodes[key] = len(self.operations)
            self.operations.append(Operation(name, tuple(nodes), shape, attributes, self.line, self.site))
            self._values.append(Value(shape, "float", known, self._nodes[key], fills))
            self._note_doubts(self._nodes[key])
        return Value(shape, kind, known, self._nodes[key], fills)

    # --- domains of operations

    def _note_doubts(self, node: int) -> None:
        """Notes whether the newest operation, or one that it depends on, may be undefined for many weights."""
        one = self.operations[node]
        doubts = frozenset[int]().union(*(self._doubts[each] for each in one.inputs))
        if one.name in undefined.REQUIRES and self._values[node].known is None:
            required = undefined.required(one, self._values, self._signs, self.operations)
            self._requirements[node] = required
            doubts |= frozenset() if required.is_shown else {node}
        self._doubts.append(frozenset() if one.name == "chosen" else doubts)
        if one.name in undefined.READS_INFINITY:
            self._refuse_infinity(one.name, *(self._values[each] for each in one.inputs))

    def doubts(self, *values: Value) -> frozenset[int]:
        """Returns the operations that these values depend on, and that may be undefined for many weights."""
        return frozenset[int]().union(*(self._doubts[each.node] for each in values if each.node is not None))

    @recorded
    def refuse_doubts(self, name: str, *values: Value, what: str = "it tells numbers from NaN and ∞") -> None:
        """Raises UnknownOperation if values may be undefined, for an operation that maps undefined values to
        numbers."""
        self._refuse(name, self.doubts(*values), what)

    def _refuse_infinity(self, name: str, *values: Value) -> None:
        """Raises UnknownOperation if values may be infinite, for an operation that maps ∞ to a number."""
        infinite = {each for each in self.doubts(*values) if self._requirements[each].may_be_infinite}
        self._refuse(name, infinite, "it makes a number of ∞")

    def _refuse(self, name: str, doubts: Collection[int], what: str) -> None:
        if doubts:
            first = min(doubts)
            why = undefined.described(self.operations[first], self._requirements[first])
            raise UnknownOperation(name, self.line, f"{what}, and {why}")

    def given(self, x: Value, *operands: Value) -> Value:
        """Returns x, undefined wherever an operand is: √w · √w is w only if w isn't negative."""
        lost = self.doubts(*operands) - self.doubts(x)
        if not lost:
            return x
        operands = tuple(each for each in operands if self.doubts(each) & lost)
        return self._emit("given", [x, *operands], x.shape, known=x.known, fills=x.fills)


def _inverted(places: np.ndarray, size: int) -> np.ndarray:
    """Returns the update that is written to each place of a flat array; −1 for none."""
    found = np.full(size, -1, np.int64)
    found[places[places >= 0]] = np.flatnonzero(places >= 0)
    return found


def fills_of(x: Value) -> np.ndarray:
    """Returns the constants that mask entries; 0 elsewhere."""
    return np.zeros(x.shape) if x.fills is None else x.fills


def has_nan(x: Value, where: Any = True) -> bool:
    return x.known is not None and x.known.dtype.kind == "f" and bool((np.isnan(x.known) & where).any())


def without(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def shadow(function: Callable[..., Any], *values: Value) -> np.ndarray | None:
    """Computes the known values: floats that depend on no weight, integers and booleans."""
    arrays = [value.known for value in values if value.known is not None]
    if len(arrays) < len(values):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(function(*arrays))
