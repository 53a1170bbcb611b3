"""Reads a map that is given: a map of names, or the function that a port loads checkpoints with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jax_transformer.mapping.maps import NameMap
from jax_transformer.mapping.rules import leaves_from_tensors
from jax_transformer.matching.finding import FoundMap
from jax_transformer.matching.sides import Weights, flattened
from jax_transformer.storage.tensors import PortingError

Converter = Callable[[dict[str, np.ndarray]], Any]
"""Takes tensors by name, and returns a tree of weights."""
EXACT = 2**24
"""Whole numbers up to this are floats of 32 bits."""


def given_map(given: NameMap | Converter, leaves: Weights, tensors: Weights) -> tuple[FoundMap, Any]:
    """Returns a map that is given, element by element, and the tree that a function makes, which may have more leaves
    than the program's own; None for a map of names. The numbers of elements are carried through the map. What a
    function makes of other numbers, of both signs and all sizes, has to be what it moved then.

    Args:
      given: a map of names, or a function from tensors by name to a tree of the leaves. The function may rename,
        reshape, transpose, split and join; weights that it computes can't be followed.
      leaves: the weights that the map makes.
      tensors: those that it reads.

    Raises:
      PortingError: the map doesn't fit; the function raises, makes other leaves, or computes some.
    """
    total = sum(math.prod(shape) for shape in tensors.shapes.values())
    numbers = np.arange(total, dtype=np.float32 if total < EXACT else np.float64)
    numbered, tree = _numbered(tensors, numbers), None
    if isinstance(given, NameMap):
        ignored = {*given.ignores(numbered)}
        kept = {name: array for name, array in numbered.items() if name not in ignored}
        found = {name: np.asarray(each) for name, each in _carried(given, kept, leaves).items()}
    else:
        tree = _converted(given, numbered)
        found = flattened(tree)[0]
        _check_leaves(found, leaves)
        drawn = _drawn(total)
        again = flattened(_converted(given, _numbered(tensors, drawn)))[0]
        for name, array in found.items():
            _check_moved(array, again.get(name), name, drawn)
    partners = {name: np.asarray(array).astype(np.int64) for name, array in found.items()}
    found_map = FoundMap(
        map=given if isinstance(given, NameMap) else None,
        partners=partners,
        tensors=tensors.shapes,
        verdict="not proven",
        copies=tensors.copies,
    )
    return found_map, tree


def _numbered(tensors: Weights, numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Returns tensors, under all of their names, whose elements have these numbers in order."""
    found, start = dict[str, np.ndarray](), 0
    for name, shape in tensors.shapes.items():
        array = numbers[start : start + math.prod(shape)].reshape(shape)
        found |= {each: array.copy() for each in (name, *tensors.copies.get(name, ()))}
        start += math.prod(shape)
    return found


def _carried(names: NameMap, numbered: Mapping[str, np.ndarray], leaves: Weights) -> Mapping[str, Any]:
    return leaves_from_tensors(names.rules(), dict(numbered), dict(leaves.shapes), "map")


def _converted(converter: Converter, numbered: dict[str, np.ndarray]) -> Any:
    try:
        return converter(numbered)
    except Exception as error:  # the user's own code may raise anything
        raise PortingError(f"the converter raised {type(error).__name__}: {error}") from error


def _check_leaves(found: Mapping[str, np.ndarray], leaves: Weights) -> None:
    """Raises PortingError unless a converter makes all leaves of a program, in their shapes."""
    shapes = {name: np.shape(array) for name, array in found.items()}
    different = [name for name, shape in leaves.shapes.items() if shapes.get(name) != shape]
    if different:
        name = different[0]
        expected, received = list(leaves.shapes[name]), list(shapes[name]) if name in shapes else "nothing"
        raise PortingError(f"the converter: expected {name} {expected}; received {received} ({len(different)} differ)")


def _drawn(total: int) -> np.ndarray:
    """Returns numbers of 32 bits, of both signs and all sizes, that rounding to fewer bits changes."""
    key = np.random.default_rng(0)
    return (key.choice([-1.0, 1.0], total) * 10.0 ** key.uniform(-30, 30, total)).astype(np.float32)


def _check_moved(array: np.ndarray, again: np.ndarray | None, name: str, drawn: np.ndarray) -> None:
    """Raises PortingError unless a leaf consists of elements, those that it has of drawn numbers, too."""
    places, others = (np.asarray(each, np.float64) for each in (array, np.nan if again is None else again))
    is_inside = (places >= 0) & (places < drawn.size) & (places == np.round(places))
    if not (is_inside.all() and np.array_equal(others, drawn[places.astype(np.int64)])):
        raise PortingError(f"the converter computes {name}, or narrows it; a proof follows weights that are only moved")
