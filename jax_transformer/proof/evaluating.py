"""Evaluate a program on given weights, in a domain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from jax_transformer.proof.domains import Domain, Undefined
from jax_transformer.proof.fields import NoInverse
from jax_transformer.proof.programs import ARITHMETIC, FUNCTIONS, Operation, Program


def evaluate(
    program: Program,
    domain: Domain,
    inputs: Mapping[str, np.ndarray],
    watch: Callable[[int, np.ndarray], None] = lambda node, array: None,
) -> dict[str, np.ndarray]:
    """Returns the program's outputs by name; values that are no floats or depend on no weight are returned unchanged.

    Args:
      inputs: the weights by name, in any dtype that holds them.
      watch: called with each operation's number and result.

    Raises:
      NoInverse: a divisor is zero; its message names the operation.
    """
    last = _last_uses(program)
    held: dict[int, np.ndarray] = {}
    for node, one in enumerate(program.operations):
        try:
            held[node] = compute(one, [held[each] for each in one.inputs], domain, inputs)
        except (NoInverse, Undefined) as error:
            raise type(error)(f"{one.name} {list(one.shape)}{f' ({one.line})' if one.line else ''}: {error}") from None
        watch(node, held[node])
        for done in last.get(node, ()):
            del held[done]
    return {
        name: held[value.node] if value.node is not None else _known(value.known)
        for name, value in program.outputs.items()
    }


def compute(one: Operation, inputs: list[np.ndarray], domain: Domain, weights: Mapping[str, np.ndarray]) -> np.ndarray:
    attributes = one.attributes
    if one.name == "input":
        return np.asarray(weights[attributes["name"]], domain.dtype)
    if one.name == "constant":
        return domain.constant(**attributes)
    if one.name in ARITHMETIC or one.name in FUNCTIONS:
        return domain.apply(one.name, inputs, attributes)
    return _move(one, inputs, domain)


def _move(one: Operation, inputs: list[np.ndarray], domain: Domain) -> np.ndarray:
    x, attributes = inputs[0], one.attributes
    if one.name == "reshape":
        return x.reshape(one.shape)
    if one.name == "transpose":
        return x.transpose(attributes["order"])
    if one.name == "broadcast":
        return np.broadcast_to(x, one.shape)
    if one.name == "take":
        places = attributes["places"]
        taken = np.ravel(x)[places] if x.size else np.zeros(places.shape, x.dtype)
        return np.where(places < 0, domain.dtype(0), taken) if (places < 0).any() else taken
    if one.name == "concatenate":
        return np.concatenate(inputs, attributes["axis"])
    if one.name == "where":
        return np.where(attributes["condition"], x, inputs[1])
    assert one.name == "put"
    return _put(x, inputs[1], attributes["places"], attributes["adds"], domain)


def _put(x: np.ndarray, updates: np.ndarray, places: np.ndarray, adds: bool, domain: Domain) -> np.ndarray:
    """Adds colliding updates one by one, so that a domain's own addition is used."""
    flat, kept = np.array(x).ravel(), places >= 0
    places, new = places[kept], np.ravel(updates)[kept]
    if not adds:
        flat[places] = new
        return flat.reshape(x.shape)
    while places.size:
        first = np.unique(places, return_index=True)[1]
        flat[places[first]] = domain.apply("add", [flat[places[first]], new[first]], {})
        left = np.ones(places.size, bool)
        left[first] = False
        places, new = places[left], new[left]
    return flat.reshape(x.shape)


def _last_uses(program: Program) -> dict[int, list[int]]:
    """Returns the results that aren't needed after each operation."""
    last = {node: node for node in range(len(program.operations))}
    for node, one in enumerate(program.operations):
        for each in one.inputs:
            last[each] = node
    kept = {value.node for value in program.outputs.values()}
    uses: dict[int, list[int]] = {}
    for node, user in last.items():
        if node not in kept:
            uses.setdefault(user, []).append(node)
    return uses


def _known(array: np.ndarray | None) -> np.ndarray:
    assert array is not None
    return array


def lines(program: Program) -> Iterator[str]:
    """Yields a program as text, an operation on each line."""
    for node, one in enumerate(program.operations):
        inputs = ", ".join(f"%{each}" for each in one.inputs)
        yield f"%{node} = {one.name}({inputs}) {list(one.shape)}  # {one.line}"
