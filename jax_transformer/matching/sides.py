"""Reads two programs for the search of a map: a PyTorch module, or a function of a tree of weights and of inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from jax_transformer.comparison.capture import OWN
from jax_transformer.comparison.lowering import AnyProgram, Selection, weights_of
from jax_transformer.comparison.sides import name_of
from jax_transformer.comparison.ties import Leaf
from jax_transformer.proof.programs import Program, UnknownOperation
from jax_transformer.storage.tensors import PortingError


@dataclass(frozen=True)
class LoweredSide:
    """A program, lowered, and its weights by name."""

    name: str
    program: Program
    shapes: Mapping[str, tuple[int, ...]]
    """Weights, those that are one tensor under the first of its names."""
    copies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Weights → other names of the same tensor."""

    @property
    def data(self) -> dict[str, tuple[int, ...]]:
        """Returns the floating-point inputs."""
        return {name: shape for name, shape in self.program.inputs.items() if name not in self.shapes}


@dataclass(frozen=True)
class Weights:
    """Weights of a program by name, those that are one tensor under the first of its names."""

    shapes: Mapping[str, tuple[int, ...]]
    copies: Mapping[str, tuple[str, ...]]
    """Weights → other names of the same tensor."""


def lowered(
    program: Any, params: Any, inputs: Mapping[str, np.ndarray], constants: Collection[str] = ()
) -> LoweredSide:
    """Lowers a side.

    Args:
      constants: tensors of a module that are no weights, but constants of the numbers that they have.

    Raises:
      PortingError: a module with further parameters, or a function without any; weights share memory in parts.
      UnknownOperation: an operation has no rule.
    """
    side, leaves, weights = _side(program, params, inputs, constants)
    found = side.lower(leaves, weights.shapes, Selection(None, False))
    if OWN in found.unknown:
        raise found.unknown[OWN]
    return LoweredSide(side.name, found, weights.shapes, weights.copies)


def weights_by_name(program: Any, params: Any) -> Weights:
    """Returns the weights of a side. Raises as `lowered` does."""
    return _side(program, params, {})[2]


def _side(
    program: Any, params: Any, inputs: Mapping[str, np.ndarray], constants: Collection[str] = ()
) -> tuple[AnyProgram, dict[str, Leaf], Weights]:
    is_module = hasattr(program, "state_dict")
    if is_module != (params is None):
        what = "no parameters apart from those of the PyTorch module" if is_module else "the function's parameters"
        raise PortingError(f"{name_of(program)}: expected {what}")
    weights: Mapping[str, np.ndarray]
    if is_module:
        held = {name: array for name, array in weights_of(program, None).items() if name not in constants}
        side = AnyProgram(name_of(program), program, inputs, held)
    else:
        weights, rebuilt = flattened(params)
        called = _with_tree(program, rebuilt)
        side = AnyProgram(name_of(program), called, inputs, weights)
    first: dict[int, str] = {}
    leaves: dict[str, Leaf] = {}
    copies: dict[str, tuple[str, ...]] = {}
    shared = side.shared_memory()
    for name in side.weights:
        lies = shared.get(name)
        if lies is not None and lies.places is not None:
            raise UnknownOperation("tie", "", f"{name} shares a part of its memory with another weight")
        variable = name if lies is None else first.setdefault(lies.block, name)
        leaves[name] = Leaf(variable)
        if variable != name:
            copies[variable] = (*copies.get(variable, ()), name)
    shapes = {name: tuple(np.shape(side.weights[name])) for name, leaf in leaves.items() if leaf.variable == name}
    return side, leaves, Weights(shapes, copies)


def flattened(params: Any) -> tuple[dict[str, np.ndarray], Callable[[Mapping[str, Any]], Any]]:
    """Returns the leaves of a tree by path, `decoder/layers/kernel`, and a function that makes the tree of leaves."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    names = ["/".join(filter(None, map(_word, path))) for path, _ in leaves]
    arrays = {name: np.asarray(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}

    def rebuilt(given: Mapping[str, Any]) -> Any:
        return jax.tree_util.tree_unflatten(structure, [given[name] for name in names])

    return arrays, rebuilt


def _word(key: Any) -> str:
    """Returns a step of a path as text: the value of an NNX variable has none."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            word = str(getattr(key, attribute))
            return "" if attribute == "name" and word == "value" else word
    return str(key)


def _with_tree(program: Callable[..., Any], rebuilt: Callable[[Mapping[str, Any]], Any]) -> Callable[..., Any]:
    def called(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        result = program(rebuilt(weights), inputs)
        return result[0] if isinstance(result, tuple) else result

    return called


def without_others(side: LoweredSide) -> LoweredSide:
    """Returns the side with its output alone."""
    return replace(side, program=side.program.restricted([OWN]))


def is_filled(tensor: Any) -> bool:
    """Returns whether a tensor holds one number throughout. Then it is no table that the other program computes, but a
    weight or a statistic that a checkpoint changes: taken as constants, zeros and ones would make programs equal."""
    numbers = tensor.reshape(-1)
    return bool((numbers == numbers[:1]).all())
