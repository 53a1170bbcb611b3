"""Build a program, operation by operation: both frameworks' operations are lowered by calls of a `Builder`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from jax_transformer.proof.programs import Kind, Operation, Program, UnknownOperation, Value, key_of

OF_POSITIVES = frozenset(
    ("add", "multiply", "inverse", "root", "sum", "reshape", "transpose", "broadcast", "take", "concatenate", "where")
)
"""Operations whose results are positive if all that they read is."""
FILL = -1e4
"""An entry of attention logits to which a constant of at most this was assigned or added is a masked one."""


class Builder:
    """Appends operations to a program. An operation that the program has already isn't appended again."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.line = ""
        """The framework's operation that is lowered now, and its source line."""
        self.narrowing: dict[str, None] = {}
        self.axioms: dict[str, dict[str, None]] = {}
        """The axioms that were used while lowering, and where."""
        self.read: dict[str, int] = {}
        self._nodes: dict[Any, int] = {}
        self._values: list[Value] = []
        self._rewritten: dict[int, Value] = {}
        self._positive: dict[int, bool] = {}

    def program(self, outputs: Mapping[str, Value]) -> Program:
        """Returns the operations that these outputs need."""
        needed, waiting = set[int](), [value.node for value in outputs.values() if value.node is not None]
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                waiting += self.operations[node].inputs
        numbers = {node: number for number, node in enumerate(sorted(needed))}
        operations = [self.operations[node] for node in numbers]
        renumbered = [replace(one, inputs=tuple(numbers[each] for each in one.inputs)) for one in operations]
        named = {
            name: value if value.node is None else replace(value, node=numbers[value.node])
            for name, value in outputs.items()
        }
        return Program(tuple(renumbered), named, tuple(self.narrowing), dict(self.read), self.axioms)

    # --- leaves

    def input(self, name: str, shape: Sequence[int]) -> Value:
        return self._emit("input", (), shape, {"name": name})

    def constant(self, array: Any) -> Value:
        """Returns an array that depends on no weight. A float stands for the real number that it is, or that the axioms
        on constants read it as."""
        array = np.asarray(array)
        if array.dtype == bool or np.issubdtype(array.dtype, np.integer):
            return Value(array.shape, "bool" if array.dtype == bool else "int", array)
        array = array.astype(np.float64)
        if array.size > 1 and (array == array.flat[0]).all():
            return self.broadcast(self.constant(array.flat[0]), array.shape)
        return self._emit("constant", (), array.shape, {"array": array}, known=array, fills=array <= FILL)

    def rational(self, value: Fraction) -> Value:
        """Returns a number that no float has to stand for."""
        array = np.asarray(float(value))
        return self._emit("constant", (), (), {"array": array, "exactly": value}, known=array)

    # --- moves

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        if shape == x.shape:
            return x
        if x.node is not None and self.operations[x.node].name == "reshape":
            x = self._as(x.kind, self.operations[x.node].inputs[0])
            if shape == x.shape:
                return x
        return self._move("reshape", x, shape, lambda array: np.reshape(array, shape))

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        order = tuple(int(axis) for axis in order)
        if order == tuple(range(len(order))):
            return x
        shape = tuple(x.shape[axis] for axis in order)
        return self._move("transpose", x, shape, lambda array: np.transpose(array, order), order=order)

    def broadcast(self, x: Value, shape: Sequence[int]) -> Value:
        """Broadcasts as NumPy does."""
        shape = tuple(shape)
        if shape == x.shape:
            return x
        inner = self._inner(x)
        if inner is not x and len(inner.shape) == len(x.shape):
            return self.broadcast(inner, shape)
        return self._move("broadcast", x, shape, lambda array: np.broadcast_to(array, shape))

    def take(self, x: Value, places: np.ndarray) -> Value:
        """Returns the elements at these places of the flat array; zero where a place is −1."""
        places = np.asarray(places, np.int64)
        x, places = self._source(x, places)
        if places.size == x.size and np.array_equal(places.ravel(), np.arange(x.size)):
            return self.reshape(x, places.shape)

        def moved(array: np.ndarray) -> np.ndarray:
            return np.append(np.ravel(array), np.zeros(1, array.dtype))[places]

        return self._move("take", x, places.shape, moved, places=places)

    def _source(self, x: Value, places: np.ndarray) -> tuple[Value, np.ndarray]:
        """Returns from which earlier array the elements come, through reshapes, takes and stacks."""
        while x.node is not None and places.size:
            one = self.operations[x.node]
            if one.name == "take":
                inner = one.attributes["places"].ravel()
                places = np.where(places < 0, -1, inner[places])
            elif one.name == "concatenate" and math.prod(one.shape[: one.attributes["axis"]]) == 1:
                ends = np.cumsum([self._values[part].size for part in one.inputs])
                part = int(np.searchsorted(ends, places.max(), side="right"))
                start = int(ends[part - 1]) if part else 0
                if places.min() < start:
                    break
                x, places = self._as(x.kind, one.inputs[part]), places - start
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
        known = _shadow(lambda *arrays: np.concatenate(arrays, axis), *parts)
        if parts[0].kind in ("int", "bool"):
            return Value(tuple(shape), parts[0].kind, known)
        fills = np.concatenate([_fills(part) for part in parts], axis)
        return self._emit("concatenate", parts, shape, {"axis": axis}, kind=parts[0].kind, known=known, fills=fills)

    def put(self, x: Value, places: np.ndarray, updates: Value, *, adds: bool) -> Value:
        """Writes updates to places of the flat array, or adds them; drops those at place −1."""
        x, updates = self._alike([x, updates])
        places = np.asarray(places, np.int64).ravel()

        def changed(array: np.ndarray, new: np.ndarray, adds: bool = adds) -> np.ndarray:
            flat, kept = np.array(array).ravel(), places >= 0
            if adds:
                np.add.at(flat, places[kept], np.ravel(new)[kept])
            else:
                flat[places[kept]] = np.ravel(new)[kept]
            return flat.reshape(x.shape)

        known = _shadow(changed, x, updates)
        if x.kind in ("int", "bool"):
            return Value(x.shape, x.kind, known)
        fills = None if adds else changed(_fills(x), _fills(updates), False)
        attributes = {"places": places, "adds": adds}
        return self._emit("put", [x, updates], x.shape, attributes, kind=x.kind, known=known, fills=fills)

    def where(self, condition: Value, x: Value, y: Value) -> Value:
        """Returns x where the condition holds, else y."""
        x, y = self._alike([x, y])
        shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)
        condition, x, y = (self.broadcast(one, shape) for one in (condition, x, y))
        if condition.known is None:
            x, y = self.as_float(x), self.as_float(y)
            return self.add(y, self.multiply(self.as_float(condition), self.subtract(x, y)))
        chosen = condition.known.astype(bool)
        known = _shadow(lambda left, right: np.where(chosen, left, right), x, y)
        if x.kind in ("int", "bool"):
            return Value(shape, x.kind, known)
        if chosen.size and (chosen.all() or not chosen.any()):
            return x if chosen.all() else y
        fills = np.where(chosen, _fills(x), _fills(y))
        return self._emit("where", [x, y], shape, {"condition": chosen}, kind=x.kind, known=known, fills=fills)

    # --- arithmetic

    def add(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        for one, other in ((x, y), (y, x)):
            if self.is_number(one, 0):
                return other
        return self._emit("add", [x, y], x.shape, known=_shadow(np.add, x, y), fills=_fills(x) | _fills(y))

    def subtract(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        if self.is_number(y, 0):
            return x
        return self._emit("subtract", [x, y], x.shape, known=_shadow(np.subtract, x, y), fills=x.fills)

    def negate(self, x: Value) -> Value:
        x = self.as_float(x)
        return self._emit("negate", [x], x.shape, known=_shadow(np.negative, x))

    def multiply(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        for one, other in ((x, y), (y, x)):
            if self.is_number(one, 1):
                return other
        met = self._root_meets_radicand(x, y) or self._root_meets_radicand(y, x)
        if met is not None:
            return self.broadcast(met, x.shape)
        known, fills = _shadow(np.multiply, x, y), None
        for one, other in ((x, y), (y, x)):
            if one.fills is not None and other.known is not None and (other.known > 0).all():
                fills = one.fills
        if known is not None:
            fills = known <= FILL
        return self._emit("multiply", [x, y], x.shape, known=known, fills=fills)

    def divide(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        return x if self.is_number(y, 1) else self.multiply(x, self.inverse(y))

    def inverse(self, x: Value) -> Value:
        return self._elementwise("inverse", x, np.reciprocal)

    def root(self, x: Value) -> Value:
        return self._elementwise("root", x, np.sqrt)

    def power(self, x: Value, exponent: int | Fraction) -> Value:
        """Returns x to an integer, or to a half of one."""
        n = Fraction(exponent)
        if n.denominator == 2:
            return self.power(self.root(x), n.numerator)
        if n.denominator != 1:
            raise UnknownOperation("power", self.line, f"the exponent {exponent} is no multiple of 1/2")
        if n < 0:
            return self.power(self.inverse(x), -n)
        x = self.as_float(x)
        if n == 1:
            return x
        if n == 2 and (radicands := self._radicands(x)) is not None:
            return radicands
        exponent = n.numerator
        known = _shadow(lambda array: array**exponent, x)
        return self._emit("power", [x], x.shape, {"exponent": exponent}, known=known)

    def _radicands(self, x: Value) -> Value | None:
        """Returns what x consists of the roots of, which are its squares (axiom "roots"); None if it doesn't."""
        one = self.operations[x.node or 0]
        if one.name == "root":
            return self._values[one.inputs[0]]
        if one.name not in ("reshape", "concatenate"):
            return None
        parts = [self._radicands(self._values[each]) for each in one.inputs]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            return None
        return (
            self.reshape(found[0], x.shape)
            if one.name == "reshape"
            else self.concatenate(found, one.attributes["axis"])
        )

    def _root_meets_radicand(self, x: Value, y: Value) -> Value | None:
        """Reads a radicand v that is multiplied or divided by its own root as the root's square (axiom "roots").

        (1/√v)/v becomes (1/√v)³: JAX's derivative of 1/√v has the first, PyTorch's the second.
        """
        x, y = self._inner(x), self._inner(y)
        if x.node is None or y.node is None:
            return None
        left, right = self.operations[x.node], self.operations[y.node]
        if left.name == "inverse" and self.operations[left.inputs[0]].name == "root":
            radicand = self.operations[left.inputs[0]].inputs[0]
            if right.name == "inverse" and right.inputs[0] == radicand:
                return self.power(x, 3)
            if y.node == radicand:
                return self._values[left.inputs[0]]
        if left.name == "root" and right.name == "inverse" and right.inputs[0] == left.inputs[0]:
            return self.inverse(x)
        return None

    def matmul(self, x: Value, y: Value) -> Value:
        """Returns x [B, M, K] · y [B, K, N]."""
        x, y = self.as_float(x), self.as_float(y)
        shape = (x.shape[0], x.shape[1], y.shape[2])
        return self._emit("matmul", [x, y], shape, known=_shadow(np.matmul, x, y))

    def sum(self, x: Value, axes: Sequence[int]) -> Value:
        """Sums over axes, which go. If they are rows of exponentials, these are written about their means first."""
        axes = tuple(sorted(int(axis) for axis in axes))
        if x.kind in ("int", "bool"):
            return Value(_without(x.shape, axes), "int", _shadow(lambda array: array.sum(axis=axes), x))
        x = self.as_float(x)
        if not axes:
            return x
        if x.node is not None and self.operations[x.node].name == "exp" and len(axes) == 1:
            exponent = self._values[self.operations[x.node].inputs[0]]
            x = self._rewritten[x.node] = self._exp_of_rows(exponent, axes[0])
        known = _shadow(lambda array: array.sum(axis=axes), x)
        return self._emit("sum", [x], _without(x.shape, axes), {"axes": axes}, known=known)

    def cumulative_sum(self, x: Value, axis: int) -> Value:
        known = _shadow(lambda array: np.cumsum(array, axis=axis), x)
        if x.kind in ("int", "bool"):
            return Value(x.shape, "int", known)
        return self._emit("cumulative_sum", [self.as_float(x)], x.shape, {"axis": axis}, known=known)

    # --- functions

    def exp(self, x: Value) -> Value:
        """Returns exp(x). If a number was subtracted from each row of x, the row is written about its mean: softmax and
        its derivatives then don't depend on that number."""
        x = self.as_float(x)
        axis = self._row_axis(x)
        return self._elementwise("exp", x, np.exp) if axis is None else self._exp_of_rows(x, axis)

    def log(self, x: Value) -> Value:
        """Returns log(x). The logarithm of a sum of exponentials about their mean m is m plus that of the rest."""
        x = self.as_float(x)
        inner, total = self._inner(x), None
        node = inner.node
        while node is not None and self.operations[node].name == "reshape":
            node = self.operations[node].inputs[0]
        if node is not None and self.operations[node].name == "sum":
            total = self._sum_about_mean(self.operations[node])
        if total is None:
            return self._elementwise("log", x, np.log)
        of_row, mean = total
        shape = inner.shape
        logarithm = self.add(self.reshape(self._elementwise("log", of_row, np.log), shape), self.reshape(mean, shape))
        return self.broadcast(logarithm, x.shape)

    def erf(self, x: Value) -> Value:
        return self._elementwise("erf", x, None)

    def tanh(self, x: Value) -> Value:
        return self._elementwise("tanh", x, np.tanh)

    def sin(self, x: Value) -> Value:
        return self._elementwise("sin", x, np.sin)

    def cos(self, x: Value) -> Value:
        return self._elementwise("cos", x, np.cos)

    def cut(self, x: Value) -> Value:
        """Returns x as the value of an unknown function of it, which begins degrees anew."""
        x = self.as_float(x)
        return self._emit("cut", [x], x.shape, fills=x.fills)

    def logistic(self, x: Value) -> Value:
        """Returns σ(x) = (1 + tanh(x/2))/2."""
        half = self.constant(0.5)
        return self.multiply(half, self.add(self.constant(1.0), self.tanh(self.multiply(x, half))))

    def softmax(self, x: Value, axis: int) -> Value:
        x = self._below_largest(x, axis)
        exp = self._exp_of_rows(x, axis % len(x.shape))
        return self.divide(exp, self.broadcast(self.kept_sum(exp, axis), x.shape))

    def log_softmax(self, x: Value, axis: int) -> Value:
        x = self._below_largest(x, axis)
        exp = self._exp_of_rows(x, axis % len(x.shape))
        return self.subtract(x, self.broadcast(self.log(self.kept_sum(exp, axis)), x.shape))

    def _below_largest(self, x: Value, axis: int) -> Value:
        """Subtracts each row's largest entry, which float64 needs."""
        x, axis = self.as_float(x), axis % len(x.shape)
        largest = self.reshape(self.largest(x, (axis,)), (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
        return self.subtract(x, self.broadcast(largest, x.shape))

    def kept_sum(self, x: Value, axis: int) -> Value:
        """Sums over an axis, which stays with size 1."""
        axis %= len(x.shape)
        return self.reshape(self.sum(x, (axis,)), (*x.shape[:axis], 1, *x.shape[axis + 1 :]))

    def step(self, x: Value) -> Value:
        """Returns [x > 0]; of x · [x > 0], it is [x > 0]."""
        if x.known is not None:
            return Value(x.shape, "bool", x.known > 0)
        x = self.as_float(x)
        assert x.node is not None
        one = self.operations[x.node]
        if self._is_positive(x.node):
            self.axioms.setdefault("positive", {})[self.line] = None
            return self.constant(np.ones(x.shape, bool))
        if one.name == "multiply":
            for relu, flag in (one.inputs, one.inputs[::-1]):
                if self.operations[flag].name == "step" and self.operations[flag].inputs[0] == relu:
                    return Value(x.shape, "indicator", None, flag)
        return self._emit("step", [x], x.shape, kind="indicator")

    def _is_positive(self, node: int) -> bool:
        """Returns whether a value is a sum of squares, or made of such so that it is positive almost everywhere."""
        if node not in self._positive:
            one, known = self.operations[node], self._values[node].known
            inputs = one.inputs
            if known is not None:
                found = bool((known > 0).all())
            elif one.name == "power":
                found = one.attributes["exponent"] % 2 == 0 or self._is_positive(inputs[0])
            elif one.name == "multiply" and inputs[0] == inputs[1]:
                found = True
            elif one.name == "row_exp":
                found = "counts" not in one.attributes
            elif one.name == "sum" and self._sums_exponentials(one):
                found = True
            elif one.name == "take" and (one.attributes["places"] < 0).any():
                found = False
            else:
                found = one.name == "exp" or (one.name in OF_POSITIVES and all(map(self._is_positive, inputs)))
            self._positive[node] = found
        return self._positive[node]

    def _sums_exponentials(self, total: Operation) -> bool:
        """Returns whether whole rows of exponentials are summed, in each of which an entry counts."""
        product = self.operations[total.inputs[0]]
        factors = [product] if product.name == "row_exp" else [self.operations[each] for each in product.inputs]
        if product.name not in ("row_exp", "multiply"):
            return False
        rows = [one for one in factors if one.name == "row_exp" and one.attributes["axis"] in total.attributes["axes"]]
        others = [each for each in product.inputs if self.operations[each].name != "row_exp"]
        return len(rows) == 1 and (product.name == "row_exp" or all(map(self._is_positive, others)))

    def equal(self, x: Value, y: Value) -> Value:
        if x.known is not None and y.known is not None:
            known = x.known == y.known
            return Value(known.shape, "bool", known)
        x, y = self._pair(x, y)
        if x.node == y.node:
            return self.constant(np.ones(x.shape, bool))
        if any(one.known is not None and np.isinf(one.known).all() for one in (x, y)):
            return self.constant(np.zeros(x.shape, bool))
        return self._emit("equal", [x, y], x.shape, kind="indicator")

    def largest(self, x: Value, axes: Sequence[int]) -> Value:
        """Returns the maximum over axes, which go."""
        axes = tuple(sorted(int(axis) for axis in axes))
        known = _shadow(lambda array: array.max(axis=axes), x)
        if x.kind in ("int", "bool"):
            return Value(_without(x.shape, axes), x.kind, known)
        x = self.as_float(x)
        attributes = {"axes": axes, **_counts(x, axes)}
        return self._emit("largest", [x], _without(x.shape, axes), attributes, known=known)

    def maximum(self, x: Value, y: Value) -> Value:
        """Returns y + (x − y) · [x > y]."""
        for one, other in ((x, y), (y, x)):
            if other.known is not None and other.kind == "float" and np.isneginf(other.known).all():
                return one
        x, y = self._pair(x, y)
        difference = self.subtract(x, y)
        return self.add(y, self.multiply(difference, self.as_float(self.step(difference))))

    def minimum(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        difference = self.subtract(x, y)
        return self.subtract(x, self.multiply(difference, self.as_float(self.step(difference))))

    def sign(self, x: Value) -> Value:
        """Returns 2 [x > 0] − 1, which is the sign of x unless it is zero."""
        step = self.step(x)
        if step.known is not None:
            return self.constant(np.where(step.known, 1.0, -1.0))
        return self.subtract(self.multiply(self.constant(2.0), self.as_float(step)), self.constant(1.0))

    def absolute(self, x: Value) -> Value:
        return self.multiply(x, self.sign(x))

    def _exp_of_rows(self, x: Value, axis: int) -> Value:
        """Returns exp(x − m) · exp(m), m the mean of the entries of each row that aren't masked."""
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        attributes = {"axis": axis, **_counts(x, (axis,))}
        mean = self._emit("row_mean", [x], shape, attributes)
        of_row = self._emit("row_exp", [x, mean], x.shape, attributes)
        return self.multiply(of_row, self.broadcast(self._elementwise("exp", mean, np.exp), x.shape))

    def _row_axis(self, x: Value) -> int | None:
        """Returns the axis along which one number was subtracted from each row of x; None if none was."""
        if x.node is None or self.operations[x.node].name != "subtract":
            return None
        other = self._values[self.operations[x.node].inputs[1]]
        inner = self._inner(other)
        if inner is other:
            return None
        shape = (1,) * (len(x.shape) - len(inner.shape)) + inner.shape
        axes = [axis for axis, (small, large) in enumerate(zip(shape, x.shape, strict=True)) if small == 1 < large]
        return axes[-1] if len(axes) == 1 else None

    def _sum_about_mean(self, total: Operation) -> tuple[Value, Value] | None:
        """Returns Σ exp(x − m) and m, if that is what is summed but for the factor exp(m)."""
        product = self.operations[total.inputs[0]]
        if product.name != "multiply":
            return None
        for row, scale in (product.inputs, product.inputs[::-1]):
            of_row, factor = self.operations[row], self.operations[scale]
            if of_row.name != "row_exp" or total.attributes["axes"] != (of_row.attributes["axis"],):
                continue
            exp = self.operations[factor.inputs[0]] if factor.name == "broadcast" else factor
            if exp.name == "exp" and exp.inputs[0] == of_row.inputs[1]:
                return self.sum(self._values[row], total.attributes["axes"]), self._values[exp.inputs[0]]
        return None

    # --- kinds

    def as_float(self, x: Value) -> Value:
        if x.kind == "float":
            return x if x.node is None else self._rewritten.get(x.node, x)
        if x.kind == "indicator":
            return Value(x.shape, "float", None, x.node)
        if x.known is None:
            raise UnknownOperation("cast", self.line, "an integer depends on weights")
        return self.constant(x.known.astype(np.float64))

    def logical_not(self, x: Value) -> Value:
        if x.known is not None:
            return Value(x.shape, "bool", ~x.known.astype(bool))
        return self._as_indicator(self.subtract(self.constant(1.0), self.as_float(x)))

    def logical_and(self, x: Value, y: Value) -> Value:
        if x.known is not None and y.known is not None:
            both = x.known & y.known
            return Value(both.shape, "bool" if both.dtype == bool else "int", both)
        return self._as_indicator(self.multiply(self.as_float(x), self.as_float(y)))

    def logical_or(self, x: Value, y: Value) -> Value:
        return self.logical_not(self.logical_and(self.logical_not(x), self.logical_not(y)))

    def narrowed(self, x: Value, dtype: str) -> Value:
        """Notes a cast to a narrower float type, and leaves the value as it is."""
        if x.kind == "float" and x.known is None:
            self.narrowing[f"{dtype}{f' ({self.line})' if self.line else ''}"] = None
        return x

    # --- within

    def _as_indicator(self, x: Value) -> Value:
        return Value(x.shape, "indicator", None, x.node)

    def _inner(self, x: Value) -> Value:
        """Returns what x broadcasts; x itself if it broadcasts nothing."""
        if x.node is None or self.operations[x.node].name != "broadcast":
            return x
        return self._values[self.operations[x.node].inputs[0]]

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
        """Returns values of one kind: known integers or booleans, indicators, or floats."""
        kinds = {value.kind for value in values}
        if len(kinds) == 1 and "float" not in kinds:
            return list(values)
        floats = [self.as_float(value) for value in values]
        return floats if "float" in kinds or "int" in kinds else [self._as_indicator(value) for value in floats]

    def _elementwise(self, name: str, x: Value, shadow: Callable[[np.ndarray], np.ndarray] | None) -> Value:
        """Applies a function before x is broadcast, not after."""
        x = self.as_float(x)
        inner = self._inner(x)
        if inner is not x:
            return self.broadcast(self._elementwise(name, inner, shadow), x.shape)
        return self._emit(name, [x], x.shape, known=None if shadow is None else _shadow(shadow, x))

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
        fills = fills if fills is not None and fills.any() else None
        key = name, tuple(nodes), shape, key_of(attributes)
        if key not in self._nodes:
            self._nodes[key] = len(self.operations)
            self.operations.append(Operation(name, tuple(nodes), shape, attributes, self.line))
            self._values.append(Value(shape, "float", known, self._nodes[key], fills))
        return Value(shape, kind, known, self._nodes[key], fills)


def _fills(x: Value) -> np.ndarray:
    return np.zeros(x.shape, bool) if x.fills is None else x.fills


def _counts(x: Value, axes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Returns which entries of rows count: those that aren't masked, and all of a row that is masked as a whole."""
    return {} if x.fills is None else {"counts": ~x.fills | x.fills.all(axis=axes, keepdims=True)}


def _without(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _shadow(function: Callable[..., Any], *values: Value) -> np.ndarray | None:
    """Computes what is known of floats that depend on no weight, and of integers and booleans."""
    arrays = [value.known for value in values if value.known is not None]
    if len(arrays) < len(values):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(function(*arrays))
