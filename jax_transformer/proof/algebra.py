"""The algebra of a program: exact arithmetic, roots, and comparisons, which yield the numbers 0 and 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from jax_transformer.proof import masks, undefined
from jax_transformer.proof.constants import is_root, largest_of
from jax_transformer.proof.distinct import distinct
from jax_transformer.proof.emitting import Emitter, fills_of, has_nan, shadow
from jax_transformer.proof.programs import MOVES, Operation, UnknownOperation, Value, key_of
from jax_transformer.proof.roundings import WIDEST
from jax_transformer.proof.tape import recorded, records_values

MOST_EXPONENTS = 8
"""Different exponents in one array to which a value is raised."""
LARGE = 1e8
"""Constants of this size absorb the floats that are added to them."""


@records_values
class Algebra(Emitter):
    """Computes with values, and simplifies products with roots and with steps."""

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
            return self._choose_defined(condition, self.as_float(x), self.as_float(y))
        chosen = condition.known.astype(bool)
        known = shadow(lambda left, right: np.where(chosen, left, right), x, y)
        if x.kind in ("int", "bool"):
            return Value(shape, x.kind, known)
        if known is None and any(has_nan(each, of) for each, of in ((x, chosen), (y, ~chosen))):
            raise UnknownOperation("where", self.line, "a constant is NaN")
        fills = None if x.fills is None and y.fills is None else np.where(chosen, fills_of(x), fills_of(y))
        return self._emit("where", [x, y], shape, {"condition": chosen}, kind=x.kind, known=known, fills=fills)

    def _choose_defined(self, condition: Value, x: Value, y: Value) -> Value:
        """Returns a choice in which each value needs to be defined only where it is chosen."""
        if not self.doubts(x, y):
            return self._choose(condition, x, y)
        left_out = self._left_out(condition, x, is_chosen_at_one=True), self._left_out(condition, y, False)
        for each, known in zip((x, y), left_out, strict=True):
            self._refuse("where", self.doubts(each) - known, "it may leave out NaN")
        found = self._choose(condition, x, y)
        return self._emit("chosen", [found, self.as_float(condition), x, y], found.shape)

    def _left_out(self, condition: Value, x: Value, is_chosen_at_one: bool) -> set[int]:
        """Returns the operations that x depends on, and that are defined wherever x is chosen."""
        assert condition.node is not None
        flag = self._negated.get(condition.node)
        node, at_one = (condition.node, is_chosen_at_one) if flag is None else (flag.node, not is_chosen_at_one)
        while self.operations[node or 0].name == "broadcast":
            node = self.operations[node or 0].inputs[0]
        inner = self._negated.get(node or 0)
        if inner is not None:
            node, at_one = inner.node, not at_one
        if node is None or self.operations[node].name not in ("step", "equal"):
            return set()
        record = self.operations, self._doubts, self._values, self._signs
        return {each for each in self.doubts(x) if undefined.is_left_out(each, x, (node, at_one), *record)}

    def _choose(self, condition: Value, x: Value, y: Value) -> Value:
        """Returns y + s (x − y), or y (1 − s) for the choice of zero."""
        if self.is_number(x, 0):
            found = self.multiply(y, self.as_float(self.logical_not(condition)))
        else:
            found = self.add(y, self.multiply(self.as_float(condition), self.subtract(x, y)))
        assert condition.node is not None
        assert found.node is not None
        flag = self._negated.get(condition.node)
        if flag is not None and flag.node is not None:
            self._chosen.setdefault(found.node, (flag.node, y, x))
        elif self.operations[condition.node].name == "step":
            self._chosen.setdefault(found.node, (condition.node, x, y))
        return found

    def in_range(self, x: Value, cast: Callable[[np.ndarray], np.ndarray]) -> Value:
        """Returns x with ∞ or −∞ for constants beyond the range of the type that holds them: finfo(float64).min after
        a cast to float32, or the sum of two masks of finfo(float32).min. Other rounding is left out.

        Args:
          cast: rounds a float64 array to that type.
        """
        constants = x.known if x.known is not None else x.fills
        if x.kind != "float" or constants is None or not np.isfinite(constants).any():
            return x
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = np.asarray(cast(constants), np.float64)
        changed = np.isfinite(constants) & ~np.isfinite(rounded)
        if np.isnan(rounded[changed]).any():
            raise UnknownOperation("cast", self.line, "a constant is beyond its range")
        if not changed.any():
            return x
        self.axioms.setdefault("masks", {})[self.line] = None
        return self.where(self.constant(changed), self.constant(np.where(changed, rounded, 0.0)), x)

    def widened(self, x: Value, dtype: Any) -> Value:
        """Returns a value of a narrower type in this type. Constants that were only moved or chosen since their
        rounding keep their rounded values."""
        if x.known is not None:
            return self.constant(x.known.astype(dtype))
        assert x.node is not None
        found, selected = dict[int, int](), self._selected(x.node)
        for node in sorted(selected):
            one, value = self.operations[node], self._values[node]
            if value.known is not None:
                own = self.constant(value.known.astype(dtype))
            elif node in self._chosen:
                flag, *cases = self._chosen[node]
                at_one, at_zero = (self._as("float", found.get(each.node or 0, each.node or 0)) for each in cases)
                own = self._choose(self._as("indicator", flag), at_one, at_zero)
            else:
                inputs = [self._as("float", found.get(each, each)) for each in one.inputs]
                is_same = [each.node for each in inputs] == [*one.inputs]
                own = value if is_same else self._emit(one.name, inputs, one.shape, one.attributes, fills=value.fills)
            assert own.node is not None
            found[node] = own.node
        return self._as(x.kind, found.get(x.node, x.node))

    def _selected(self, node: int) -> set[int]:
        """Returns the operations that only move or choose elements of a value, and the constants among them."""
        found, waiting = set[int](), [node]
        while waiting:
            node = waiting.pop()
            one = self.operations[node]
            if node in found or one.name == "input":
                continue
            if self._values[node].known is not None:
                found.add(node)
                continue
            if node in self._chosen:
                read = [each.node for each in self._chosen[node][1:]]
            elif one.name in MOVES or one.name == "chosen":
                read = list(one.inputs)
            elif one.name == "sum":  # zeros outside the chosen elements
                product = self.operations[one.inputs[0]]
                read = (
                    list(one.inputs) if product.name == "multiply" and any(map(self._selects, product.inputs)) else []
                )
            elif one.name == "multiply":
                read = [other for each, other in (one.inputs, one.inputs[::-1]) if self._selects(each)]
            else:
                continue
            found.add(node)
            waiting += [each for each in read if each is not None]
        return found

    def _selects(self, node: int) -> bool:
        """Returns whether a value is 1 for chosen elements, and 0 for the rest."""
        while self.operations[node].name in ("broadcast", "reshape", "transpose", "take"):
            node = self.operations[node].inputs[0]
        return self.operations[node].name in ("step", "equal", "places") or node in self._negated

    # --- arithmetic

    def add(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        for one, other in ((x, y), (y, x)):
            if self.is_number(one, 0):
                return other
        fills = masks.added(*_whole_fills(x, y), self.line)
        return self._emit("add", [x, y], x.shape, known=shadow(np.add, x, y), fills=fills)

    def subtract(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        if self.is_number(y, 0):
            return x
        if self.is_number(x, 0):
            return self.negate(y)
        ours, theirs = _whole_fills(x, y)
        fills = masks.added(ours, masks.negated(theirs), self.line)
        return self._emit("subtract", [x, y], x.shape, known=shadow(np.subtract, x, y), fills=fills)

    def negate(self, x: Value) -> Value:
        x = self.as_float(x)
        if x.node is not None and self.operations[x.node].name == "negate":
            return self._as("float", self.operations[x.node].inputs[0])
        return self._emit("negate", [x], x.shape, known=shadow(np.negative, x), fills=masks.negated(x.fills))

    def multiply(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        for one, other in ((x, y), (y, x)):
            if self.is_number(one, 1):
                return other
        met = self._met_root(x, y) or self._met_root(y, x)
        if met is not None:
            self.axioms.setdefault("roots", {})[self.line] = None
            return self.given(self.broadcast(met, x.shape), x, y)
        stepped = self._simpler_with_step(x, y) or self._simpler_with_step(y, x)
        if stepped is not None:
            x, y = stepped
        switched = self._with_one_step(x, y) or self._with_one_step(y, x)
        if switched is not None:
            return switched
        known = shadow(np.multiply, x, y)
        fills = None if known is not None else self._fills_of_product(x, y)
        return self._emit("multiply", [x, y], x.shape, known=known, fills=fills)

    def _fills_of_product(self, x: Value, y: Value) -> masks.Fills:
        for one, other in ((x, y), (y, x)):
            if other.known is not None and one.fills is not None:
                if np.isinf(other.known).any():
                    raise UnknownOperation("multiply", self.line, masks.MET)
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
            floats = np.sqrt(np.maximum(inner.known, 0.0))
            if all(is_root(float(root), float(of)) for root, of in zip(floats.flat, inner.known.flat, strict=True)):
                return self.broadcast(self.constant(floats), x.shape)
        found = self._root_written_out(self.operations[inner.node], inner)
        if found is not None:
            self.axioms.setdefault("roots", {})[self.line] = None
            return self.broadcast(found, x.shape)
        scale = self._scales.radicand_scale(inner.node)
        attributes = {} if scale == 1 else {"scale": scale}
        known = shadow(np.sqrt, inner)
        if x.known is None and masks.infinite(x.fills):
            raise UnknownOperation("root", self.line, "of ∞")
        fills = None if known is not None else masks.lost(inner.fills, self.line)
        return self.broadcast(self._emit("root", [inner], inner.shape, attributes, known=known, fills=fills), x.shape)

    def power(self, x: Value, exponent: int | Fraction) -> Value:
        """Returns x to an integer or half-integer power."""
        n = Fraction(exponent)
        if n.denominator == 2:
            return self.power(self.root(x), n.numerator)
        if n.denominator != 1:
            raise UnknownOperation("power", self.line, f"the exponent {exponent} is no multiple of 1/2")
        if n < 0:
            return self.power(self.inverse(x), -n)
        x = self.as_float(x)
        if n == 0:
            return self.constant(np.ones(x.shape))  # that of NaN, too
        if n == 1:
            return x
        exponent = n.numerator
        radicand = self._radicand(x) if exponent > 1 else None
        if radicand is not None:
            even = self.given(self.power(radicand, exponent // 2), x)
            return self.multiply(even, x) if exponent % 2 else even
        switched = self._split_step(x)
        if switched is not None and exponent > 0:
            return self.multiply(self.power(switched[0], exponent), switched[1])
        known = shadow(lambda array: array**exponent, x)
        fills = None if known is not None else masks.lost(x.fills, self.line)
        return self._emit("power", [x], x.shape, {"exponent": exponent}, known=known, fills=fills)

    def power_of_known(self, x: Value, exponent: Value) -> Value:
        """Returns x to known exponents, element by element."""
        shape = np.broadcast_shapes(x.shape, exponent.shape)
        if exponent.known is None:
            raise UnknownOperation("pow", self.line, "its exponent depends on weights")
        different = distinct(exponent.known)
        if different.size > MOST_EXPONENTS or not np.isfinite(different).all():
            raise UnknownOperation("pow", self.line, "its exponents are a table")
        known = np.broadcast_to(exponent.known, shape)
        found = None
        for each in different:
            own = self.constant(np.ones(shape)) if each == 0 else self.power(x, Fraction(float(each)))
            own = self.broadcast(own, shape)
            found = own if found is None else self.where(self.constant(known == each), own, found)
        return self.constant(np.zeros(shape)) if found is None else found

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
        elif (places := self._looked_up(x, y)) is not None:
            return self.take(y, places)
        elif y.known is not None and x.known is None:
            turned = self.transpose(x, (0, 2, 1))
            if (places := self._looked_up(self.transpose(y, (0, 2, 1)), turned)) is not None:
                return self.transpose(self.take(turned, places), (0, 2, 1))
        return self._emit("matmul", [x, y], shape, known=shadow(np.matmul, x, y), fills=fills)

    def _looked_up(self, x: Value, y: Value) -> np.ndarray | None:
        """Returns the places of y [B, K, N] that x [B, M, K] · y looks up if each row of x is one-hot, or all zeros,
        for which the place is −1."""
        if x.known is None or y.known is not None or not x.size or x.shape[2] < 2:
            return None
        ones = x.known == 1
        if not (ones | (x.known == 0)).all() or ones.sum(-1).max() > 1 or self.radius(x).any():
            return None
        batch, rows, columns = x.shape[0], y.shape[1], y.shape[2]
        row = np.where(ones.any(-1), np.arange(batch)[:, None] * rows + ones.argmax(-1), -1)[..., None]
        return np.where(row < 0, -1, row * columns + np.arange(columns))

    def cumulative_sum(self, x: Value, axis: int) -> Value:
        known = shadow(lambda array: np.cumsum(array, axis=axis), x)
        if x.kind in ("int", "bool"):
            return Value(x.shape, "int", known)
        x = self.as_float(x)
        fills = None if x.fills is None else np.cumsum(np.asarray(masks.lost(x.fills, self.line)), axis)
        return self._emit("cumulative_sum", [x], x.shape, {"axis": axis}, known=known, fills=fills)

    # --- roots that meet other operations (axiom "roots")

    def _root_written_out(self, one: Operation, x: Value) -> Value | None:
        """Returns √x built from the roots of x's factors; None if that isn't possible.

        Args:
          one: the operation that computes x.
        """
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
        signs = [self._signs.never_negative(each) for each in one.inputs]
        if one.name == "multiply" and not is_scaled and (all(signs) or any(map(self._signs.positive, one.inputs))):
            return self.multiply(*map(self.root, inputs))
        return None

    def _radicand(self, x: Value) -> Value | None:
        """Returns the factors whose roots make up x; None if there are none."""
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

    def _met_root(self, x: Value, y: Value) -> Value | None:
        """Reads a radicand v that is multiplied or divided by its own root as the root's square (axiom "roots").

        (1/√v)/v becomes (1/√v)³: JAX's derivative of 1/√v has the first, PyTorch's the second.
        """
        if x.node == y.node and (squared := self._radicand(x)) is not None:
            return squared
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

    # --- products with a step s, a function whose values are 0 and 1: s · s is s

    def _simpler_with_step(self, x: Value, y: Value) -> tuple[Value, Value] | None:
        """Returns simpler factors for a product with a step s, if there are any: x · s(x) doesn't depend on s(0), and s
        · y is s · a if y is a wherever s is 1."""
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

    def _with_one_step(self, x: Value, y: Value) -> Value | None:
        """Returns the product of x = a · s with y = b · s or y = s as one with a single s, if s is a step: s² = s."""
        ours, theirs = self._split_step(x), self._split_step(y)
        if ours is None:
            return None
        rest, flag = ours
        if y.node == flag.node:
            return x
        if theirs is None or theirs[1].node != flag.node:
            return None
        return self.multiply(self.multiply(rest, theirs[0]), flag)

    def _split_step(self, x: Value) -> tuple[Value, Value] | None:
        """Returns a and s of a product a · s with a step s."""
        assert x.node is not None
        one = self.operations[x.node]
        if one.name == "multiply":
            for rest, flag in (one.inputs, one.inputs[::-1]):
                if self.operations[flag].name == "step":
                    return self._values[rest], self._values[flag]
        return None

    # --- comparisons

    def step(self, x: Value) -> Value:
        """Returns [x > 0]; of x · [x > 0], it is [x > 0]."""
        if x.known is not None:
            return Value(x.shape, "bool", x.known > 0)
        x = self.as_float(x)
        self.refuse_doubts("step", x)
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
        """Returns a step in a product with x whose value at 0 doesn't matter."""
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
        found = self._beside_bound(x, y, self.greater)
        return self.step(self.subtract(x, y)) if found is None else found

    def at_least(self, x: Value, y: Value) -> Value:
        """Returns [x ≥ y], which is [x > y] unless they can be equal for many weights."""
        found = self._beside_bound(x, y, self.at_least)
        if found is not None:
            return found
        difference = self.subtract(x, y)
        if difference.known is not None:
            return Value(difference.shape, "bool", difference.known >= 0)
        assert difference.node is not None
        if self._signs.has_one_zero_set(difference.node) and self._signs.nonzero(difference.node):
            return self.step(difference)
        return self.logical_not(self.step(self.subtract(y, x)))

    def _beside_bound(self, x: Value, y: Value, compare: Callable[[Value, Value], Value]) -> Value | None:
        """Returns [x > y] if either is the lowest or highest number of its type; None if neither is, or the other is
        masked as a whole. Where that is masked, both are compared."""
        for one, other, is_greater in ((y, x, True), (x, y, False)):
            masked = fills_of(other) != 0
            if other.known is not None or masked.all():
                continue
            for lowest in (True, False):
                if self._is_bound(one, lowest=lowest):
                    found = self.constant(np.full(np.broadcast_shapes(x.shape, y.shape), is_greater == lowest))
                    if not masked.any():
                        return found
                    bound = self.where(self.constant(masked), one, self.constant(np.zeros(one.shape)))
                    pair = (other, bound) if is_greater else (bound, other)
                    return self.where(self.constant(masked), compare(*pair), found)
        return None

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
        self.refuse_doubts("equal", x, y)
        if x.node == y.node:
            self.axioms.setdefault("finite", {})[self.line] = None
            return self.constant(np.ones(x.shape, bool))
        if masks.infinite(x.fills) or masks.infinite(y.fills):
            left, right = (np.where(np.isinf(fills_of(each)), fills_of(each), 0.0) for each in (x, y))
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
        """Returns a mask of the entries that are neither NaN, ∞ nor −∞."""
        if x.known is not None:
            return self.constant(np.isfinite(x.known))
        self.refuse_doubts("is_finite", x)
        self.axioms.setdefault("finite", {})[self.line] = None
        return self.constant(~np.isinf(fills_of(x)))

    def _where_finite(self, x: Value) -> Value:
        """Returns x with 0 for ∞ and −∞."""
        return self._zero_at(np.isinf(fills_of(x)), x)

    def _zero_at(self, places: np.ndarray, x: Value) -> Value:
        """Returns x, set to 0 where `places` is true."""
        return self.where(self.constant(places), self.constant(np.zeros(x.shape)), x) if places.any() else x

    def maximum(self, x: Value, y: Value) -> Value:
        """Returns y + (x − y) · [x > y], or x − (x − y) · [y > x] for a y so large that x would be lost in floats."""
        x, y = self._pair(x, y) if x.known is None else self._pair(y, x)
        if x.node == y.node:
            return x
        self._refuse_infinity("maximum", x, y)
        for one, other in ((x, y), (y, x)):
            low = np.isneginf(fills_of(other))
            if low.any() and other.node != one.node:
                inside = self.maximum(one, self._where_finite(other))
                return self.where(self.constant(low), one, inside)
        for one, other in ((x, y), (y, x)):
            if one.known is None and self._is_bound(other, lowest=True):
                return one
        difference = self.subtract(x, y)
        is_x = self._loose_step(difference)
        if y.known is not None and y.size and np.abs(y.known).min() >= LARGE:
            found = self.subtract(x, self.multiply(difference, self.as_float(self.logical_not(is_x))))
        else:
            found = self.add(y, self.multiply(difference, self.as_float(is_x)))
        assert x.node is not None
        assert y.node is not None
        assert found.node is not None
        self._extremes.setdefault(found.node, (x.node, y.node))
        if found.known is None and (x.fills is not None or y.fills is not None):
            found = replace(found, fills=masks.fills_of_maximum(fills_of(x), fills_of(y)))
            assert found.node is not None
            self._values[found.node] = found
        return found

    def minimum(self, x: Value, y: Value) -> Value:
        x, y = self._pair(x, y)
        if x.node == y.node:
            return x
        self._refuse_infinity("minimum", x, y)
        for one, other in ((x, y), (y, x)):
            high = np.isposinf(fills_of(other))
            if high.any() and other.node != one.node:
                inside = self.minimum(one, self._where_finite(other))
                return self.where(self.constant(high), one, inside)
        for one, other in ((x, y), (y, x)):
            if one.known is None and self._is_bound(other, lowest=False):
                return one
        difference = self.subtract(x, y)
        return self.subtract(x, self.multiply(difference, self.as_float(self._loose_step(difference))))

    def _is_bound(self, x: Value, *, lowest: bool) -> bool:
        """Returns whether a value is the lowest or highest finite number of its type, which bounds all of that type
        (axiom "finite")."""
        node = self._inner(x).node
        if node is None or self.operations[node].name != "constant":
            return False
        array, unit = self.operations[node].attributes["array"], self.operations[node].attributes.get("unit", WIDEST)
        is_bound = bool((array == (-1 if lowest else 1) * largest_of(unit)).all())
        if is_bound:
            self.axioms.setdefault("finite", {})[self.line] = None
        return is_bound

    def sign(self, x: Value) -> Value:
        """Returns [x > 0] − [−x > 0]."""
        x = self.as_float(x)
        if x.known is not None:
            return self.constant(np.sign(x.known))
        return self.subtract(self.as_float(self.step(x)), self.as_float(self.step(self.negate(x))))

    def absolute(self, x: Value) -> Value:
        """Returns x (2 [x > 0] − 1)."""
        x = self.as_float(x)
        if x.known is not None and not np.isfinite(x.known).all():
            return self.constant(np.abs(x.known))
        if x.known is not None:  # a table that may be off by the roundings before it
            return self.multiply(x, self.constant(np.sign(x.known)))
        if self._signs.never_negative(x.node or 0):
            self.axioms.setdefault("positive", {})[self.line] = None
            return x
        sign = self.subtract(self.multiply(self.constant(2.0), self.as_float(self._loose_step(x))), self.constant(1.0))
        return self.multiply(x, sign)

    # --- logic

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

    @recorded
    def is_condition(self, x: Value) -> bool:
        """Returns whether a value is a condition on weights, as a number."""
        node = x.node
        while node is not None and self.operations[node].name in ("broadcast", "reshape", "transpose", "take"):
            node = self.operations[node].inputs[0]
        return node is not None and (self.operations[node].name in ("step", "equal") or node in self._negated)

    def _truth(self, x: Value) -> Value:
        """Returns whether x isn't zero."""
        if x.kind in ("bool", "indicator"):
            return x
        return self.logical_not(self.equal(x, self.constant(np.zeros(x.shape))))


def _whole_fills(x: Value, y: Value) -> tuple[masks.Fills, masks.Fills]:
    """Returns the fills of two terms, with small constants in rows that have fills: adding 900 a dozen times to −10⁴
    leaves nothing masked."""
    if x.fills is None and y.fills is None:
        return None, None
    ours, theirs = (each.fills if each.known is None else masks.without_nan(each.known) for each in (x, y))
    return ours, theirs
