"""Rules of JAX's primitives, in terms of a `Builder`'s operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import UnknownOperation, Value

Rule = Callable[..., Any]

MOVES = frozenset(("slice", "dynamic_slice", "gather", "rev", "tile"))
"""Primitives that move elements of their first operand."""
UNCHANGED = ("stop_gradient", "copy", "copy_p", "optimization_barrier")
"""Primitives that return their operand."""
ROUNDED = frozenset((
    "add", "add_any", "sub", "mul", "div", "sqrt", "rsqrt", "square", "one_minus_square", "integer_pow", "pow",
    "exp", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erfc", "sin", "cos",
    "reduce_sum", "cumsum", "dot_general", "convert_element_type", "reduce_precision",
))  # fmt: skip
"""Primitives whose float results are rounded, so that a comparison of constants may depend on the computation."""
LAYOUTS = ("sharding_constraint", "reshard", "layout_constraint", "device_put")
"""Primitives that place elements on a mesh."""
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


# --- elements


def _register() -> None:
    for name, method in {
        "add": "add", "add_any": "add", "sub": "subtract", "div": "divide", "neg": "negate",
        "max": "maximum", "min": "minimum", "sqrt": "root", "exp": "exp", "log": "log", "tanh": "tanh", "erf": "erf",
        "sin": "sin", "cos": "cos", "logistic": "logistic", "sign": "sign", "not": "logical_not", "and": "logical_and",
        "or": "logical_or", "eq": "equal",
    }.items():  # fmt: skip
        RULES[name] = lambda b, *inputs, method=method, **params: getattr(b, method)(*inputs)
    for name in (*UNCHANGED, *LAYOUTS):
        RULES[name] = lambda b, *inputs, **params: list(inputs)


_register()


CUTS = {"proof.cut": False, "proof.cut of a weight": True}
"""Names of values that are cut → whether they are weights."""


@rule("name")
def named(b: Builder, x: Value, *, name: str, **params: Any) -> Value:
    return b.cut(x, is_weight=CUTS[name]) if name in CUTS else x


@rule("mul")
def multiply(b: Builder, x: Value, y: Value, **params: Any) -> Value:
    """Multiplies. XLA compiles a condition times y to a choice, which leaves out a y that is NaN."""
    for one, other in ((x, y), (y, x)):
        if b.is_condition(one):
            b.refuse_doubts("mul", other, what="compiled, it may leave out NaN")
    return b.multiply(x, y)


@rule("rsqrt")
def rsqrt(b: Builder, x: Value, **params: Any) -> Value:
    return b.inverse(b.root(x))


@rule("square")
def square(b: Builder, x: Value, **params: Any) -> Value:
    return b.power(x, 2)


@rule("one_minus_square")
def one_minus_square(b: Builder, x: Value, **params: Any) -> Value:
    return b.subtract(b.constant(1.0), b.power(x, 2))


@rule("integer_pow")
def integer_pow(b: Builder, x: Value, *, y: int, **params: Any) -> Value:
    return b.constant(np.ones(x.shape)) if y == 0 else b.power(x, y)


@rule("pow")
def power(b: Builder, x: Value, exponent: Value, **params: Any) -> Value:
    return b.power_of_known(x, exponent)


@rule("log1p")
def log1p(b: Builder, x: Value, **params: Any) -> Value:
    return b.log(b.add(b.constant(1.0), x))


@rule("expm1")
def expm1(b: Builder, x: Value, **params: Any) -> Value:
    return b.subtract(b.exp(x), b.constant(1.0))


@rule("erfc")
def erfc(b: Builder, x: Value, **params: Any) -> Value:
    return b.subtract(b.constant(1.0), b.erf(x))


@rule("abs")
def absolute(b: Builder, x: Value, **params: Any) -> Value:
    return b.absolute(x)


@rule("clamp")
def clamp(b: Builder, low: Value, x: Value, high: Value, **params: Any) -> Value:
    return b.minimum(b.maximum(x, low), high)


@rule("gt")
def greater(b: Builder, x: Value, y: Value, **params: Any) -> Value:
    return b.greater(x, y)


@rule("ge")
def at_least(b: Builder, x: Value, y: Value, **params: Any) -> Value:
    return b.at_least(x, y)


@rule("lt")
def less(b: Builder, x: Value, y: Value, **params: Any) -> Value:
    return b.greater(y, x)


@rule("le")
def at_most(b: Builder, x: Value, y: Value, **params: Any) -> Value:
    return b.at_least(y, x)


@rule("ne")
def unequal(b: Builder, x: Value, y: Value, **params: Any) -> Value:
    return b.logical_not(b.equal(x, y))


@rule("is_finite")
def is_finite(b: Builder, x: Value, **params: Any) -> Value:
    return b.is_finite(x)


@rule("select_n")
def select_n(b: Builder, condition: Value, *cases: Value, **params: Any) -> Value:
    if len(cases) != 2:
        raise UnknownOperation("select_n", b.line, f"{len(cases)} cases")
    if condition.kind == "int" and condition.known is not None:
        condition = b.constant(condition.known >= 1)  # numbers out of range are clipped
    return b.where(condition, cases[1], cases[0])


@rule("convert_element_type")
def convert_element_type(b: Builder, x: Value, *, new_dtype: Any, **params: Any) -> Value:
    if jax.dtypes.issubdtype(new_dtype, np.floating):
        return b.as_float(x)
    if x.kind == "float" and x.known is not None:
        return b.constant(_cast(b, x.known, new_dtype))
    if x.kind == "indicator" and np.dtype(new_dtype) == np.bool_:
        return x
    raise UnknownOperation("convert_element_type", b.line, f"{new_dtype} of numbers that depend on weights")


def _cast(b: Builder, known: np.ndarray, dtype: Any) -> np.ndarray:
    """Returns constants as integers or booleans. NumPy and XLA agree on values in range."""
    if np.dtype(dtype) == np.bool_:
        return known != 0
    limits = np.iinfo(dtype)
    if not ((known > float(limits.min) - 1) & (known < float(limits.max) + 1)).all():
        raise UnknownOperation("convert_element_type", b.line, f"a constant is out of the range of {dtype}")
    return known.astype(dtype)


@rule("reduce_precision")
def reduce_precision(b: Builder, x: Value, **params: Any) -> Value:
    return x


# --- products and sums. (Collectives over an axis of `vmap` reduce an axis of their operand.)


@rule("dot_general")
def dot_general(b: Builder, x: Value, y: Value, *, dimension_numbers: Any, **params: Any) -> Value:
    (x_summed, y_summed), (x_batch, y_batch) = dimension_numbers
    x_free = [axis for axis in range(len(x.shape)) if axis not in (*x_summed, *x_batch)]
    y_free = [axis for axis in range(len(y.shape)) if axis not in (*y_summed, *y_batch)]

    def size(value: Value, axes: Any) -> int:
        return math.prod(value.shape[axis] for axis in axes)

    left = b.transpose(b.as_float(x), [*x_batch, *x_free, *x_summed])
    right = b.transpose(b.as_float(y), [*y_batch, *y_summed, *y_free])
    left = b.reshape(left, (size(x, x_batch), size(x, x_free), size(x, x_summed)))
    right = b.reshape(right, (size(y, y_batch), size(y, y_summed), size(y, y_free)))
    shape = [x.shape[axis] for axis in (*x_batch, *x_free)] + [y.shape[axis] for axis in y_free]
    return b.reshape(b.matmul(left, right), shape)


@rule("reduce_sum", "psum")
def reduce_sum(b: Builder, x: Value, *, axes: Any, **params: Any) -> Value:
    return b.sum(x, axes)


@rule("reduce_max", "pmax")
def reduce_max(b: Builder, x: Value, *, axes: Any, **params: Any) -> Value:
    return b.largest(x, axes)


@rule("reduce_min", "pmin")
def reduce_min(b: Builder, x: Value, *, axes: Any, **params: Any) -> Value:
    return b.negate(b.largest(b.negate(x), axes))


@rule("cumsum")
def cumsum(b: Builder, x: Value, *, axis: int, reverse: bool, **params: Any) -> Value:
    if not reverse:
        return b.cumulative_sum(x, axis)
    places = np.flip(np.arange(x.size).reshape(x.shape), axis)
    return b.take(b.cumulative_sum(b.take(b.as_float(x), places), axis), places)


# --- moves


@rule("reshape")
def reshape(b: Builder, x: Value, *, new_sizes: Any, dimensions: Any = None, **params: Any) -> Value:
    return b.reshape(x if dimensions is None else b.transpose(x, dimensions), new_sizes)


@rule("squeeze")
def squeeze(b: Builder, x: Value, *, dimensions: Any, **params: Any) -> Value:
    return b.reshape(x, [size for axis, size in enumerate(x.shape) if axis not in dimensions])


@rule("transpose")
def transpose(b: Builder, x: Value, *, permutation: Any, **params: Any) -> Value:
    return b.transpose(x, permutation)


@rule("broadcast_in_dim")
def broadcast_in_dim(b: Builder, x: Value, *, shape: Any, broadcast_dimensions: Any, **params: Any) -> Value:
    sizes = [1] * len(shape)
    for axis, place in enumerate(broadcast_dimensions):
        sizes[place] = x.shape[axis]
    return b.broadcast(b.reshape(x, sizes), shape)


@rule("concatenate")
def concatenate(b: Builder, *parts: Value, dimension: int, **params: Any) -> Value:
    return b.concatenate(parts, dimension)


@rule("stack")
def stack(b: Builder, *parts: Value, axis: int = 0, **params: Any) -> Value:
    return b.concatenate([b.reshape(part, (*part.shape[:axis], 1, *part.shape[axis:])) for part in parts], axis)


@rule("unstack")
def unstack(b: Builder, x: Value, *, axis: int = 0, **params: Any) -> list[Value]:
    places = np.moveaxis(np.arange(x.size).reshape(x.shape), axis, 0)
    return [b.take(x, each) for each in places]


@rule("split")
def split(b: Builder, x: Value, *, sizes: Any, axis: int, **params: Any) -> list[Value]:
    places = np.split(np.arange(x.size).reshape(x.shape), np.cumsum(sizes)[:-1], axis)
    return [b.take(x, each) for each in places]


@rule("pad")
def pad(b: Builder, x: Value, filling: Value, *, padding_config: Any, **params: Any) -> Value:
    places = np.arange(1, x.size + 1, dtype=np.int64).reshape(x.shape)
    moved = np.asarray(jax.lax.pad(places, np.int64(0), padding_config)) - 1
    inside = b.take(x, moved)
    return inside if b.is_number(filling, 0) else b.where(b.constant(moved < 0), filling, inside)


@rule("dynamic_update_slice")
def dynamic_update_slice(b: Builder, x: Value, update: Value, *starts: Value, **params: Any) -> Value:
    indices = [_known(b, each) for each in starts]
    places = np.arange(x.size, dtype=np.int64).reshape(x.shape)
    for axis, (start, size) in enumerate(zip(indices, update.shape, strict=True)):
        first = int(np.clip(start, 0, x.shape[axis] - size))
        places = np.take(places, np.arange(first, first + size), axis)
    return b.put(x, places, update, adds=False)


@rule("scatter-add", "scatter_add")
def scatter_add(b: Builder, x: Value, indices: Value, updates: Value, **params: Any) -> Value:
    return b.put(x, scattered(b, x, _known(b, indices), updates, params), updates, adds=True)


@rule("scatter")
def scatter(b: Builder, x: Value, indices: Value, updates: Value, **params: Any) -> Value:
    return b.put(x, scattered(b, x, _known(b, indices), updates, params), updates, adds=False)


def scattered(b: Builder, x: Value, known: np.ndarray, updates: Value, params: Any) -> np.ndarray:
    """Returns the place in x of each update; −1 for updates out of bounds, which are dropped."""
    numbers = params["dimension_numbers"]
    window = numbers.update_window_dims
    batch = [axis for axis in range(len(updates.shape)) if axis not in window]
    free = [
        axis
        for axis in range(len(x.shape))
        if axis not in numbers.inserted_window_dims and axis not in numbers.operand_batching_dims
    ]
    grid = np.indices(updates.shape, dtype=np.int64)
    where = [np.zeros(updates.shape, np.int64) for _ in x.shape]
    lookup = tuple(grid[axis] for axis in batch)
    for place, axis in enumerate(numbers.scatter_dims_to_operand_dims):
        where[axis] = where[axis] + known[(*lookup, place)]
    for axis, of_indices in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
        where[axis] = where[axis] + lookup[of_indices]
    for axis, of_updates in zip(free, window, strict=True):
        where[axis] = where[axis] + grid[of_updates]
    inside = _inside(b, x, where, window, params["mode"])
    flat = np.ravel_multi_index(
        [np.where(inside, coordinate, 0) for coordinate in where] or [np.zeros(updates.shape, np.int64)],
        x.shape or (1,),
    )
    return np.where(inside, flat, -1)


def _inside(b: Builder, x: Value, where: list[np.ndarray], window: Any, mode: Any) -> np.ndarray:
    """Returns a mask of the updates that are written. A window that is partly out of bounds is dropped completely."""
    inside = np.ones(where[0].shape if where else (), bool)
    for axis, coordinate in enumerate(where):
        inside &= (coordinate >= 0) & (coordinate < x.shape[axis])
    if inside.all():
        return inside
    if mode != jax.lax.GatherScatterMode.FILL_OR_DROP:
        raise UnknownOperation("scatter", b.line, f"an index is out of bounds in mode {mode}")
    return np.broadcast_to(inside.all(axis=tuple(window), keepdims=True), inside.shape)


def _known(b: Builder, x: Value) -> np.ndarray:
    if x.known is None:
        raise UnknownOperation("index", b.line, "it depends on weights")
    return x.known
