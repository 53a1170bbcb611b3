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


def given_map(given: NameMap | Converter, leaves: Weights, tensors: Weights) -> FoundMap:
    """Returns a map that is given, element by element: the elements' numbers are carried through it.

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
    if isinstance(given, NameMap):
        ignored = {*given.ignores(numbered)}
        kept = {name: array for name, array in numbered.items() if name not in ignored}
        found = {name: np.asarray(each) for name, each in _carried(given, kept, leaves).items()}
    else:
        found = _converted(given, numbered, leaves)
    partners = {name: _places(array, name, total) for name, array in found.items()}
    return FoundMap(
        map=given if isinstance(given, NameMap) else None,
        partners=partners,
        tensors=tensors.shapes,
        verdict="not proven",
        copies=tensors.copies,
    )


def _carried(names: NameMap, numbered: Mapping[str, np.ndarray], leaves: Weights) -> Mapping[str, Any]:
    return leaves_from_tensors(names.rules(), dict(numbered), dict(leaves.shapes), "map")


def _converted(converter: Converter, numbered: dict[str, np.ndarray], leaves: Weights) -> dict[str, np.ndarray]:
    try:
        tree = converter(numbered)
    except Exception as error:  # the user's own code may raise anything
        raise PortingError(f"the converter raised {type(error).__name__}: {error}") from error
    found = flattened(tree)[0]
    shapes = {name: np.shape(array) for name, array in found.items()}
    different = [name for name in {**leaves.shapes, **shapes} if shapes.get(name) != leaves.shapes.get(name)]
    if different:
        name = different[0]
        expected, received = (list(each[name]) if name in each else "nothing" for each in (leaves.shapes, shapes))
        raise PortingError(f"the converter: expected {name} {expected}; received {received} ({len(different)} differ)")
    return {name: found[name] for name in leaves.shapes}


def _places(array: np.ndarray, name: str, total: int) -> np.ndarray:
    """Returns the numbers of the elements that a leaf consists of."""
    places = np.asarray(array, np.float64)
    if not np.array_equal(places, np.round(places)) or places.min(initial=0) < 0 or places.max(initial=0) >= total:
        raise PortingError(f"the converter computes {name}; a proof follows weights that are moved alone")
    return places.astype(np.int64)
