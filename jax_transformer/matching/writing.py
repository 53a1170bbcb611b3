"""Writes which elements correspond as a map of names, with axes, and reads it back to check it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jax_transformer.mapping.axes import EACH, Axes
from jax_transformer.mapping.files import ParameterName
from jax_transformer.mapping.maps import NameMap
from jax_transformer.mapping.rules import leaves_from_tensors, tensors_from_leaves
from jax_transformer.matching.pieces import Digit, Piece
from jax_transformer.matching.weights import Elements
from jax_transformer.storage.tensors import PortingError

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class _Entry:
    """An entry of a map, or one of those that make one."""

    tensors: tuple[str, ...]
    """Names that the entry has, each for one of the tensors that make the leaf."""
    leaf: str
    axes: Axes
    part: int | None = None
    """Which of the parts that are fused in the tensor it is."""


class Unwritten(Exception):
    """Raised for what a map of names can't say."""


def written(
    pieces: Mapping[str, Sequence[Piece]],
    leaves: Elements,
    tensors: Elements,
    copies: Mapping[str, tuple[str, ...]],
    ignored: Sequence[str],
) -> NameMap:
    """Returns the map of names.

    Args:
      pieces: the leaves in pieces.
      copies: tensors → other names of them.
      ignored: tensors that the reference doesn't read.

    Raises:
      Unwritten: it needs more than axes; the message says where.
    """
    entries = [entry for leaf, several in pieces.items() for entry in _of_leaf(leaf, several, leaves, tensors)]
    parameters: dict[str, ParameterName] = {}
    for names, several in _by_tensor(entries).items():
        for theirs, parameter in _parameters(names, several, copies):
            if theirs in parameters:
                raise Unwritten(f"{theirs} is several leaves with other axes each")
            parameters[theirs] = parameter
    return NameMap({}, parameters, tuple(ignored))


def check(
    names: NameMap, leaves: Elements, tensors: Elements, partners: np.ndarray, copies: Mapping[str, tuple[str, ...]]
) -> None:
    """Carries numbered elements through a map, both ways. Raises Unwritten if they don't arrive where they should."""
    own = {name: tensors.numbers(name).astype(np.float64) for name in tensors.shapes if name not in names.ignored}
    own |= {copy: own[name] for name, others in copies.items() if name in own for copy in others}
    shapes = dict(leaves.shapes)
    try:
        found = leaves_from_tensors(names.rules(), own, shapes)
        for name in shapes:
            if not np.array_equal(np.asarray(found[name]), partners[leaves.numbers(name)]):
                raise Unwritten(f"{name} comes out otherwise")
        back = tensors_from_leaves(names.rules(), {name: np.asarray(each) for name, each in found.items()}, shapes)
        for name, each in back.items():
            if not np.array_equal(np.asarray(each), own[name]):
                raise Unwritten(f"{name} comes out otherwise")
    except PortingError as error:
        raise Unwritten("; ".join(error.problems[:2]) or str(error)) from None


# --- one leaf


def _of_leaf(leaf: str, pieces: Sequence[Piece], leaves: Elements, tensors: Elements) -> Iterator[_Entry]:
    """Yields the entries of a leaf: one, or one for each layer."""
    shape = leaves.shapes[leaf]
    by_layer: dict[int | None, list[Piece]] = {}
    is_stack = all(piece.index and isinstance(piece.index[0], int) for piece in pieces)
    for piece in pieces:
        layer = piece.index[0] if is_stack else None
        by_layer.setdefault(layer, []).append(replace(piece, index=piece.index[1:]) if is_stack else piece)  # type: ignore[arg-type]
    for layer, several in by_layer.items():
        name = leaf if layer is None else f"{leaf}[{layer}]"
        yield _entry(name, several, shape if layer is None else shape[1:], tensors)


def _entry(name: str, pieces: Sequence[Piece], shape: tuple[int, ...], tensors: Elements) -> _Entry:
    """Returns the entry of a leaf, or of one of its layers."""
    places = {_place(piece, shape) for piece in pieces}
    equations = [_equation(piece, tensors) for piece in pieces]
    if len(pieces) == 1 and places == {None}:
        groups, jax, given, part = equations[0]
        return _Entry((pieces[0].tensor,), name, Axes(groups, jax, given), part)
    if len({(groups, jax, given) for groups, jax, given, _ in equations}) > 1 or None in places or len(places) > 1:
        raise Unwritten(f"{name} is made of tensors of several shapes or orders")
    groups, jax, given, part = equations[0]
    ((axis, is_index),) = places  # type: ignore[misc]
    if part is not None:
        raise Unwritten(f"{name} is made of parts of several tensors")
    if is_index:
        jax = (*jax[:axis], (EACH,), *jax[axis:])
    else:
        if len({piece.axes for piece in pieces}) > 1 and len({piece.places().shape for piece in pieces}) > 1:
            raise Unwritten(f"{name} is made of tensors of several sizes")
        given = (*given, (EACH, len(pieces)))
        jax = (*jax[:axis], (EACH, *(letter for letter in jax[axis] if letter != "1")), *jax[axis + 1 :])
    return _Entry(tuple(piece.tensor for piece in pieces), name, Axes(((EACH,), *groups), jax, given))


def _place(piece: Piece, shape: tuple[int, ...]) -> tuple[int, bool] | None:
    """Returns along which axis of a leaf a piece is a part, and whether it has that axis no more."""
    found = [axis for axis, each in enumerate(piece.index) if each != slice(None)]
    if not found:
        return None
    if len(found) > 1:
        raise Unwritten(f"{piece.leaf} is divided along two axes")
    return found[0], isinstance(piece.index[found[0]], int)


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _digits(piece: Piece, tensors: Elements) -> tuple[tuple[Digit, ...], ...]:
    """Returns the merged axes of each axis of a piece, none of which is in two of the tensor's axes."""
    bounds = _strides(tensors.shapes[piece.tensor])
    found = []
    for digits in piece.axes:
        split: list[Digit] = []
        for size, stride in digits:
            inside = sorted({bound for bound in bounds if stride < bound < size * stride}, reverse=True)
            for bound in inside:
                if bound % stride or (size * stride) % bound:
                    raise Unwritten(f"{piece.leaf} divides the axes of {piece.tensor}")
                split.append((size * stride // bound, bound))
                size = bound // stride
            split.append((size, stride))
        found.append(tuple(split))
    return tuple(found)


Equation = tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...], tuple[tuple[str, int], ...], int | None]


def _letters(piece: Piece, tensors: Elements) -> dict[Digit, str]:
    digits = sorted({digit for several in _digits(piece, tensors) for digit in several}, key=lambda each: -each[1])
    if any(stride <= 0 for _, stride in digits):
        raise Unwritten(f"{piece.leaf} repeats or reverses elements of {piece.tensor}")
    return dict(zip(digits, LETTERS, strict=False))


def _sizes(piece: Piece, tensors: Elements) -> dict[str, int]:
    return {letter: size for (size, _), letter in _letters(piece, tensors).items()}


def _equation(piece: Piece, tensors: Elements) -> Equation:
    """Returns the axes of a tensor, those of a piece, sizes that these don't give, and which of the parts that are
    fused in the tensor it is."""
    shape, letters = tensors.shapes[piece.tensor], _letters(piece, tensors)
    own = _digits(piece, tensors)
    groups, part = list[tuple[str, ...]](), None
    left = dict(letters)
    for size, stride in zip(shape, _strides(shape), strict=True):
        inner, names = stride, list[str]()
        inside = sorted((digit for digit in letters if stride <= digit[1] < stride * size), key=lambda each: each[1])
        for digit in [*inside, (1, stride * size)]:
            if digit[1] != inner:
                if part is not None or digit[1] % inner:
                    raise Unwritten(f"{piece.leaf} is a part of {piece.tensor} along two axes")
                count = digit[1] // inner
                part = piece.base // inner % count
                names.append(str(count))
            if digit in letters and size > 1:
                names.append(letters[digit])
                left.pop(digit, None)
            inner = digit[1] * digit[0]
        groups.append(tuple(names[::-1]) or ("1",))
    jax = tuple(tuple(letters[digit] for digit in digits) or ("1",) for digits in own)
    flat = [letter for group in jax for letter in group if letter != "1"]
    if left or len(set(flat)) < len(flat):
        raise Unwritten(f"{piece.leaf} doesn't have the axes of {piece.tensor}")
    sizes = _sizes(piece, tensors)
    given = tuple((letter, sizes[letter]) for group in jax for letter in group[:-1] if letter != "1")
    return tuple(groups), jax, given, part


def form_of(piece: Piece, tensors: Elements) -> str:
    """Returns the axes of a piece as text, and which part of the tensor it is."""
    try:
        groups, jax, _, part = _equation(piece, tensors)
    except Unwritten:
        return "no axes"
    return f"{Axes(groups, jax)}{'' if part is None else f', part {part + 1}'}"


# --- one tensor


def _by_tensor(entries: Sequence[_Entry]) -> dict[tuple[str, ...], list[_Entry]]:
    found: dict[tuple[str, ...], list[_Entry]] = {}
    for entry in entries:
        found.setdefault(entry.tensors, []).append(entry)
    return found


def _parameters(
    names: tuple[str, ...], entries: Sequence[_Entry], copies: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, ParameterName]]:
    """Yields the entries of a tensor, or of tensors that make a leaf together, by their names."""
    theirs = names[0] if len(names) == 1 else braced(names)
    others = copies.get(names[0], ()) if len(names) == 1 else ()
    if entries[0].part is not None:
        ordered = sorted(entries, key=lambda entry: entry.part or 0)
        count = int(ordered[0].axes.fused or 0)
        if [entry.part for entry in ordered] != list(range(count)) or len({entry.axes for entry in ordered}) > 1:
            raise Unwritten(f"{theirs} is fused of parts of several sizes or orders, or some have no leaf")
        yield theirs, ParameterName(braced([entry.leaf for entry in ordered]), ordered[0].axes, others)
        return
    if len(entries) == 1:
        yield theirs, ParameterName(entries[0].leaf, _shortest(entries[0].axes), others)
        return
    if len({entry.axes for entry in entries}) == 1:
        yield theirs, ParameterName(braced([entry.leaf for entry in entries]), _shortest(entries[0].axes), others)
        return
    every = (theirs, *others)
    if len(every) < len(entries):
        raise Unwritten(f"{theirs} is several leaves with other axes each")
    for name, entry in zip(every, entries, strict=False):
        left = every[len(entries) :] if name == theirs else ()
        yield name, ParameterName(entry.leaf, _shortest(entry.axes), left)


def _shortest(axes: Axes) -> Axes | None:
    """Returns None for axes that are the same."""
    return None if axes.torch == axes.jax else axes


def braced(names: Sequence[str]) -> str:
    """Returns names as one, `layers.0.{query,key}.weight`."""
    if len(names) == 1:
        return names[0]
    start = _alike(names)
    start = max(names[0][:start].rfind(sign) for sign in "./") + 1
    ends = [name[start:] for name in names]
    end = _alike([each[::-1] for each in ends])
    tail = ends[0][len(ends[0]) - end :] if end else ""
    cuts = [tail.find(sign) for sign in "./[" if sign in tail]
    tail = tail[min(cuts) :] if cuts else ""
    middle = [each[: len(each) - len(tail)] for each in ends]
    if any("," in each or "{" in each for each in middle) or len(set(middle)) < len(middle):
        raise Unwritten(f"{', '.join(names)} aren't written as one")
    return f"{names[0][:start]}{{{','.join(middle)}}}{tail}"


def _alike(texts: Sequence[str]) -> int:
    """Returns with how many equal letters texts begin."""
    return sum(1 for _ in itertools.takewhile(lambda letters: len({*letters}) == 1, zip(*texts, strict=False)))
