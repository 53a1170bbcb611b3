"""How ATen's operations copy, cast and move elements, in terms of a `Builder`'s operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import UnknownOperation, Value
from jax_transformer.proof.torch_registry import rule, value_of

MOVES = frozenset(
    (
        *("gather", "index_select", "index", "flip", "roll", "repeat", "tril", "triu", "slice", "select"),
        *("diagonal", "unfold", "take"),
    )
)
"""Operations that move elements of their first argument, and fill with zeros."""


# --- copies, casts, and moves with more than one source


@rule("clone", "detach", "lift_fresh_copy", "alias", "contiguous")
def same(b: Builder, x: Value, **rest: Any) -> Value:
    return x


@rule("_unsafe_view", "view", "reshape", "_reshape_copy", "view_copy")
def reshaped(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    sizes = list(shape)
    if -1 in sizes:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = x.size // known
    return b.reshape(x, sizes)


@rule("_to_copy")
def to_copy(b: Builder, x: Value, *, dtype: torch.dtype | None = None, **rest: Any) -> Value:
    if dtype is None:
        return x
    if dtype.is_floating_point:
        x = b.as_float(x)
        return x
    if x.kind == "float" and x.known is not None:
        with np.errstate(invalid="ignore"):  # infinities, which a program leaves out later
            return b.constant(x.known.astype(bool if dtype is torch.bool else np.int64))
    if x.kind == "indicator" and dtype is torch.bool:
        return x
    raise UnknownOperation("to", b.line, f"{dtype} of numbers that depend on weights")


@rule("copy")
def copy(b: Builder, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return b.broadcast(b.as_float(source) if x.kind == "float" else source, x.shape)


@rule("fill")
def fill(b: Builder, x: Value, value: Any) -> Value:
    return b.broadcast(b.as_float(value_of(b, value)), x.shape)


@rule("zero", "zeros_like")
def zero(b: Builder, x: Value, **rest: Any) -> Value:
    return b.constant(np.zeros(x.shape))


@rule("ones_like")
def ones_like(b: Builder, x: Value, **rest: Any) -> Value:
    return b.constant(np.ones(x.shape))


@rule("full_like")
def full_like(b: Builder, x: Value, value: Any, **rest: Any) -> Value:
    return b.broadcast(b.as_float(value_of(b, value)), x.shape)


@rule("new_zeros", "new_empty", "empty_like", "new_empty_strided")
def new_zeros(b: Builder, x: Value, shape: Any = None, *rest: Any, **options: Any) -> Value:
    return b.constant(np.zeros(x.shape if shape is None else tuple(shape)))


@rule("new_ones")
def new_ones(b: Builder, x: Value, shape: Sequence[int], **rest: Any) -> Value:
    return b.constant(np.ones(tuple(shape)))


@rule("new_full")
def new_full(b: Builder, x: Value, shape: Sequence[int], value: Any, **rest: Any) -> Value:
    return b.broadcast(b.as_float(value_of(b, value)), tuple(shape))


@rule("constant_pad_nd")
def constant_pad_nd(b: Builder, x: Value, pad: Sequence[int], value: Any = 0) -> Value:
    places = np.arange(1, x.size + 1).reshape(x.shape)
    places = torch.constant_pad_nd(torch.from_numpy(places), list(pad), 0).numpy() - 1
    inside = b.take(x, places)
    return inside if value == 0 else b.where(b.constant(places < 0), value_of(b, value), inside)


@rule("cat")
def cat(b: Builder, parts: Sequence[Value], dim: int = 0) -> Value:
    parts = [part for part in parts if part.shape != (0,)]
    return b.concatenate(parts, dim % len(parts[0].shape))


@rule("stack")
def stack(b: Builder, parts: Sequence[Value], dim: int = 0) -> Value:
    axis = dim % (len(parts[0].shape) + 1)
    return b.concatenate([b.reshape(part, (*part.shape[:axis], 1, *part.shape[axis:])) for part in parts], axis)


@rule("embedding")
def embedding(b: Builder, weight: Value, ids: Value, *rest: Any) -> Value:
    width = weight.shape[1]
    return b.take(weight, _known(b, ids)[..., None] * width + np.arange(width))


@rule("index_put", "_index_put_impl", "_unsafe_index_put")
def index_put(
    b: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False, *rest: Any
) -> Value:
    selected = tuple(slice(None) if index is None else _selected(b, index) for index in indices)
    places = np.arange(x.size).reshape(x.shape)[selected]
    return b.put(x, places, b.broadcast(values, places.shape), adds=accumulate)


@rule("scatter_add")
def scatter_add(b: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    return b.put(x, _along(x, dim, _known(b, index)), _like(b, source, index), adds=True)


@rule("scatter")
def scatter(b: Builder, x: Value, dim: int, index: Value, source: Any) -> Value:
    return b.put(x, _along(x, dim, _known(b, index)), _like(b, value_of(b, source), index), adds=False)


@rule("index_add")
def index_add(b: Builder, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Value:
    axis = dim % len(x.shape)
    places = np.take(np.arange(x.size).reshape(x.shape), _known(b, index), axis=axis)
    return b.put(x, places, b.multiply(source, value_of(b, alpha)), adds=True)


@rule("slice_scatter")
def slice_scatter(
    b: Builder, x: Value, source: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    selected = (slice(None),) * (dim % len(x.shape)) + (slice(start, end, step),)
    return b.put(x, np.arange(x.size).reshape(x.shape)[selected], source, adds=False)


@rule("select_scatter")
def select_scatter(b: Builder, x: Value, source: Value, dim: int, index: int) -> Value:
    selected = (slice(None),) * (dim % len(x.shape)) + (index,)
    return b.put(x, np.arange(x.size).reshape(x.shape)[selected], source, adds=False)


# --- within


def _along(x: Value, dim: int, index: np.ndarray) -> np.ndarray:
    axis = dim % len(x.shape)
    grid: list[np.ndarray] = list(np.indices(index.shape))
    grid[axis] = index
    return np.arange(x.size).reshape(x.shape)[tuple(grid)]


def _like(b: Builder, source: Value, index: Value) -> Value:
    """Returns the part of a source that an index of fewer elements has."""
    if source.shape == index.shape:
        return source
    if not source.shape:
        return b.broadcast(source, index.shape)
    selected = tuple(slice(0, size) for size in index.shape)
    return b.take(source, np.arange(source.size).reshape(source.shape)[selected])


def _selected(b: Builder, index: Value) -> np.ndarray:
    """Returns an index, or a mask; bytes are masks in PyTorch."""
    known = _known(b, index)
    return known.astype(bool) if known.dtype == np.uint8 else known


def _known(b: Builder, x: Value) -> np.ndarray:
    if x.known is None:
        raise UnknownOperation("index", b.line, "it depends on weights")
    return x.known
