"""Read a recording as linear maps, lookups, norms and products of activations, however they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jax_transformer.discover.labels import NONE, Labeller, Stream, pairs_behind
from jax_transformer.programs.trace import Recording, Value

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
CLOSE = 1e-12
"""The largest difference of values that count as equal, in units of their RMS: float64's gate of a parity run."""


@dataclass(frozen=True, eq=False)
class Linear:
    """Holds x @ kernel + bias over the tokens of one side."""

    value: Value
    """The root that holds its outputs, after the bias."""
    inputs: np.ndarray
    """Elements [B, P, In]"""
    outputs: np.ndarray
    """Elements [B, P, Out]"""
    kernel: np.ndarray
    """Elements of parameters [In, Out]"""
    bias: np.ndarray | None
    """Elements of parameters [Out]"""

    @cached_property
    def channels(self) -> dict[int, int]:
        """Returns the channel of each element of the first token."""
        return {int(element): channel for channel, element in enumerate(self.outputs[0, 0])}


@dataclass(frozen=True, eq=False)
class Lookup:
    """Holds rows of a table, chosen by ids."""

    value: Value
    outputs: np.ndarray
    """Elements [B, P, D]"""
    table: np.ndarray
    """Elements of the table [V, D]"""
    ids: Value


@dataclass(frozen=True, eq=False)
class Product:
    """Holds a product of two activations, such as query · key: elements of both operands and of the result."""

    value: Value
    left: np.ndarray
    """[n, R, M]"""
    right: np.ndarray
    """[n, M, C]"""
    result: np.ndarray
    """[n, R, C]"""


class Graph:
    """Finds the nodes of a recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.labels = recording, Labeller(recording)
        self.linears: dict[Value, Linear] = {}
        self.odd: set[Value] = set()
        """Products with parameters that are no linear map of whole tokens, such as one of each head."""
        self.lookups: dict[Value, Lookup] = {}
        self.products: dict[Value, Product] = {}
        for value in recording.values:
            if value.is_float and not value.is_moved and value.depends_on_ids:
                self._read(value)

    # --- elements

    def values(self, elements: np.ndarray) -> np.ndarray:
        """Returns the numbers that elements hold."""
        roots = self.recording.roots(elements)
        result = np.empty(elements.shape, np.result_type(*(root.array.dtype for root in roots)))
        for root in roots:
            places = self.recording.places(elements, root)
            inside = (places >= 0) & (places < root.array.size)
            result[inside] = root.array.ravel()[places[inside]]
        return result

    def stream(self, value: Value) -> Stream | None:
        return self.labels.stream(value)

    def root_of(self, elements: np.ndarray) -> Value | None:
        """Returns the only root of elements; None if they have several."""
        roots = self.recording.roots(elements)
        return roots[0] if len(roots) == 1 else None

    def whole(self, elements: np.ndarray) -> Value | None:
        """Returns the root whose complete stream, in its order, the elements [B, P, C] are."""
        root = self.root_of(elements)
        stream = None if root is None else self.stream(root)
        return root if stream is not None and np.array_equal(stream.elements, elements) else None

    def operand(self, value: Value, operand: Value, elements: np.ndarray) -> np.ndarray | None:
        """Returns the elements of an operand that an elementwise operation combined into these elements of its result.

        None if the operand's shape says that the operation wasn't elementwise.
        """
        if value.op == "view_as_real" and (pairs := pairs_behind(value)) is not None:
            return self.recording.elements(pairs).ravel()[self.recording.places(elements, value)]
        try:
            broadcast = np.broadcast_to(self.recording.elements(operand), value.array.shape)
        except ValueError:
            return None
        return broadcast.ravel()[self.recording.places(elements, value)]

    def pull(self, elements: np.ndarray, is_goal: Callable[[Value], bool], *, last: bool = False) -> np.ndarray | None:
        """Follows elements back through elementwise operations to goal roots; None if it meets none.

        At each operation, it follows the first operand (or the last one) that depends on the ids and reaches a goal.
        """
        roots = self.recording.roots(elements)
        if all(is_goal(root) for root in roots):
            return elements
        result = elements.copy()
        for root in roots:
            if is_goal(root):
                continue
            places = self.recording.places(elements, root)
            inside = (places >= 0) & (places < root.array.size)
            found = self._pulled(root, elements[inside], is_goal, last)
            if found is None:
                return None
            result[inside] = found
        return result

    def _pulled(
        self, root: Value, elements: np.ndarray, is_goal: Callable[[Value], bool], last: bool
    ) -> np.ndarray | None:
        if root in self.products or root in self.linears or root in self.lookups:
            return None
        for operand in root.inputs[::-1] if last else root.inputs:
            if not (operand.depends_on_ids and operand.is_float):
                continue
            before = self.operand(root, operand, elements)
            found = None if before is None else self.pull(before, is_goal, last=last)
            if found is not None:
                return found
        return None

    def behind(self, value: Value, is_boundary: Callable[[Value], bool]) -> list[Value]:
        """Returns the nearest roots behind a value that are a boundary, in execution order."""
        found: set[Value] = set()
        seen: set[Value] = set()
        open_ones = [value]
        while open_ones:
            one = open_ones.pop()
            if one in seen:
                continue
            seen.add(one)
            if not one.is_moved and one is not value and is_boundary(one):
                found.add(one)
            else:
                open_ones += [operand for operand in one.inputs if operand.depends_on_ids]
        return sorted(found, key=lambda one: one.number)

    def before_linears(self, values: Iterable[Value]) -> Iterator[Value]:
        """Yields Values and those that they are computed from, the nearest first, up to linear maps."""
        seen: set[Value] = set()
        open_ones = list(values)
        while open_ones:
            one = open_ones.pop(0)
            if one not in seen and one not in self.linears:
                seen.add(one)
                open_ones += one.inputs
                yield one

    # --- nodes

    def _read(self, value: Value) -> None:
        if value.op in PRODUCTS:
            left, right = value.inputs[-2:]
            if left.depends_on_ids and right.depends_on_ids:
                self.products[value] = Product(value, *(self._batched(one) for one in (left, right, value)))
            else:
                self._linear(value, left, right)
        elif value.op == "convolution" and value.inputs[1].array.shape[2:] == (1,):
            self._convolution(value)
        elif value.op in ("embedding", "index", "index_select"):
            self._lookup(value)
        elif value.op == "add":
            self._bias(value)

    def _batched(self, value: Value) -> np.ndarray:
        elements = self.recording.elements(value)
        return elements if elements.ndim == 3 else elements[None]

    def _linear(self, value: Value, left: Value, right: Value) -> None:
        stream = self.stream(value)
        if stream is None:
            return
        a, b = self._batched(left), self._batched(right)
        n, r, c = np.unravel_index(
            self.recording.places(stream.elements, value), (*[1] * (3 - value.array.ndim), *value.array.shape)
        )
        if left.depends_on_ids:
            inputs, kernel, whole = a[n[..., 0], r[..., 0]], b[n[0, 0], :, c[0, 0]].T, a[n[0, 0], r[0, 0]]
        else:
            inputs, kernel, whole = b[n[..., 0], :, c[..., 0]], a[n[0, 0], r[0, 0]].T, b[n[0, 0], :, c[0, 0]]
        if (whole != whole[:1]).any():
            self.odd.add(value)  # each output reads other inputs
            return
        bias = self._first_bias(value, stream) if len(value.inputs) == 3 else None
        self._add(value, inputs, stream, kernel, bias)

    def _first_bias(self, value: Value, stream: Stream) -> np.ndarray:
        broadcast = np.broadcast_to(self.recording.elements(value.inputs[0]), value.array.shape).ravel()
        return np.asarray(broadcast[self.recording.places(stream.elements[0, 0], value)])

    def _convolution(self, value: Value) -> None:
        stream, source = self.stream(value), self.stream(value.inputs[0])
        if stream is None or source is None or len(value.inputs) not in (2, 3):
            return
        kernel = self.recording.elements(value.inputs[1])[:, :, 0].T
        bias = self.recording.elements(value.inputs[2]) if len(value.inputs) == 3 else None
        if kernel.shape == (source.elements.shape[2], stream.elements.shape[2]):
            self._add(value, source.elements, stream, kernel, bias)

    def _add(
        self, value: Value, inputs: np.ndarray, stream: Stream, kernel: np.ndarray, bias: np.ndarray | None
    ) -> None:
        """Keeps a linear map if it reproduces the recorded numbers."""
        expected = self.values(inputs) @ self.values(kernel)
        if bias is not None:
            expected = expected + self.values(bias)
        if close(expected, self.values(stream.elements)):
            self.linears[value] = Linear(value, inputs, stream.elements, kernel, bias)

    def _bias(self, value: Value) -> None:
        """Reads the addition of a vector of parameters to a linear map as its bias."""
        stream = self.stream(value)
        if stream is None or len(value.inputs) != 2 or value.kwargs.get("alpha", 1) != 1:
            return
        for one, other in (value.inputs, value.inputs[::-1]):
            linear = self.linears.get(self.recording.root(one) or value)
            if linear is None or linear.bias is not None or other.depends_on_ids:
                continue
            before = self.operand(value, one, stream.elements)
            bias = self.operand(value, other, stream.elements)
            if before is None or bias is None or not np.array_equal(before, linear.outputs):
                continue
            if (bias == bias[:1, :1]).all() and linear.value in self.linears:
                only = [user for user in self._users(linear.value) if user is not value]
                if not only:
                    del self.linears[linear.value]
                    self.linears[value] = Linear(value, linear.inputs, stream.elements, linear.kernel, bias[0, 0])

    def _users(self, value: Value) -> Iterator[Value]:
        """Yields the operations that compute with a Value, looking through operations that only move it."""
        for user in self.recording.users[value]:
            if user.is_moved:
                yield from self._users(user)
            else:
                yield user

    def users(self, value: Value) -> list[Value]:
        return list(dict.fromkeys(self._users(value)))

    def _lookup(self, value: Value) -> None:
        stream, table = self.stream(value), value.inputs[0]
        if stream is None or table.depends_on_ids or not table.is_float or table.array.ndim != 2:
            return
        self.lookups[value] = Lookup(value, stream.elements, self.recording.elements(table), value.inputs[-1])

    # --- what is an attention matrix

    def attends(self, value: Value) -> bool:
        """Returns whether each element belongs to a query and to a key."""
        return bool((self.labels.of(value).key != NONE).all())


def close(one: np.ndarray, other: np.ndarray, within: float = CLOSE) -> bool:
    """Returns whether two arrays agree within `within` of their RMS."""
    return one.shape == other.shape and distance(one, other) <= within


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the RMS of the difference in units of the second array's RMS; infinite where only one is finite."""
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)):
        return float("inf")
    scale = float(np.sqrt(np.mean(np.square(np.abs(other[finite]))))) if finite.any() else 1.0
    error = float(np.sqrt(np.mean(np.square(np.abs(one[finite] - other[finite]))))) if finite.any() else 0.0
    return error / scale if scale else (0.0 if error == 0 else float("inf"))
