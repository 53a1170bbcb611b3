"""Rules of JAX's primitives for places that depend on weights, and for finding them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from jax_transformer.proof import choices
from jax_transformer.proof.building import Builder
from jax_transformer.proof.jax_rules import Rule, scattered
from jax_transformer.proof.jaxprs import array_of, on_one_device
from jax_transformer.proof.programs import UnknownOperation, Value

ELEMENTWISE = frozenset((
    "add", "sub", "mul", "neg", "min", "max", "clamp", "rem", "div", "sign", "abs", "lt", "le", "gt", "ge", "eq", "ne",
    "and", "or", "not", "select_n",
))  # fmt: skip
MOVES = frozenset((
    "reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", "slice", "rev", "tile", "copy",
))  # fmt: skip
FINDING: dict[str, Rule] = {}
"""Primitives that find places."""


def finding(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            FINDING[name] = function
        return function

    return register


@finding("top_k")
def top_k(b: Builder, x: Value, *, k: int, **params: Any) -> list[Value]:
    return list(choices.ordered(b, x, params.get("axis", params.get("operand_axis", -1)), range(k), "top_k"))


@finding("argmax", "argmin")
def argmax(b: Builder, x: Value, *, axes: Sequence[int], **params: Any) -> Value:
    return _extreme(b, x, axes, 0)


def _extreme(b: Builder, x: Value, axes: Sequence[int], rank: int) -> Value:
    (axis,) = axes
    name = "argmin" if rank else "argmax"
    index = choices.ordered(b, x, axis, (rank,), name)[1]
    return b.reshape(index, [size for each, size in enumerate(index.shape) if each != axis])


FINDING["argmin"] = lambda b, x, *, axes, **params: _extreme(b, x, axes, x.shape[axes[0]] - 1)


@finding("sort")
def sort(b: Builder, x: Value, *others: Value, dimension: int, num_keys: int, **params: Any) -> list[Value]:
    """Sorts in ascending order. Further operands are moved in the same way."""
    length = x.shape[dimension]
    if num_keys != 1:
        raise UnknownOperation("sort", b.line, f"{num_keys} keys")
    values, index = choices.ordered(b, x, dimension, range(length)[::-1], "sort")
    flat, grid = np.arange(x.size).reshape(x.shape), list(np.indices(x.shape))

    def places_of(known: np.ndarray) -> np.ndarray:
        return flat[(*grid[:dimension], known, *grid[dimension + 1 :])]

    found = [values]
    for other in others:
        if other.kind == "float":
            found.append(choices.looked_up(b, other, index, places_of, range(len(x.shape))))
        elif other.known is not None and other.kind == "int":
            known = np.asarray(other.known).ravel()
            found.append(choices.computed(b, lambda each, known=known: known[_at(each, places_of)], [index]))
        else:
            raise UnknownOperation("sort", b.line, choices.DEPENDS)
    return found


def _at(tables: np.ndarray, places_of: choices.PlacesOf) -> np.ndarray:
    return np.stack([places_of(tables[..., each]) for each in range(tables.shape[-1])], -1)


def apply(b: Builder, name: str, equation: Any, inputs: Sequence[Value]) -> Value:
    """Lowers an equation that reads places that depend on weights."""
    params = on_one_device(equation.params)

    def bind(*arrays: np.ndarray) -> np.ndarray:
        typed = [np.asarray(each).astype(of.aval.dtype) for each, of in zip(arrays, equation.invars, strict=True)]
        return array_of(equation.primitive.bind(*typed, **params))

    if name in ELEMENTWISE:
        return choices.computed(b, bind, inputs)
    if name in MOVES:
        with jax.enable_x64(True):
            return b.moved_choices(inputs[0], lambda array: np.asarray(equation.primitive.bind(array, **params)))
    if name in ("stop_gradient", "copy_p", "optimization_barrier"):
        return inputs[0]
    if name == "convert_element_type":
        return _converted(b, inputs[0], params["new_dtype"])
    if name == "concatenate":
        return choices.joined(b, inputs, params["dimension"])
    if name == "gather" and inputs[0].table is None:
        return _gathered(b, equation, params, *inputs)
    if name == "dynamic_slice" and inputs[0].table is None:
        return _sliced(b, equation, params, *inputs)
    if name == "dynamic_update_slice" and inputs[0].table is None and inputs[1].table is None:
        return _updated(b, equation, *inputs)
    if name in ("scatter", "scatter-add", "scatter_add") and inputs[0].table is None and inputs[2].table is None:
        return _scattered(b, name, params, *inputs)
    raise UnknownOperation(name, b.line, choices.DEPENDS)


def _converted(b: Builder, x: Value, dtype: Any) -> Value:
    if jax.dtypes.issubdtype(dtype, np.floating):
        return b.as_float(x)
    return choices.computed(b, lambda array: array.astype(dtype), [x])


def _which(b: Builder, indices: Value) -> tuple[Value, Callable[[np.ndarray], np.ndarray]]:
    """Returns the only component of each index that depends on weights, and a function from known values to indices."""
    table = indices.table
    assert table is not None
    varies = (table != table[..., :1]).any(-1)
    if not (varies.sum(-1) == 1).all():
        raise UnknownOperation("index", b.line, "an index has several parts that depend on weights")
    component = varies.argmax(-1)[..., None]
    index = _part(b, indices, component) or b.moved_choices(
        indices, lambda array: np.take_along_axis(array, component, -1)[..., 0]
    )

    def whole(known: np.ndarray) -> np.ndarray:
        return np.where(varies, known[..., None], table[..., 0])

    return index, whole


def _part(b: Builder, indices: Value, component: np.ndarray) -> Value | None:
    """Returns the component of indices that were concatenated, from the part that has it; None if several have."""
    parts, axis = b.joined.get(indices.node or 0, ((), 0))
    place, is_last = int(component.flat[0]), axis == len(indices.shape) - 1
    if not (component == place).all() or not is_last:
        return None
    for part in parts:
        if place < part.shape[axis]:
            return b.moved_choices(part, partial(np.take, indices=place, axis=-1))
        place -= part.shape[axis]
    return None


def _gathered(b: Builder, equation: Any, params: Any, source: Value, indices: Value) -> Value:
    index, whole = _which(b, indices)
    flat = np.arange(source.size, dtype=np.int64).reshape(source.shape)
    params = {**params, "fill_value": -1, "mode": jax.lax.GatherScatterMode.FILL_OR_DROP}

    def places_of(known: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(equation.primitive.bind(flat, whole(known), **params))

    rank = len(equation.outvars[0].aval.shape)
    axes = [axis for axis in range(rank) if axis not in params["dimension_numbers"].offset_dims]
    return choices.looked_up(b, source, index, places_of, axes)


def _sliced(b: Builder, equation: Any, params: Any, source: Value, *starts: Value) -> Value:
    flat = np.arange(source.size, dtype=np.int64).reshape(source.shape)
    chosen, at = _starts("dynamic_slice", b, equation, starts)

    def places_of(known: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(equation.primitive.bind(flat, *at(known), **params))

    return choices.looked_up(b, source, chosen, places_of, ())


def _updated(b: Builder, equation: Any, x: Value, update: Value, *starts: Value) -> Value:
    flat = np.arange(x.size, dtype=np.int64).reshape(x.shape)
    chosen, at = _starts("dynamic_update_slice", b, equation, starts)

    def places_of(known: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(jax.lax.dynamic_slice(flat, at(known), update.shape))

    return choices.written(b, x, chosen, places_of, update, (), adds=False)


def _starts(
    name: str, b: Builder, equation: Any, starts: Sequence[Value]
) -> tuple[Value, Callable[[np.ndarray], list[np.ndarray]]]:
    """Returns the only start of a slice that depends on weights, and a function from its known values to all starts."""
    varying = [axis for axis, start in enumerate(starts) if start.table is not None]
    if len(varying) != 1 or any(start.known is None for start in starts if start.table is None):
        raise UnknownOperation(name, b.line, choices.DEPENDS)
    dtypes = [each.aval.dtype for each in equation.invars[-len(starts) :]]

    def at(known: np.ndarray) -> list[np.ndarray]:
        found = [known if axis in varying else start.known for axis, start in enumerate(starts)]
        return [np.asarray(each).astype(dtype) for each, dtype in zip(found, dtypes, strict=True)]

    return starts[varying[0]], at


def _scattered(b: Builder, name: str, params: Any, x: Value, indices: Value, updates: Value) -> Value:
    index, whole = _which(b, indices)

    def places_of(known: np.ndarray) -> np.ndarray:
        return scattered(b, x, whole(known), updates, params)

    axes = [axis for axis in range(len(updates.shape)) if axis not in params["dimension_numbers"].update_window_dims]
    return choices.written(b, x, index, places_of, updates, axes, adds=name != "scatter")
