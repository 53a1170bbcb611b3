"""Build a program, operation by operation: both frameworks' operations are lowered by calls of a `Builder`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jax_transformer.proof import masks
from jax_transformer.proof.algebra import Algebra
from jax_transformer.proof.domains import DISAGREE
from jax_transformer.proof.emitting import fills_of, shadow, without
from jax_transformer.proof.programs import MOVES, Operation, UnknownOperation, Value
from jax_transformer.proof.tape import records_values


@records_values
class Builder(Algebra):
    """Adds sums and functions to the algebra. Rows of exponentials are written about their means (axiom "softmax")."""

    def sum(self, x: Value, axes: Sequence[int]) -> Value:
        """Sums over axes, which go. If they are rows of exponentials, these are written about their means first."""
        axes = tuple(sorted(int(axis) for axis in axes))
        if x.kind in ("int", "bool"):
            return Value(without(x.shape, axes), "int", shadow(lambda array: array.sum(axis=axes), x))
        x = self.as_float(x)
        if not axes:
            return x
        if len(axes) == 1:
            x = self._about_mean(x, axes[0])
        known = shadow(lambda array: array.sum(axis=axes), x)
        fills = masks.summed(x.fills, axes, self.line)
        return self._emit("sum", [x], without(x.shape, axes), {"axes": axes}, known=known, fills=fills)

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

    # --- choices

    def as_float(self, x: Value) -> Value:
        if x.table is None or x.kind in ("float", "indicator"):
            return super().as_float(x)
        assert x.node is not None
        return self.number_of_choice(x.node, x.table)

    def number_of_choice(self, node: int, table: np.ndarray) -> Value:
        """Returns the number that a table has for the entry that is chosen."""
        numbers, ones = self._values[node], table == 1
        if ((table == 0) | ones).all() and ones.sum(-1).max() <= 1:
            count = table.shape[-1]
            first = np.arange(table.size // count).reshape(table.shape[:-1]) * count
            return self.take(numbers, np.where(ones.any(-1), first + ones.argmax(-1), -1))
        return self.sum(self.multiply(numbers, self.constant(table.astype(np.float64))), (table.ndim - 1,))

    # --- functions

    def exp(self, x: Value) -> Value:
        """Returns exp(x). If a number was subtracted from each row of x, the row is written about its mean: softmax and
        its derivatives then don't depend on that number. If that is the row's largest, or the logarithm of its
        exponentials' sum, masked entries are 0 (axiom "masks")."""
        x = self.as_float(x)
        axis, low = self._row_axis(x), masks.low(x.fills, self.line)
        is_exact = low is None or np.isneginf(fills_of(x)[low]).all()
        if not is_exact and not self._is_below_its_row(x):
            axis, low = None, np.isneginf(fills_of(x))
        elif not is_exact:
            self.axioms.setdefault("masks", {})[self.line] = None
        if axis is not None:
            return self._exp_of_rows(x, axis, hidden=low)
        if x.known is None and low is not None and low.any():
            return self.multiply(self.exp(self._zero_at(low, x)), self.constant(np.where(low, 0.0, 1.0)))
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
        exponentials, mean = total
        shape = inner.shape
        logarithm = self.add(
            self.reshape(self._elementwise("log", exponentials, np.log), shape), self.reshape(mean, shape)
        )
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
        """Returns x as the value of an unknown function of x, which resets the degree.

        Args:
          is_weight: whether x is a weight after an optimizer step, which takes all values like the weight before it.
        """
        x = self.as_float(x)
        return self._emit("cut", [x], x.shape, {"is_weight": is_weight}, fills=x.fills)

    def agreed(self, values: Sequence[Value], reason: str = DISAGREE) -> Value:
        """Returns the first of equal values. If they differ, the program has no value, and `reason` explains why there
        is no proof."""
        values = self._alike(values)
        first = values[0]
        if first.node is None or any(
            not np.array_equal(fills_of(each), fills_of(first), equal_nan=True) for each in values
        ):
            raise UnknownOperation("agreed", self.line, reason)
        attributes = {"reason": reason}
        return self._emit(
            "agreed", values, first.shape, attributes, kind=first.kind, known=first.known, fills=first.fills
        )

    def logistic(self, x: Value) -> Value:
        """Returns σ(x) = (1 + tanh(x/2))/2."""
        half = self.constant(0.5)
        return self.multiply(half, self.add(self.constant(1.0), self.tanh(self.multiply(x, half))))

    # --- rows

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

    def largest(self, x: Value, axes: Sequence[int]) -> Value:
        """Returns the maximum over axes, which go."""
        axes = tuple(sorted(int(axis) for axis in axes))
        if x.kind in ("int", "bool"):
            return Value(without(x.shape, axes), x.kind, shadow(lambda array: array.max(axis=axes), x))
        x, sizes = self.as_float(x), {x.shape[axis] for axis in axes}
        if 0 in sizes:
            return self.constant(np.full(without(x.shape, axes), -np.inf))
        if sizes <= {1}:
            return self.reshape(x, without(x.shape, axes))
        counts = counting = None
        if x.fills is not None and not (np.isneginf(x.fills).all(axis=axes).any() or np.isposinf(x.fills).any()):
            counts, counting = ~np.isneginf(x.fills), masks.counting(x.fills, axes, self.line)
        known, fills = shadow(lambda array: array.max(axis=axes), x), masks.fills_of_largest(x.fills, counting, axes)
        kept = {"counts": counts, "shown": counting}
        attributes = {
            "axes": axes,
            **{name: each for name, each in kept.items() if each is not None and not each.all()},
        }
        return self._emit("largest", [x], without(x.shape, axes), attributes, known=known, fills=fills)

    def largest_of(self, parts: Sequence[Value]) -> Value:
        """Returns the maximum of values of one shape. Maxima of rows are merged into the maximum of longer rows."""
        rows = [self._rows_of_largest(part) for part in parts]
        if rows[0] is not None and all(each is not None and each[1:] == rows[0][1:] for each in rows):
            stacked = self._stacked([each[0] for each in rows if each is not None])
            return self.reshape(self.largest(stacked, (0, *(axis + 1 for axis in rows[0][1]))), parts[0].shape)
        return self.largest(self._stacked(parts), (0,))

    def _rows_of_largest(self, x: Value) -> tuple[Value, tuple[int, ...], tuple[int, ...]] | None:
        """Returns the operand of a maximum, with its axes and shape; None for another value, or with masked entries."""
        if x.node is None:
            return None
        one = self.operations[x.node]
        while one.name == "reshape":
            one = self.operations[one.inputs[0]]
        if one.name != "largest":
            return None
        row = self._values[one.inputs[0]]
        return None if row.fills is not None else (row, one.attributes["axes"], row.shape)

    def _stacked(self, parts: Sequence[Value]) -> Value:
        return self.concatenate([self.reshape(part, (1, *part.shape)) for part in parts], 0)

    def _exp_of_rows(
        self, x: Value, axis: int, counts: np.ndarray | None = None, hidden: np.ndarray | None = None
    ) -> Value:
        """Returns exp(x − m) · exp(m), where m is the mean of each row's counted entries, those that aren't masked; 0
        for a row without any.

        Args:
          counts: mask of the entries that are read; None: all.
          hidden: mask of the entries that a constant masks; None: those masked relative to another entry of their row.
        """
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        masks.low(x.fills, self.line)  # refuses ∞
        fills = fills_of(x)
        if hidden is None:
            hidden = masks.hidden(fills, (axis,)) | np.isneginf(fills)
            if (hidden & np.isfinite(fills)).any():
                self.axioms.setdefault("masks", {})[self.line] = None
        counting = ~hidden if counts is None else ~hidden & counts
        empty = ~counting.any(axis=axis, keepdims=True)
        counts, x = counting | empty, self._zero_at(np.broadcast_to(empty, x.shape), x)
        attributes = {"axis": axis, **({} if counts.all() else {"counts": counts})}
        mean = self._emit("row_mean", [x], shape, attributes, fills=masks.fills_of_mean(x.fills, counts, axis))
        exponentials = self._emit("row_exp", [x, mean], x.shape, attributes)
        found = self.multiply(exponentials, self.broadcast(self._elementwise("exp", mean, np.exp), x.shape))
        return self._zero_at(np.broadcast_to(empty, x.shape), found)

    def _is_below_its_row(self, x: Value) -> bool:
        """Returns whether x subtracts, from its entries, their row's maximum or the logarithm of their sum."""
        if self.operations[x.node or 0].name != "subtract":
            return False
        row, other = self.operations[x.node or 0].inputs
        if self._signs.leaves(row) & ~self._signs.leaves(other):
            return False
        waiting, seen = [other], set[int]()
        while waiting:
            node = waiting.pop()
            one = self.operations[node]
            if one.name in ("largest", "log") or node in self._extremes:
                return True
            if node not in seen and one.name in (*MOVES, "add", "subtract"):
                waiting += one.inputs
            seen.add(node)
        return False

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
                exponentials, factor = self.operations[row], self._inner(self._values[scale]).node
                assert factor is not None
                is_exp_of_mean = self.operations[factor].name == "exp" and exponentials.name == "row_exp"
                if is_exp_of_mean and self.operations[factor].inputs[0] == exponentials.inputs[1]:
                    return None if "counts" in exponentials.attributes else self._values[exponentials.inputs[0]]
        return None

    def _sum_about_mean(self, total: Operation) -> tuple[Value, Value] | None:
        """Returns Σ exp(x − m) and m, if a sum has these terms times exp(m)."""
        product = self.operations[total.inputs[0]]
        if product.name != "multiply":
            return None
        for row, scale in (product.inputs, product.inputs[::-1]):
            exponentials, factor = self.operations[row], self.operations[scale]
            if exponentials.name != "row_exp" or total.attributes["axes"] != (exponentials.attributes["axis"],):
                continue
            exp = self.operations[factor.inputs[0]] if factor.name == "broadcast" else factor
            if exp.name == "exp" and exp.inputs[0] == exponentials.inputs[1]:
                return self.sum(self._values[row], total.attributes["axes"]), self._values[exp.inputs[0]]
        return None


def _whole_rows(counts: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return counts | ~counts.any(axis=axes, keepdims=True)
