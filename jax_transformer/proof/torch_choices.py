"""Rules of ATen's operations for places that depend on weights, and for finding them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax_transformer.proof import choices
from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import UnknownOperation, Value
from jax_transformer.proof.torch_registry import RULES, Rule, rule, value_of

Function = Callable[..., Any]

ELEMENTWISE: dict[str, Function] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "remainder": np.remainder,
}  # fmt: skip
"""Operations on integers → NumPy's."""
CHOOSING: dict[str, Rule] = {}
"""Rules of operations that read at places that depend on weights."""


def choosing(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            CHOOSING[name] = function
        return function

    return register


# --- finding places


@rule("topk")
def topk(b: Builder, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    length = x.shape[dim]
    return choices.ordered(b, x, dim, range(k) if largest else range(length - k, length)[::-1], "topk")


@rule("sort")
def sort(b: Builder, x: Value, dim: int = -1, descending: bool = False, **rest: Any) -> Any:
    ranks = range(x.shape[dim])
    return choices.ordered(b, x, dim, ranks if descending else ranks[::-1], "sort")


@rule("argmax")
def argmax(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _extreme(b, x, dim, keepdim, "argmax")


@rule("argmin")
def argmin(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _extreme(b, x, dim, keepdim, "argmin")


def _extreme(b: Builder, x: Value, dim: int | None, keepdim: bool, name: str) -> Value:
    if dim is None:
        index = _extreme(b, b.reshape(x, (x.size,)), 0, False, name)
        return b.reshape(index, (1,) * len(x.shape)) if keepdim else index
    axis = dim % len(x.shape)
    index = choices.ordered(b, x, axis, (0 if name == "argmax" else x.shape[axis] - 1,), name)[1]
    return index if keepdim else b.reshape(index, [size for each, size in enumerate(index.shape) if each != axis])


@rule("max")
def largest(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    """Returns the largest entry, and its place along an axis."""
    if dim is None:
        return b.largest(x, range(len(x.shape)))
    return _kept(b, x, dim, keepdim, b.largest(x, (dim % len(x.shape),))), argmax(b, x, dim, keepdim)


@rule("min")
def least(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        return b.negate(b.largest(b.negate(x), range(len(x.shape))))
    found = b.negate(b.largest(b.negate(x), (dim % len(x.shape),)))
    return _kept(b, x, dim, keepdim, found), argmin(b, x, dim, keepdim)


def _kept(b: Builder, x: Value, dim: int, keepdim: bool, reduced: Value) -> Value:
    axis = dim % len(x.shape)
    return b.reshape(reduced, (*x.shape[:axis], 1, *x.shape[axis + 1 :])) if keepdim else reduced


# --- reading at places


def apply(b: Builder, name: str, args: Sequence[Any], kwargs: Any) -> Any:
    """Lowers an operation that reads at places that depend on weights."""
    if name in ELEMENTWISE and not kwargs:
        return choices.computed(b, ELEMENTWISE[name], [value_of(b, each) for each in args])
    if name not in CHOOSING:
        raise UnknownOperation(name, b.line, choices.DEPENDS)
    return CHOOSING[name](b, *args, **kwargs)


for _name in ("clone", "detach", "lift_fresh_copy", "alias", "contiguous", "_unsafe_view", "view", "reshape"):
    if _name in RULES:
        CHOOSING[_name] = RULES[_name]


@choosing("_to_copy")
def to_copy(b: Builder, x: Value, *, dtype: Any = None, **rest: Any) -> Value:
    if dtype is None or not dtype.is_floating_point:
        return x
    return b.as_float(x)


@choosing("gather")
def gather(b: Builder, x: Value, dim: int, index: Value, **rest: Any) -> Value:
    return choices.looked_up(b, x, index, lambda known: _along(x, dim, known), range(len(index.shape)))


@choosing("scatter")
def scatter(b: Builder, x: Value, dim: int, index: Value, source: Any) -> Value:
    return _scattered(b, x, dim, index, value_of(b, source), adds=False)


@choosing("scatter_add")
def scatter_add(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _scattered(b, x, dim, index, source, adds=True)


def _scattered(b: Builder, x: Value, dim: int, index: Value, source: Value, *, adds: bool) -> Value:
    if source.shape not in ((), index.shape):
        raise UnknownOperation("scatter", b.line, "its source is larger than its index")
    return choices.written(b, x, index, lambda known: _along(x, dim, known), source, range(len(index.shape)), adds=adds)


@choosing("index_select", "embedding", "index")
def index_select(b: Builder, x: Value, dim: Any, index: Any = None, *rest: Any) -> Value:
    """Looks up slices along one axis: `x[index]`, and of tables."""
    axis, places = (dim % len(x.shape), index) if isinstance(dim, int) else (0, dim)
    if isinstance(places, list | tuple):
        axis, places = _only(b, places)
    flat = np.arange(x.size).reshape(x.shape)
    axes = range(axis, axis + len(places.shape))
    return choices.looked_up(b, x, places, lambda known: np.take(flat, known, axis), axes)


@choosing("index_put", "_index_put_impl", "_unsafe_index_put")
def index_put(
    b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False, *rest: Any
) -> Value:
    axis, places = _only(b, indices)
    flat = np.arange(x.size).reshape(x.shape)
    axes = range(axis, axis + len(places.shape))
    return choices.written(b, x, places, lambda known: np.take(flat, known, axis), values, axes, adds=accumulate)


@choosing("embedding_dense_backward")
def embedding_dense_backward(
    b: Builder, gradient: Value, ids: Value, count: int, padding: int = -1, scales: bool = False
) -> Value:
    if padding >= 0 or scales:
        raise UnknownOperation("embedding_dense_backward", b.line, choices.DEPENDS)
    return index_put(b, b.constant(np.zeros((count, gradient.shape[-1]))), [ids], gradient, True)


def _only(b: Builder, indices: Sequence[Value | None]) -> tuple[int, Value]:
    """Returns the only indexed axis, and its index."""
    operands = [(axis, each) for axis, each in enumerate(indices) if each is not None]
    if len(operands) != 1:
        raise UnknownOperation("index", b.line, choices.DEPENDS)
    return operands[0]


def _along(x: Value, dim: int, index: np.ndarray) -> np.ndarray:
    grid: list[np.ndarray] = list(np.indices(index.shape))
    grid[dim % len(x.shape)] = index
    return np.arange(x.size).reshape(x.shape)[tuple(grid)]
