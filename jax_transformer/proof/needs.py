"""Find the elements of results that a program's outputs depend on at a point: not those at pads, or in empty slots of a
cache, which programs of other shapes fill differently."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jax_transformer.proof.programs import Operation, Program

Needs = dict[int, np.ndarray]
"""Operations → which elements of their results are needed, as booleans."""


def needed(
    program: Program, outputs: Iterable[int], zeros: Mapping[int, np.ndarray], *, of_choices: bool = True
) -> Needs:
    """Returns the elements that outputs depend on. A factor isn't needed where the other factor is zero.

    Args:
      outputs: the operations of outputs, all of whose elements are needed.
      zeros: masks of the zero elements of each result.
      of_choices: whether values that a condition on weights chooses are needed, if they may be undefined elsewhere.
    """
    operations = program.operations
    needs: Needs = {node: np.ones(operations[node].shape, bool) for node in outputs}
    for node in reversed(range(len(operations))):
        one, own = operations[node], needs.get(node)
        if own is None:
            continue
        input_needs = _needed_inputs(
            one, own, [operations[each].shape for each in one.inputs], [zeros[each] for each in one.inputs]
        )
        if one.name == "chosen":
            found, condition, *cases = input_needs
            input_needs = [found & of_choices, condition, *(np.zeros_like(each) for each in cases)]
        for each, need in zip(one.inputs, input_needs, strict=True):
            needs[each] = needs[each] | need if each in needs else need
    return needs


def _needed_inputs(
    one: Operation, own: np.ndarray, shapes: Sequence[tuple[int, ...]], zeros: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns the elements of an operation's inputs that its own needed ones depend on."""
    attributes = one.attributes
    if one.name == "reshape":
        return [own.reshape(shapes[0])]
    if one.name == "transpose":
        return [own.transpose(np.argsort(attributes["order"]))]
    if one.name == "broadcast":
        return [_unbroadcast(own, shapes[0])]
    if one.name == "take":
        return [_at(attributes["places"].ravel()[own.ravel()], shapes[0])]
    if one.name == "concatenate":
        axis = attributes["axis"]
        return np.split(own, np.cumsum([shape[axis] for shape in shapes])[:-1], axis)
    if one.name == "where":
        condition = np.broadcast_to(np.asarray(attributes["condition"], bool), own.shape)
        return [own & condition, own & ~condition]
    if one.name == "put":
        return _needed_by_put(own, attributes["places"], attributes["adds"], shapes)
    if one.name == "multiply":
        return [own & ~zeros[1], own & ~zeros[0]]
    if one.name == "matmul":
        return _needed_by_matmul(own, zeros)
    if one.name in ("sum", "largest"):
        whole = np.broadcast_to(np.expand_dims(own, attributes["axes"]), shapes[0])
        counts = attributes.get("shown", attributes.get("counts"))
        return [whole if counts is None else whole & counts]
    if one.name == "cumulative_sum":
        axis = attributes["axis"]
        return [np.flip(np.logical_or.accumulate(np.flip(own, axis), axis), axis)]
    if one.name == "row_mean":
        whole = np.broadcast_to(own, shapes[0])
        return [whole & attributes["counts"] if "counts" in attributes else whole]
    if one.name == "row_exp":
        kept = own & attributes["counts"] if "counts" in attributes else own
        return [kept, np.asarray(kept.any(axis=attributes["axis"], keepdims=True))]
    if one.name == "places":
        return [np.broadcast_to(own.any(axis=-2).any(axis=-1, keepdims=True), shapes[0])]
    return [_unbroadcast(own, shape) for shape in shapes]  # elementwise


def _unbroadcast(own: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns a mask of the repeated elements, from one of the needed results."""
    if own.shape == shape:
        return own
    own = np.asarray(own.any(axis=tuple(range(own.ndim - len(shape)))))
    axes = tuple(axis for axis, (small, large) in enumerate(zip(shape, own.shape, strict=True)) if small < large)
    return np.asarray(own.any(axis=axes, keepdims=True))


def _at(places: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    found = np.zeros(math.prod(shape), bool)
    found[places[places >= 0]] = True
    return found.reshape(shape)


def _needed_by_put(
    own: np.ndarray, places: np.ndarray, adds: bool, shapes: Sequence[tuple[int, ...]]
) -> list[np.ndarray]:
    flat, written = own.ravel(), places >= 0
    kept = flat.copy()
    if not adds:
        kept[places[written]] = False
    updates = written & flat[np.where(written, places, 0)] if flat.size else np.zeros(places.shape, bool)
    return [kept.reshape(shapes[0]), updates.reshape(shapes[1])]


def _needed_by_matmul(own: np.ndarray, zeros: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the needed elements of x [B, M, K] and y [B, K, N]."""
    x, y = (~each for each in zeros)
    left = np.matmul(own.astype(np.float32), np.swapaxes(y, -1, -2).astype(np.float32)) > 0
    right = np.matmul(np.swapaxes(x, -1, -2).astype(np.float32), own.astype(np.float32)) > 0
    return [_unbroadcast(left, zeros[0].shape), _unbroadcast(right, zeros[1].shape)]
