"""Build a program, operation by operation: both frameworks' operations are lowered by calls of a `Builder`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from jax_transformer.proof import masks
from jax_transformer.proof.constants import is_root
from jax_transformer.proof.programs import Kind, Operation, Program, UnknownOperation, Value, key_of
from jax_transformer.proof.scales import Scales
from jax_transformer.proof.signs import Signs


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
        self._scales = Scales(self.operations, self._values)
        self._signs = Signs(self.operations, self._values)
        self._negated: dict[int, Value] = {}
        """1 − s → s, for steps s."""
        self._chosen: dict[int, tuple[int, Value, Value]] = {}
        """Results of `where` whose condition is a step s → s, the value where it is 1, the value where it is 0."""
        self._extremes: dict[int, tuple[int, int]] = {}
        """Maxima → what they are the maxima of: the value, and what it has to be at least."""

    def program(self, outputs: Mapping[str, Value]) -> Program:
        """Returns the operations that these outputs need."""
        for name, value in outputs.items():
            if _has_nan(value):
                raise UnknownOperation(name, "", "the output is NaN")
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
        if array.dtype.kind == "c":
            raise UnknownOperation("constant", self.line, "complex numbers")
        if array.dtype == bool or np.issubdtype(array.dtype, np.integer):
            return Value(array.shape, "bool" if array.dtype == bool else "int", array)
        array = array.astype(np.float64)
        if array.size > 1 and (array == array.flat[0]).all():
            return self.broadcast(self.constant(array.flat[0]), array.shape)
        return self._emit("constant", (), array.shape, {"array": array}, known=array)

    # --- moves

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        if shape == x.shape:
            return x
        if x.size == 1 and x.known is not None and x.node is not None and self.operations[x.node].name == "constant":
            array = x.known.reshape(shape)
            return self._emit(
                "constant", (), shape, {**self.operations[x.node].attributes, "array": array}, known=array
            )
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
        fills = None if all(part.fills is None for part in parts) else np.concatenate(list(map(_fills, parts)), axis)
        return self._emit("concatenate", parts, shape, {"axis": axis}, kind=parts[0].kind, known=known, fills=fills)

    def put(self, x: Value, places: np.ndarray, updates: Value, *, adds: bool) -> Value:
        """Writes updates to places of the flat array, or adds them; drops those at place −1."""
        x, updates = self._alike([x, updates])
        places = np.asarray(places, np.int64).ravel()
        if not adds and np.unique(kept := places[places >= 0]).size < kept.size:
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

        known = _shadow(changed, x, updates)
        if x.kind in ("int", "bool"):
            return Value(x.shape, x.kind, known)
        fills = None if x.fills is None and updates.fills is None else changed(_fills(x), _fills(updates))
        attributes = {"places": places, "adds": adds}
        return self._emit("put", [x, updates], x.shape, attributes, kind=x.kind, known=known, fills=fills)

    def where(self, condition: Value, x: Value, y: Value) -> Value:
        """Returns x where the condition holds, else y."""
        if condition.known is not None and condition.size and (condition.known.all() or not condition.known.any()):
            shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)
            chosen_one = x if condition.known.all() else y
            found = self.as_float(chosen_one) if "float" in (x.kind, y.kind) else chosen_one
            return self.broadcast(found, shape)
        x, y = self._alike([x, y])
        shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)
        condition, x, y = (self.broadcast(one, shape) for one in (condition, x, y))
        if condition.kind not in ("bool", "int", "indicator"):
            raise UnknownOperation("where", self.line, "the condition is no boolean")
        if condition.known is None:
            return self._choose(condition, self.as_float(x), self.as_float(y))
        chosen = condition.known.astype(bool)
        known = _shadow(lambda left, right: np.where(chosen, left, right), x, y)
        if x.kind in ("int", "bool"):
            return Value(shape, x.kind, known)
        if known is None and any(_has_nan(each, of) for each, of in ((x, chosen), (y, ~chosen))):
            raise UnknownOperation("where", self.line, "a constant is NaN")
        fills = None if x.fills is None and y.fills is None else np.where(chosen, _fills(x), _fills(y))
        return self._emit("where", [x, y], shape, {"condition": chosen}, kind=x.kind, known=known, fills=fills)

    def _choose(self, condition: Value, x: Value, y: Value) -> Value:
        """Returns y + s (x − y)."""
        found = self.add(y, self.multiply(self.as_float(condition), self.subtract(x, y)))
        assert condition.node is not None
        assert found.node is not None
        flag = self._negated.get(condition.node)
        if flag is not None and flag.node is not None:
            self._chosen.setdefault(found.node, (flag.node, y, x))
        elif self.operations[condition.node].name == "step":
            self._chosen.setdefault(found.node, (condition.node, x, y))
        return found

    # --- arithmetic

    def add(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        for one, other in ((x, y), (y, x)):
            if self.is_number(one, 0):
                return other
        return self._emit(
            "add", [x, y], x.shape, known=_shadow(np.add, x, y), fills=masks.added(x.fills, y.fills, self.line)
        )

    def subtract(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        if self.is_number(y, 0):
            return x
        if self.is_number(x, 0):
            return self.negate(y)
        fills = masks.added(x.fills, masks.negated(y.fills), self.line)
        return self._emit("subtract", [x, y], x.shape, known=_shadow(np.subtract, x, y), fills=fills)

    def negate(self, x: Value) -> Value:
        x = self.as_float(x)
        return self._emit("negate", [x], x.shape, known=_shadow(np.negative, x), fills=masks.negated(x.fills))

    def multiply(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        for one, other in ((x, y), (y, x)):
            if self.is_number(one, 1):
                return other
        met = self._root_meets_radicand(x, y) or self._root_meets_radicand(y, x)
        if met is not None:
            self.axioms.setdefault("roots", {})[self.line] = None
            return self.broadcast(met, x.shape)
        stepped = self._stepped(x, y) or self._stepped(y, x)
        if stepped is not None:
            x, y = stepped
        switched = self._switched_once(x, y) or self._switched_once(y, x)
        if switched is not None:
            return switched
        known = _shadow(np.multiply, x, y)
        fills = None if known is not None else self._fills_of_product(x, y)
        return self._emit("multiply", [x, y], x.shape, known=known, fills=fills)

    def _fills_of_product(self, x: Value, y: Value) -> masks.Fills:
        for one, other in ((x, y), (y, x)):
            if other.known is not None:
                return masks.scaled(one.fills, other.known, self.line)
        assert x.node is not None
        assert y.node is not None
        for one, other in ((x, y), (y, x)):
            if masks.infinite(one.fills) and other.fills is None and self._signs.always_positive(other.node or 0):
                assert one.fills is not None
                return np.where(np.isinf(one.fills), one.fills, np.where(one.fills == 0, 0.0, np.nan))
        return masks.added(masks.lost(x.fills, self.line), masks.lost(y.fills, self.line), self.line)

    def divide(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        return x if self.is_number(y, 1) else self.multiply(x, self.inverse(y))

    def inverse(self, x: Value) -> Value:
        x = self.as_float(x)
        assert x.node is not None
        inner = self._inner(x)
        chosen = self._chosen.get(inner.node or 0)
        if chosen is not None and all(each.known is not None for each in chosen[1:]):
            flag = Value(inner.shape, "indicator", None, chosen[0])
            return self.broadcast(self._choose(flag, *(self.inverse(each) for each in chosen[1:])), x.shape)
        return self._elementwise("inverse", x, np.reciprocal)

    def root(self, x: Value) -> Value:
        """Returns √x. Roots of products, of inverses and of squares are written out (axiom "roots")."""
        x = self.as_float(x)
        inner = self._inner(x)
        assert inner.node is not None
        if inner.known is not None and self.operations[inner.node].name == "constant":
            roots = np.sqrt(np.maximum(inner.known, 0.0))
            if all(is_root(float(root), float(of)) for root, of in zip(roots.flat, inner.known.flat, strict=True)):
                return self.broadcast(self.constant(roots), x.shape)
        found = self._root_of(self.operations[inner.node], inner)
        if found is not None:
            self.axioms.setdefault("roots", {})[self.line] = None
            return self.broadcast(found, x.shape)
        scale = self._scales.of_radicand(inner.node)
        attributes = {} if scale == 1 else {"scale": scale}
        known = _shadow(np.sqrt, inner)
        if x.known is None and masks.infinite(x.fills):
            raise UnknownOperation("root", self.line, "of ∞")
        return self.broadcast(self._emit("root", [inner], inner.shape, attributes, known=known), x.shape)

    def _root_of(self, one: Operation, x: Value) -> Value | None:
        inputs = [self._values[each] for each in one.inputs]
        if one.name == "inverse":
            return self.inverse(self.root(inputs[0]))
        if one.name == "reshape":
            return self.reshape(self.root(inputs[0]), x.shape)
        if one.name == "power" and one.attributes["exponent"] % 2 == 0:
            return self.power(self.absolute(inputs[0]), one.attributes["exponent"] // 2)
        if one.name == "multiply" and one.inputs[0] == one.inputs[1]:
            return self.absolute(inputs[0])
        is_scaled = any(each.known is not None for each in inputs)
        if one.name == "multiply" and not is_scaled and any(map(self._signs.never_negative, one.inputs)):
            return self.multiply(*map(self.root, inputs))
        return None

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
        exponent = n.numerator
        radicand = self._radicand(x) if exponent > 1 else None
        if radicand is not None:
            even = self.power(radicand, exponent // 2)
            return self.multiply(even, x) if exponent % 2 else even
        switched = self._switch(x)
        if switched is not None and exponent > 0:
            return self.multiply(self.power(switched[0], exponent), switched[1])
        known = _shadow(lambda array: array**exponent, x)
        return self._emit("power", [x], x.shape, {"exponent": exponent}, known=known)

    def _radicand(self, x: Value) -> Value | None:
        """Returns what x consists of the roots of; None if it doesn't."""
        one = self.operations[x.node or 0]
        if one.name == "root":
            return self._values[one.inputs[0]]
        if one.name not in ("reshape", "broadcast", "concatenate"):
            return None
        parts = [self._radicand(self._values[each]) for each in one.inputs]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            return None
        if one.name == "concatenate":
            return self.concatenate(found, one.attributes["axis"])
        return (self.reshape if one.name == "reshape" else self.broadcast)(found[0], x.shape)

    def _root_meets_radicand(self, x: Value, y: Value) -> Value | None:
        """Reads a radicand v that is multiplied or divided by its own root as the root's square (axiom "roots").

        (1/√v)/v becomes (1/√v)³: JAX's derivative of 1/√v has the first, PyTorch's the second.
        """
        if x.node == y.node and (radicand := self._radicand(x)) is not None:
            return radicand
        x, y = self._inner(x), self._inner(y)
        if x.node is None or y.node is None:
            return None
        left, right = self.operations[x.node], self.operations[y.node]
        if left.name == "inverse" and self.operations[left.inputs[0]].name == "root":
            read = self.operations[left.inputs[0]].inputs[0]
            if right.name == "inverse" and right.inputs[0] == read:
                return self.power(x, 3)
            if y.node == read:
                return self._values[left.inputs[0]]
        if left.name == "root" and right.name == "inverse" and right.inputs[0] == left.inputs[0]:
            return self.inverse(x)
        return None

    def _stepped(self, x: Value, y: Value) -> tuple[Value, Value] | None:
        """Returns other factors for a product with a step s, where they are simpler: x · s(x) doesn't depend on s(0),
        and s · y is s · a if y is a wherever s is 1."""
        assert x.node is not None
        assert y.node is not None
        one, negated = self.operations[y.node], self._negated.get(y.node)
        if one.name == "step" and one.inputs[0] == x.node and not one.attributes["reflects"]:
            return x, self.as_float(self._loose_step(x))
        if negated is not None and negated.node is not None:
            read = self.operations[self.operations[negated.node].inputs[0]]
            if read.name == "negate" and read.inputs[0] == x.node:
                return x, self.as_float(self._loose_step(x))
        chosen = self._chosen.get(x.node)
        if chosen is not None and chosen[0] == y.node:
            return self.broadcast(chosen[1], x.shape), y
        if chosen is not None and negated is not None and chosen[0] == negated.node:
            return self.broadcast(chosen[2], x.shape), y
        return None

    def _switched_once(self, x: Value, y: Value) -> Value | None:
        """Returns the product of x = a · s with y = b · s or y = s as one with a single s, if s is a step: s² = s."""
        ours, theirs = self._switch(x), self._switch(y)
        if ours is None:
            return None
        rest, flag = ours
        if y.node == flag.node:
            return x
        if theirs is None or theirs[1].node != flag.node:
            return None
        return self.multiply(self.multiply(rest, theirs[0]), flag)

    def _switch(self, x: Value) -> tuple[Value, Value] | None:
        """Returns a and s of a product a · s with a step s."""
        assert x.node is not None
        one = self.operations[x.node]
        if one.name == "multiply":
            for rest, flag in (one.inputs, one.inputs[::-1]):
                if self.operations[flag].name == "step":
                    return self._values[rest], self._values[flag]
        return None

    def matmul(self, x: Value, y: Value) -> Value:
        """Returns x [B, M, K] · y [B, K, N]."""
        x, y = self.as_float(x), self.as_float(y)
        shape = (x.shape[0], x.shape[1], y.shape[2])
        fills = None
        if x.fills is not None or y.fills is not None:
            left, right = (masks.lost(each.fills, self.line) for each in (x, y))
            reads = np.zeros(shape, bool)
            reads |= False if left is None else np.isnan(left).any(axis=2, keepdims=True)
            reads |= False if right is None else np.isnan(right).any(axis=1, keepdims=True)
            fills = np.where(reads, np.nan, 0.0)
        return self._emit("matmul", [x, y], shape, known=_shadow(np.matmul, x, y), fills=fills)

    def sum(self, x: Value, axes: Sequence[int]) -> Value:
        """Sums over axes, which go. If they are rows of exponentials, these are written about their means first."""
        axes = tuple(sorted(int(axis) for axis in axes))
        if x.kind in ("int", "bool"):
            return Value(_without(x.shape, axes), "int", _shadow(lambda array: array.sum(axis=axes), x))
        x = self.as_float(x)
        if not axes:
            return x
        if len(axes) == 1:
            x = self._about_mean(x, axes[0])
        known = _shadow(lambda array: array.sum(axis=axes), x)
        fills = masks.summed(x.fills, axes, self.line)
        return self._emit("sum", [x], _without(x.shape, axes), {"axes": axes}, known=known, fills=fills)

    def _about_mean(self, x: Value, axis: int) -> Value:
        """Rewrites exponentials that are summed about their rows' means, here and wherever else they are read. Entries
        that are multiplied by zero don't count."""
        assert x.node is not None
        one = self.operations[x.node]
        if one.name == "exp":
            new = self._exp_of_rows(self._values[one.inputs[0]], axis)
        elif one.name == "multiply" and (masked := self._masked_exp(one)) is not None:
            exponent, factor = masked
            assert factor.known is not None
            counts = _whole_rows(factor.known != 0, (axis,))
            new = self.multiply(self._exp_of_rows(exponent, axis, counts), factor)
        else:
            return x
        self._rewritten[x.node] = new
        return new

    def _masked_exp(self, product: Operation) -> tuple[Value, Value] | None:
        """Returns the exponent and the factor of an exponential that is multiplied by a table with zeros."""
        for exp, factor in (product.inputs, product.inputs[::-1]):
            known = self._values[factor].known
            if self.operations[exp].name == "exp" and known is not None and (known == 0).any():
                return self._values[self.operations[exp].inputs[0]], self._values[factor]
        return None

    def cumulative_sum(self, x: Value, axis: int) -> Value:
        known = _shadow(lambda array: np.cumsum(array, axis=axis), x)
        if x.kind in ("int", "bool"):
            return Value(x.shape, "int", known)
        x = self.as_float(x)
        fills = None if x.fills is None else np.cumsum(np.asarray(masks.lost(x.fills, self.line)), axis)
        return self._emit("cumulative_sum", [x], x.shape, {"axis": axis}, known=known, fills=fills)

    # --- functions

    def exp(self, x: Value) -> Value:
        """Returns exp(x). If a number was subtracted from each row of x, the row is written about its mean: softmax and
        its derivatives then don't depend on that number."""
        x = self.as_float(x)
        axis = self._row_axis(x)
        if axis is not None:
            return self._exp_of_rows(x, axis)
        if x.known is None and masks.infinite(x.fills):
            x, low = self._without_low(x)
            return self.multiply(self._elementwise("exp", x, np.exp), self.constant(np.where(low, 0.0, 1.0)))
        return self._elementwise("exp", x, np.exp)

    def log(self, x: Value) -> Value:
        """Returns log(x). The logarithm of a sum of exponentials about their mean m is m plus that of the rest; that of
        a softmax is the exponent minus that of the sum."""
        x = self.as_float(x)
        inner, total = self._inner(x), None
        assert inner.node is not None
        one = self.operations[inner.node]
        if one.name == "inverse":
            return self.broadcast(self.negate(self.log(self._values[one.inputs[0]])), x.shape)
        if one.name == "multiply":
            for exp, factor in (one.inputs, one.inputs[::-1]):
                exponent = self._exponent(exp)
                if exponent is not None and self._signs.positive(factor):
                    logarithm = self.add(exponent, self.log(self._values[factor]))
                    return self.broadcast(logarithm, x.shape)
        node: int | None = inner.node
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

    def cut(self, x: Value, *, is_weight: bool) -> Value:
        """Returns x as the value of an unknown function of it, which begins degrees anew.

        Args:
          is_weight: whether x is a weight after an optimizer step, and takes all values as the weight before it does.
        """
        x = self.as_float(x)
        return self._emit("cut", [x], x.shape, {"is_weight": is_weight}, fills=x.fills)

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
        masks.counting(x.fills, (axis,), self.line)  # names rows of -inf before ∞ − ∞ is met
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
        if masks.infinite(x.fills):
            assert x.fills is not None
            inside = self.step(self._where_finite(x))
            return self.where(self.constant(np.isinf(x.fills)), self.constant(np.isposinf(x.fills)), inside)
        assert x.node is not None
        one, is_nonzero = self.operations[x.node], self._signs.nonzero(x.node)
        if self._signs.positive(x.node):
            self.axioms.setdefault("positive", {})[self.line] = None
            return self.constant(np.ones(x.shape, bool))
        if one.name == "negate" and is_nonzero:
            return self.logical_not(self.step(self._values[one.inputs[0]]))
        if one.name == "multiply":
            for relu, flag in (one.inputs, one.inputs[::-1]):
                if self.operations[flag].name == "step" and self.operations[flag].inputs[0] == relu:
                    return self.step(self._values[relu])
            for factor, rest in (one.inputs, one.inputs[::-1]):
                sign = self._sign_of(factor)
                if sign > 0:
                    return self.step(self._values[rest])
                if sign < 0 and is_nonzero:
                    return self.logical_not(self.step(self._values[rest]))
        if is_nonzero and (opposite := self._opposite_step(x)) is not None:
            return opposite
        return self._emitted_step(x, reflects=self._signs.has_one_zero_set(x.node))

    def _loose_step(self, x: Value) -> Value:
        """Returns a step in a product with x, where its value at 0 doesn't matter."""
        if x.known is not None:
            return Value(x.shape, "bool", x.known > 0)
        x = self.as_float(x)
        assert x.node is not None
        if self._signs.never_negative(x.node):
            self.axioms.setdefault("positive", {})[self.line] = None
            return self.constant(np.ones(x.shape, bool))
        one = self.operations[x.node]
        if one.name == "negate":
            return self.logical_not(self._loose_step(self._values[one.inputs[0]]))
        if one.name == "multiply":
            for factor, rest in (one.inputs, one.inputs[::-1]):
                sign = self._sign_of(factor)
                if sign:
                    found = self._loose_step(self._values[rest])
                    return found if sign > 0 else self.logical_not(found)
        return self._opposite_step(x) or self._emitted_step(x, reflects=True)

    def _emitted_step(self, x: Value, *, reflects: bool) -> Value:
        """Appends a step s, with s(x) + s(−x) = 1 for all x but 0 if it reflects."""
        return self._emit("step", [x], x.shape, {"reflects": reflects}, kind="indicator")

    def _opposite_step(self, x: Value) -> Value | None:
        """Returns 1 − [b − a > 0] if x is a − b and the program has that step."""
        one = self.operations[x.node or 0]
        if one.name != "subtract":
            return None
        other = self._nodes.get(("subtract", one.inputs[::-1], x.shape, ()))
        opposite = self._nodes.get(("step", (other,), x.shape, key_of({"reflects": True})))
        return None if opposite is None else self.logical_not(Value(x.shape, "indicator", None, opposite))

    def greater(self, x: Value, y: Value) -> Value:
        return self.step(self.subtract(x, y))

    def at_least(self, x: Value, y: Value) -> Value:
        """Returns [x ≥ y], which is [x > y] unless they can be equal for many weights."""
        difference = self.subtract(x, y)
        if difference.known is not None:
            return Value(difference.shape, "bool", difference.known >= 0)
        assert difference.node is not None
        if self._signs.has_one_zero_set(difference.node) and self._signs.nonzero(difference.node):
            return self.step(difference)
        return self.logical_not(self.step(self.subtract(y, x)))

    def _sign_of(self, node: int) -> int:
        """Returns 1 or −1 if all elements of a value have this sign almost everywhere, else 0."""
        known = self._values[node].known
        if self._signs.positive(node):
            return 1
        return -1 if known is not None and (known < 0).all() else 0

    def equal(self, x: Value, y: Value) -> Value:
        if x.known is not None and y.known is not None:
            known = x.known == y.known
            return Value(known.shape, "bool", known)
        x, y = self._pair(x, y)
        if x.node == y.node:
            return self.constant(np.ones(x.shape, bool))
        if masks.infinite(x.fills) or masks.infinite(y.fills):
            left, right = (np.where(np.isinf(_fills(each)), _fills(each), 0.0) for each in (x, y))
            inside = self.equal(self._where_finite(x), self._where_finite(y))
            return self.where(self.constant((left != 0) | (right != 0)), self.constant(left == right), inside)
        for one, other in ((x, y), (y, x)):
            extreme = self._extremes.get(one.node or 0)
            if extreme is not None and other.node in extreme:
                larger, smaller = extreme if other.node == extreme[0] else extreme[::-1]
                return self.at_least(self._values[larger], self._values[smaller])
        difference = self.subtract(x, y)
        assert difference.node is not None
        is_exact = self._signs.has_one_zero_set(difference.node)
        return self._emit("equal", [x, y], x.shape, {"is_exact": is_exact}, kind="indicator")

    def is_finite(self, x: Value) -> Value:
        """Returns which entries are neither ∞ nor −∞. None is NaN: operations that return it are refused."""
        return self.constant(np.isfinite(x.known) if x.known is not None else ~np.isinf(_fills(x)))

    def _where_finite(self, x: Value) -> Value:
        """Returns x with 0 for ∞ and −∞."""
        is_infinite = np.isinf(_fills(x))
        return self.where(self.constant(is_infinite), self.constant(np.zeros(x.shape)), x) if is_infinite.any() else x

    def _without_low(self, x: Value) -> tuple[Value, np.ndarray]:
        """Returns x with 0 for −∞, and where it was."""
        if np.isposinf(_fills(x)).any():
            raise UnknownOperation("exp", self.line, "of +∞")
        return self._where_finite(x), np.isneginf(_fills(x))

    def largest(self, x: Value, axes: Sequence[int]) -> Value:
        """Returns the maximum over axes, which go."""
        axes = tuple(sorted(int(axis) for axis in axes))
        known = _shadow(lambda array: array.max(axis=axes), x)
        if x.kind in ("int", "bool"):
            return Value(_without(x.shape, axes), x.kind, known)
        x = self.as_float(x)
        if x.fills is None or np.isneginf(x.fills).all(axis=axes).any() or np.isposinf(x.fills).any():
            counts = None
        else:
            counts = masks.counting(x.fills, axes, self.line)
        fills = masks.of_largest(x.fills, counts, axes)
        attributes = {"axes": axes, **({} if counts is None else {"counts": counts})}
        return self._emit("largest", [x], _without(x.shape, axes), attributes, known=known, fills=fills)

    def maximum(self, x: Value, y: Value) -> Value:
        """Returns y + (x − y) · [x > y]."""
        x, y = self._pair(x, y) if x.known is None else self._pair(y, x)
        for one, other in ((x, y), (y, x)):
            low = np.isneginf(_fills(other))
            if low.any() and other.node != one.node:
                inside = self.maximum(one, self._where_finite(other))
                return self.where(self.constant(low), one, inside)
        difference = self.subtract(x, y)
        found = self.add(y, self.multiply(difference, self.as_float(self._loose_step(difference))))
        assert x.node is not None
        assert y.node is not None
        assert found.node is not None
        self._extremes.setdefault(found.node, (x.node, y.node))
        return found

    def minimum(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        for one, other in ((x, y), (y, x)):
            high = np.isposinf(_fills(other))
            if high.any() and other.node != one.node:
                inside = self.minimum(one, self._where_finite(other))
                return self.where(self.constant(high), one, inside)
        difference = self.subtract(x, y)
        return self.subtract(x, self.multiply(difference, self.as_float(self._loose_step(difference))))

    def sign(self, x: Value) -> Value:
        """Returns [x > 0] − [−x > 0]."""
        x = self.as_float(x)
        if x.known is not None:
            return self.constant(np.sign(x.known))
        return self.subtract(self.as_float(self.step(x)), self.as_float(self.step(self.negate(x))))

    def absolute(self, x: Value) -> Value:
        """Returns x (2 [x > 0] − 1)."""
        x = self.as_float(x)
        if x.known is not None:
            return self.constant(np.abs(x.known))
        if self._signs.never_negative(x.node or 0):
            self.axioms.setdefault("positive", {})[self.line] = None
            return x
        sign = self.subtract(self.multiply(self.constant(2.0), self.as_float(self._loose_step(x))), self.constant(1.0))
        return self.multiply(x, sign)

    def _exp_of_rows(self, x: Value, axis: int, counts: np.ndarray | None = None) -> Value:
        """Returns exp(x − m) · exp(m), m the mean of the entries of each row that count: those that aren't masked."""
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        own = masks.counting(x.fills, (axis,), self.line)
        if counts is None or own is None:
            counts = own if counts is None else counts
        else:
            counts = _whole_rows(counts & own, (axis,))
            if (counts & np.isneginf(_fills(x))).any():
                raise UnknownOperation("softmax", self.line, "all entries of a row are -inf or left out: it leaves 0/0")
        attributes = {"axis": axis, **({} if counts is None else {"counts": counts})}
        mean = self._emit("row_mean", [x], shape, attributes, fills=masks.of_mean(x.fills, counts, axis))
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

    def _exponent(self, node: int) -> Value | None:
        """Returns x if a value is exp(x), written about the mean of rows without masked entries."""
        product = self.operations[node]
        if product.name == "multiply":
            for row, scale in (product.inputs, product.inputs[::-1]):
                of_row, factor = self.operations[row], self._inner(self._values[scale]).node
                assert factor is not None
                is_exp_of_mean = self.operations[factor].name == "exp" and of_row.name == "row_exp"
                if is_exp_of_mean and self.operations[factor].inputs[0] == of_row.inputs[1]:
                    return None if "counts" in of_row.attributes else self._values[of_row.inputs[0]]
        return None

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
        x = self._truth(x)
        assert x.node is not None
        if x.node in self._negated:
            return self._negated[x.node]
        found = self._as_indicator(self.subtract(self.constant(1.0), self.as_float(x)))
        assert found.node is not None
        self._negated.setdefault(found.node, x)
        return found

    def logical_and(self, x: Value, y: Value) -> Value:
        if x.known is not None and y.known is not None:
            both = x.known & y.known
            return Value(both.shape, "bool" if both.dtype == bool else "int", both)
        x, y = self._truth(x), self._truth(y)
        return self._as_indicator(self.multiply(self.as_float(x), self.as_float(y)))

    def logical_or(self, x: Value, y: Value) -> Value:
        return self.logical_not(self.logical_and(self.logical_not(x), self.logical_not(y)))

    def _truth(self, x: Value) -> Value:
        """Returns whether x isn't zero."""
        if x.kind in ("bool", "indicator"):
            return x
        return self.logical_not(self.equal(x, self.constant(np.zeros(x.shape))))

    def narrow(self, dtype: str) -> None:
        """Notes an operation that rounds to a narrower float type. It is left out of the function."""
        self.narrowing[f"{dtype}{f' ({self.line})' if self.line else ''}"] = None

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
        if kinds == {"int", "bool"}:
            return [self.constant(np.asarray(value.known).astype(np.int64)) for value in values]
        floats = [self.as_float(value) for value in values]
        return floats if "float" in kinds or "int" in kinds else [self._as_indicator(value) for value in floats]

    def _elementwise(self, name: str, x: Value, shadow: Callable[[np.ndarray], np.ndarray] | None) -> Value:
        """Applies a function before x is broadcast, not after."""
        x = self.as_float(x)
        inner = self._inner(x)
        if inner is not x:
            return self.broadcast(self._elementwise(name, inner, shadow), x.shape)
        if x.known is None and masks.infinite(x.fills):
            raise UnknownOperation(name, self.line, "of ∞")
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
        if known is not None and known.dtype.kind == "f":
            fills = masks.of_constant(known)
        elif name != "where" and any(map(_has_nan, inputs)):
            raise UnknownOperation(name, self.line, "a constant is NaN")
        fills = masks.tidy(fills)
        key = name, tuple(nodes), shape, key_of(attributes)
        if key not in self._nodes:
            self._nodes[key] = len(self.operations)
            self.operations.append(Operation(name, tuple(nodes), shape, attributes, self.line))
            self._values.append(Value(shape, "float", known, self._nodes[key], fills))
        return Value(shape, kind, known, self._nodes[key], fills)


def _fills(x: Value) -> np.ndarray:
    return np.zeros(x.shape) if x.fills is None else x.fills


def _has_nan(x: Value, where: Any = True) -> bool:
    return x.known is not None and x.known.dtype.kind == "f" and bool((np.isnan(x.known) & where).any())


def _whole_rows(counts: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return counts | ~counts.any(axis=axes, keepdims=True)


def _without(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _shadow(function: Callable[..., Any], *values: Value) -> np.ndarray | None:
    """Computes what is known of floats that depend on no weight, and of integers and booleans."""
    arrays = [value.known for value in values if value.known is not None]
    if len(arrays) < len(values):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(function(*arrays))
