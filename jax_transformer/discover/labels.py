"""Label every element of a run's tensors with its sentence and token.

In any layout ([B, T, D], [T, B, D], merged rows, separate heads), each element of an activation belongs to one sentence
and one token, and each element of an attention matrix also to the attended token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jax_transformer.programs.trace import Recording, Value

NONE, MIXED = -1, -2
TARGET = 1 << 20
"""Added to the positions of target tokens."""


class Labels(NamedTuple):
    """Holds three int arrays of a tensor's shape: the sentence, the token, and the token that is attended to.

    NONE: the element belongs to none in particular; MIXED: to several.
    """

    batch: np.ndarray
    token: np.ndarray
    key: np.ndarray

    def map(self, change: Callable[[np.ndarray], np.ndarray]) -> Labels:
        return Labels(*(change(part) for part in self))


@dataclass(frozen=True, eq=False)
class Stream:
    """Holds a tensor with one vector per token, in any layout: the elements' numbers [B, P, C], ordered by sentence and
    token."""

    elements: np.ndarray


class Labeller:
    """Computes labels on demand."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._of: dict[int, Labels] = {}
        self._streams: dict[int, Stream | None] = {}

    def of(self, value: Value) -> Labels:
        """Returns the labels of a Value's elements."""
        found = self._of.get(value.number)
        if found is None:
            if not value.depends_on_ids:
                found = _same(value.array.shape, NONE)
            elif value.is_moved:
                found = self.at(self.recording.elements(value))
            else:
                found = self._computed(value)
            self._of[value.number] = found
        return found

    def at(self, elements: np.ndarray) -> Labels:
        """Returns the labels of elements, which are identified by their numbers."""
        roots = self.recording.roots(elements)
        if len(roots) == 1:
            places = self.recording.places(elements, roots[0])
            return self.of(roots[0]).map(lambda part: part.ravel()[places])
        parts = _same(elements.shape, NONE).map(np.copy)
        for root in roots:
            places = self.recording.places(elements, root)
            inside = (places >= 0) & (places < root.array.size)
            for part, own in zip(parts, self.of(root), strict=True):
                part[inside] = own.ravel()[places[inside]]
        return parts

    def stream(self, value: Value) -> Stream | None:
        """Returns the Value as one vector per token; None if it isn't that."""
        if value.number not in self._streams:
            self._streams[value.number] = (
                self._arranged(value) if value.depends_on_ids and value.is_float and value.array.ndim >= 2 else None
            )
        return self._streams[value.number]

    def _arranged(self, value: Value) -> Stream | None:
        labels = self.of(value)
        if (labels.key != NONE).any() or (labels.token < 0).any() or (labels.batch < 0).any():
            return None
        order = np.lexsort((np.arange(value.array.size), labels.token.ravel(), labels.batch.ravel()))
        batch, token = (part.ravel()[order] for part in (labels.batch, labels.token))
        rows, tokens = len(np.unique(batch)), len(np.unique(token))
        if not value.array.size or value.array.size % (rows * tokens):
            return None
        shape = rows, tokens, value.array.size // (rows * tokens)
        batch, token = batch.reshape(shape), token.reshape(shape)
        if (batch != batch[:, :1, :1]).any() or (token != token[:1, :, :1]).any():
            return None
        return Stream(self.recording.elements(value).ravel()[order].reshape(shape))

    # --- how operations carry labels on

    def _computed(self, value: Value) -> Labels:
        shape = value.array.shape
        if value.op in ("source_ids", "target_ids"):
            batch, token = (np.asarray(part) for part in np.indices(shape))
            return Labels(batch, token + TARGET * (value.op == "target_ids"), np.full(shape, NONE))
        if value.op in ("embedding", "index", "index_select") and not value.inputs[0].depends_on_ids:
            ids = self._ids(value.inputs[-1])
            extra = value.array.ndim - ids.batch.ndim
            return ids.map(lambda part: np.broadcast_to(part.reshape(*part.shape, *[1] * extra), shape))
        if value.op in ("mm", "bmm"):
            return self._product(*value.inputs[:2])
        if value.op in ("addmm", "baddbmm"):
            return self._product(*value.inputs[1:3])
        if value.op == "view_as_complex":
            return self.of(value.inputs[0]).map(lambda part: part[..., 0])
        if value.op == "view_as_real" and (pairs := pairs_behind(value)) is not None:
            return self.of(pairs)
        if value.op == "convolution":
            first = self.of(value.inputs[0])
            return _fitted(first.map(lambda part: part[:, :1]), shape) or _same(shape, MIXED)
        return self._combined([self.of(one) for one in value.inputs if one.depends_on_ids], value)

    def _ids(self, value: Value) -> Labels:
        """Returns the labels of ids. Ids that a program inserts (a start token) or repeats take the column they are
        in."""
        labels = self.of(value)
        tokens = len(np.unique(labels.token)) * len(np.unique(labels.batch))
        if value.array.ndim != 2 or (
            (labels.token >= 0).all() and (labels.batch >= 0).all() and tokens == value.array.size
        ):
            return labels
        known = labels.batch >= 0
        rows, columns = (np.asarray(part) for part in np.indices(value.array.shape))
        is_target = TARGET * bool((labels.token >= TARGET).any() or _depends_on(value, "target_ids"))
        if known.any() and (labels.batch[known] == columns[known]).all() and not (labels.batch == rows)[known].all():
            rows, columns = columns, rows  # [T, B]
        return Labels(rows, columns + is_target, np.full(rows.shape, NONE))

    def _product(self, left: Value, right: Value) -> Labels:
        rows = self.of(left).map(lambda part: _common(part, -1))  # [.., R, 1]
        columns = self.of(right).map(lambda part: _common(part, -2))  # [.., 1, C]
        shape = np.broadcast_shapes(rows.batch.shape, columns.batch.shape)
        rows, columns = (labels.map(lambda part: np.broadcast_to(part, shape)) for labels in (rows, columns))
        batch = _merged(rows.batch, columns.batch)
        is_row = rows.token != NONE
        token = np.where(is_row, rows.token, columns.token)
        key = np.where(is_row, columns.token, rows.key)
        return Labels(batch, token, key)

    def _combined(self, inputs: list[Labels], value: Value) -> Labels:
        """Combines labels as an operation on elements, or along an axis, does.

        A mask with the shape of an attention matrix adds no label: its last axis indexes the keys, too.
        """
        shape = value.array.shape
        result: Labels | None = None
        for labels in inputs:
            fitted = _fitted(labels, shape)
            if fitted is None:
                fitted = _fitted(_reduced(labels, value), shape)
            if fitted is None:
                return _same(shape, MIXED)
            if (fitted.key != NONE).all():
                return fitted
            result = (
                fitted
                if result is None
                else Labels(*(_merged(one, other) for one, other in zip(result, fitted, strict=True)))
            )
        return result or _same(shape, NONE)


def pairs_behind(value: Value) -> Value | None:
    """Returns the real numbers whose pairs a program multiplied as complex numbers, in the result's shape."""
    one = value.inputs[0]
    while one.op != "view_as_complex":
        behind = [other for other in one.inputs if other.depends_on_ids]
        if len(behind) != 1 or behind[0].array.shape != one.array.shape:
            return None
        one = behind[0]
    return one.inputs[0]


def _depends_on(value: Value, name: str) -> bool:
    return value.op == name or any(_depends_on(one, name) for one in value.inputs if one.depends_on_ids)


def _same(shape: tuple[int, ...], label: int) -> Labels:
    return Labels(*(np.full(shape, label) for _ in range(3)))


def _fitted(labels: Labels, shape: tuple[int, ...]) -> Labels | None:
    """Returns the labels broadcast to a shape; None if that can't be."""
    try:
        return labels.map(lambda part: np.broadcast_to(part, shape))
    except ValueError:
        return None


def _reduced(labels: Labels, value: Value) -> Labels:
    """Returns the labels that the elements along the operation's axes have in common."""
    axes = next(
        (
            one
            for one in value.args[1 + (value.op == "linalg_vector_norm") :]
            if isinstance(one, (list, tuple, int)) and one is not True
        ),
        None,
    )
    ndim = labels.batch.ndim
    chosen = range(ndim) if axes is None else [axes] if isinstance(axes, int) else axes
    for axis in sorted({int(axis) % ndim for axis in chosen if isinstance(axis, int)}, reverse=True):
        labels = labels.map(lambda part, axis=axis: _common(part, axis))  # type: ignore[misc]
        if labels.batch.ndim > value.array.ndim:
            labels = labels.map(lambda part, axis=axis: part.squeeze(axis))  # type: ignore[misc]
    return labels


def _common(part: np.ndarray, axis: int) -> np.ndarray:
    """Returns the labels that all elements along an axis share, keeping the axis."""
    first = np.take(part, [0], axis)
    return np.where((part == first).all(axis, keepdims=True), first, NONE)


def _merged(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Merges two labels of one element."""
    both = np.where(one == NONE, other, np.where((other == NONE) | (one == other), one, MIXED))
    return np.asarray(both)
