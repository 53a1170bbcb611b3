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
    than the program's own; None for a map of names. The numbers of elements are carried through the map.

    Args:
      given: a map of names, or a function from tensors by name to a tree of the leaves. The function may rename,
        reshape, transpose, split and join; weights that it computes can't be followed.
      leaves: the weights that the map makes.
      tensors: those that it reads.

    Raises:
      PortingError: the map doesn't fit; the function raises, makes other leaves, or computes some.
    """
    numbered, start = dict[str, np.ndarray](), 0
    total = sum(math.prod(shape) for shape in tensors.shapes.values())
    dtype = np.float32 if total < EXACT else np.float64
    for name, shape in tensors.shapes.items():
        size = math.prod(shape)
        numbered |= dict.fromkeys((name, *tensors.copies.get(name, ())), np.arange(start, start + size, dtype=dtype))
        numbered |= {each: numbered[each].reshape(shape) for each in (name, *tensors.copies.get(name, ()))}
        start += size
    tree = None
    if isinstance(given, NameMap):
        ignored = {*given.ignores(numbered)}
        kept = {name: array for name, array in numbered.items() if name not in ignored}
        found = {name: np.asarray(each) for name, each in _carried(given, kept, leaves).items()}
    else:
        tree = _converted(given, numbered)
        found = flattened(tree)[0]
        _check_leaves(found, leaves)
    partners = {name: _places(array, name, total) for name, array in found.items()}
    found_map = FoundMap(
        map=given if isinstance(given, NameMap) else None,
        partners=partners,
        tensors=tensors.shapes,
        verdict="not proven",
        copies=tensors.copies,
    )
    return found_map, tree


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


def _places(array: np.ndarray, name: str, total: int) -> np.ndarray:
    """Returns the numbers of the elements that a leaf consists of."""
    places = np.asarray(array, np.float64)
    if not np.array_equal(places, np.round(places)) or places.min(initial=0) < 0 or places.max(initial=0) >= total:
        raise PortingError(f"the converter computes {name}; a proof follows weights that are moved alone")
    return places.astype(np.int64)
