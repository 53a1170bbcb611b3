"""Carries weights through a map: a program as a function of the other side's weights, and what is known of the map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_transformer.matching.finding import FoundMap
from jax_transformer.matching.programs import PureProgram
from jax_transformer.matching.sides import flattened


def facts_of(
    found: FoundMap, name: str, constants: Sequence[str] = (), *, is_given: bool = False
) -> dict[str, tuple[str, ...]]:
    """Returns what is known of a map: how much of it was found, and what is unlike its siblings.

    Args:
      name: that of the program whose weights are carried over.
      constants: tensors that were taken as constants.
    """
    whole = sum(1 for each in found.partners.values() if (each >= 0).all())
    count = f"{whole} of {len(found.partners)} weights of {name} have a partner"
    facts = {
        "given" if is_given else "found": (count,),
        "without a partner": found.unmapped,
        "irregular": found.irregular,
        "another name than its siblings": found.renamed,
        "by name alone": found.by_name,
        "either of two": found.alternatives,
        "read in part by these inputs": found.completed,
        "in an order that no axes give": found.disordered,
        "taken as constants, which aren't trained": constants,
    }
    return {what: tuple(several) for what, several in facts.items() if several}


def through(program: PureProgram, found: FoundMap) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Any]:
    """Returns a program as a function of the other side's weights, which it reads in the types of its own."""
    leaves, rebuilt = flattened(program.params)
    sources = {name: _sources(places, found.tensors) for name, places in found.partners.items()}

    def leaf(name: str, weights: Mapping[str, Any]) -> Any:
        tensors, places = sources[name]
        if not tensors:  # which the program doesn't read
            return jnp.zeros(places.shape, leaves[name].dtype)
        return jnp.concatenate([jnp.ravel(weights[tensor]) for tensor in tensors])[places].astype(leaves[name].dtype)

    def function(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        return program.function(rebuilt({name: leaf(name, weights) for name in found.partners}), inputs)

    return function


def _sources(places: np.ndarray, tensors: Mapping[str, tuple[int, ...]]) -> tuple[list[str], np.ndarray]:
    """Returns the tensors that hold elements, and where each is among those of these tensors.

    Args:
      places: of the elements among those of all tensors; −1 for none.
    """
    used, own, first, start = list[str](), np.zeros_like(places), 0, 0
    for name, shape in tensors.items():
        size = int(np.prod(shape))
        is_inside = (places >= first) & (places < first + size)
        if is_inside.any():
            own = np.where(is_inside, places - first + start, own)
            used.append(name)
            start += size
        first += size
    return used, own


def summed(found: FoundMap, gradients: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns gradients by the reference's tensors: each is the sum of those of all leaves that it is."""
    row = np.zeros(sum(int(np.prod(shape)) for shape in found.tensors.values()))
    for name, gradient in gradients.items():
        places = found.partners[name]
        known = places >= 0
        np.add.at(row, places[known], gradient[known])
    carried, start = dict[str, np.ndarray](), 0
    for name, shape in found.tensors.items():
        size = int(np.prod(shape))
        carried[name] = row[start : start + size].reshape(shape)
        start += size
    return carried
