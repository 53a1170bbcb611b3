"""Describes which elements correspond by axes: a part of a leaf, and the axes of the tensor that has its elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jax_transformer.matching.weights import NONE, Elements
from jax_transformer.proof.distinct import distinct

Digit = tuple[int, int]
"""Size and stride: an axis whose elements lie a stride apart."""


@dataclass(frozen=True)
class Piece:
    """A part of a leaf whose elements are those of one tensor, along its axes."""

    leaf: str
    index: tuple[int | slice, ...]
    """Which part of the leaf: an index or a slice for each of its first axes."""
    tensor: str
    base: int
    """The tensor's element that is the part's first one."""
    axes: tuple[tuple[Digit, ...], ...]
    """For each axis of the part, the axes that are merged in it, from the outermost on, as they lie in the tensor."""

    def places(self) -> np.ndarray:
        """Returns the tensor's element of each element of the part."""
        shape = tuple(math.prod(size for size, _ in digits) for digits in self.axes)
        found = np.full(shape, self.base)
        for axis, digits in enumerate(self.axes):
            steps = _steps(digits)
            found = found + steps.reshape([-1 if each == axis else 1 for each in range(len(shape))])
        return found


def pieces_of(leaf: str, partners: np.ndarray, tensors: Elements) -> list[Piece] | None:
    """Returns a leaf in pieces; None if its elements aren't those of tensors along their axes. Elements whose partners
    aren't known follow from their neighbours'.

    Args:
      partners: the number of the partner of each element, NONE where it isn't known.
    """
    found = list(_split(leaf, (), partners, tensors))
    return None if None in found else [piece for piece in found if piece is not None]


def _split(
    leaf: str, index: tuple[int | slice, ...], partners: np.ndarray, tensors: Elements
) -> Iterator[Piece | None]:
    names, starts = list(tensors.starts), np.array(list(tensors.starts.values()))
    known = partners >= 0
    if not known.any():
        yield None
        return
    owners = np.where(known, np.searchsorted(starts, partners, side="right") - 1, NONE)
    every = distinct(owners[known])
    if every.size == 1:
        name = names[int(every[0])]
        local = np.where(known, partners - tensors.starts[name], NONE)
        fitted = fit(local, tensors.shapes[name])
        if fitted is not None:
            yield Piece(leaf, index, name, *fitted)
            return
    for axis in range(partners.ndim):
        runs = _runs(owners, axis)
        if runs is None or len(runs) < 2:
            continue
        is_stack = axis == 0 and all(stop - start == 1 for start, stop in runs)
        for start, stop in runs:
            if is_stack:
                yield from _split(leaf, (*index, start), partners[start], tensors)
            else:
                part = (*(slice(None) for _ in range(axis)), slice(start, stop))
                yield from _split(leaf, (*index, *part), partners[part], tensors)
        return
    if partners.ndim and partners.shape[0] > 1:
        for number in range(partners.shape[0]):
            yield from _split(leaf, (*index, number), partners[number], tensors)
        return
    yield None


def _runs(owners: np.ndarray, axis: int) -> list[tuple[int, int]] | None:
    """Returns runs of places along an axis at which all elements are of one tensor; None if those of a place aren't."""
    lines = np.moveaxis(owners, axis, 0).reshape(owners.shape[axis], -1)
    of_line = []
    for line in lines:
        different = distinct(line[line >= 0])
        if different.size > 1:
            return None
        of_line.append(int(different[0]) if different.size else NONE)
    for place, owner in enumerate(of_line):  # what isn't known goes with what precedes it
        if owner == NONE and place:
            of_line[place] = of_line[place - 1]
    starts = [place for place, owner in enumerate(of_line) if place == 0 or owner != of_line[place - 1]]
    return list(zip(starts, [*starts[1:], len(of_line)], strict=True))


def fit(local: np.ndarray, shape: tuple[int, ...]) -> tuple[int, tuple[tuple[Digit, ...], ...]] | None:
    """Returns the first element and the axes of places in a tensor of a shape; None if they have no axes. An axis along
    which one place alone is known is one of the tensor's that is as long, at the same place."""
    known = local >= 0
    if not local.size:
        return None
    steps: list[np.ndarray] = []
    for axis, length in enumerate(local.shape):
        lines, is_known = (np.moveaxis(each, axis, 0).reshape(length, -1) for each in (local, known))
        found = _along(lines, is_known, shape)
        if found is None and int(is_known.any(axis=1).sum()) == 1:
            found = _along_one(lines, is_known, shape)
        if found is None:
            return None
        steps.append(found)
    total = np.zeros(local.shape, np.int64)
    for axis, each in enumerate(steps):
        total = total + each.reshape([-1 if other == axis else 1 for other in range(local.ndim)])
    first = distinct((local - total)[known])
    if first.size != 1:
        return None
    whole = total + int(first[0])
    if whole.min() < 0 or whole.max() >= math.prod(shape):
        return None
    axes = [digits_of(each) for each in steps]
    return None if None in axes else (int(first[0]), tuple(each for each in axes if each is not None))


def _along_one(lines: np.ndarray, known: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Returns the steps of an axis of a tensor that is as long, and at which all that is known is at one place."""
    place, elements = int(np.argmax(known.any(axis=1))), lines[known]
    for axis, size in enumerate(shape):
        stride = math.prod(shape[axis + 1 :])
        if size == len(lines) and (elements // stride % size == place).all():
            return np.arange(size) * stride
    return None


def _along(lines: np.ndarray, known: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Returns how far each place along an axis is from the first one. Those of which nothing is known follow along an
    axis of the tensor; ids that are reversed or doubled, so that other rows are read, give none."""
    length = len(lines)
    is_whole = known.all(axis=0)
    if is_whole.any():
        steps = lines[:, int(np.argmax(is_whole))]
        return np.asarray(steps - steps[0])
    found = np.zeros(length, np.int64)
    is_found = np.zeros(length, bool)
    first = int(np.argmax(known.any(axis=1)))
    is_found[first] = True
    waiting = [first]
    while waiting:
        place = waiting.pop()
        both = known & known[place]
        for other in np.flatnonzero(both.any(axis=1) & ~is_found):
            column = int(np.argmax(both[other]))
            found[other] = found[place] + lines[other, column] - lines[place, column]
            is_found[other] = True
            waiting.append(int(other))
    if not is_found.all():
        places = np.flatnonzero(is_found)
        if places.size < 2:
            return None if length > 1 else found
        gaps = np.diff(found[places]) / np.diff(places)
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        if (gaps != gaps[0]).any() or gaps[0] not in strides:
            return None
        found = (np.arange(length) - first) * int(gaps[0]) + found[first]
    return found - found[0]


def digits_of(steps: np.ndarray) -> tuple[Digit, ...] | None:
    """Returns the axes that are merged in one, from the outermost on: steps 0 4 1 5 2 6 3 7 are (4, 1), (2, 4)."""
    digits: list[Digit] = []
    length, block = len(steps), 1
    while block < length:
        stride = int(steps[block] - steps[0])
        count = 1
        while (count + 1) * block <= length and np.array_equal(
            steps[count * block : (count + 1) * block], steps[:block] + count * stride
        ):
            count += 1
        if count == 1 or length % (count * block):
            return None
        digits.append((count, stride))
        block *= count
    return tuple(digits[::-1])


def _steps(digits: Sequence[Digit]) -> np.ndarray:
    found = np.zeros(1, np.int64)
    for size, stride in digits:
        found = (found[:, None] + np.arange(size) * stride).ravel()
    return found


def completed(
    pieces: Mapping[str, Sequence[Piece]], leaves: Elements, tensors: Elements, row: np.ndarray
) -> np.ndarray:
    """Returns the partners of all elements, those that follow from pieces included."""
    found = row.copy()
    for leaf, several in pieces.items():
        numbers = leaves.numbers(leaf)
        for piece in several:
            found[numbers[piece.index]] = piece.places() + tensors.starts[piece.tensor]
    return found
