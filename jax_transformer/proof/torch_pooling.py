"""How ATen pools, in terms of a `Builder`'s operations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jax_transformer.proof import pooling
from jax_transformer.proof.building import Builder
from jax_transformer.proof.convolutions import Window
from jax_transformer.proof.programs import UnknownOperation, Value
from jax_transformer.proof.torch_registry import rule

Numbers = Sequence[int]


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    b: Builder,
    x: Value,
    kernel: Numbers,
    stride: Numbers = (),
    padding: Numbers = (0,),
    dilation: Numbers = (1,),
    ceil_mode: bool = False,
) -> list[Value | UnknownOperation]:
    """Returns the largest entries; no rule covers their places."""
    window = _window(b, x, kernel, stride, padding, dilation, ceil_mode)
    found = _joined(b, pooling.largest(b, x, _places(x, window)), x, window.output)
    return [found, UnknownOperation("pooling", b.line, "the places of largest entries")]


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    b: Builder,
    x: Value,
    kernel: Numbers,
    stride: Numbers = (),
    padding: Numbers = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    window = _window(b, x, kernel, stride, padding, (1,), ceil_mode)
    total = _joined(b, pooling.summed(b, x, _places(x, window)), x, window.output)
    return _divided(b, total, _counts(window, count_include_pad, divisor_override))


@rule("avg_pool2d_backward", "avg_pool3d_backward")
def avg_pool_backward(
    b: Builder,
    gradient: Value,
    x: Value,
    kernel: Numbers,
    stride: Numbers,
    padding: Numbers,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    window = _window(b, x, kernel, stride, padding, (1,), ceil_mode)
    parts = _divided(b, gradient, _counts(window, count_include_pad, divisor_override))
    return pooling.spread(b, parts, _places(x, window), x.shape)


def _counts(window: Window, includes_padding: bool, divisor: int | None) -> np.ndarray:
    if divisor is not None or includes_padding:
        return np.full(window.output, divisor or math.prod(window.kernel))
    return (window.places() >= 0).sum(1).reshape(window.output)


@rule("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def adaptive_avg_pool(b: Builder, x: Value, sizes: Numbers) -> Value:
    places = _even_places(x.shape[-len(sizes) :], sizes)
    total = _joined(b, pooling.summed(b, x, _everywhere(x, places, len(sizes))), x, tuple(sizes))
    return _divided(b, total, (places >= 0).sum(1).reshape(sizes))


@rule("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(b: Builder, gradient: Value, x: Value) -> Value:
    rank = len(x.shape) - 2 if len(x.shape) > 3 else 2
    sizes = gradient.shape[-rank:]
    places = _even_places(x.shape[-rank:], sizes)
    parts = _divided(b, gradient, (places >= 0).sum(1).reshape(sizes))
    return pooling.spread(b, parts, _everywhere(x, places, rank), x.shape)


def _even_places(inputs: Numbers, sizes: Numbers) -> np.ndarray:
    """Returns the places [P, K] of windows that part an input as evenly as they can: from ⌊i · S / O⌋ to
    ⌈(i + 1) · S / O⌉."""
    inside = np.ones((1,) * 2 * len(sizes), bool)
    for axis, (size, count) in enumerate(zip(inputs, sizes, strict=True)):
        starts, ends = np.arange(count) * size // count, -(-np.arange(1, count + 1) * size // count)
        of_axis = (np.arange(size) >= starts[:, None]) & (np.arange(size) < ends[:, None])
        shape = [1] * 2 * len(sizes)
        shape[axis], shape[len(sizes) + axis] = count, size
        inside = inside & of_axis.reshape(shape)
    inside = inside.reshape(math.prod(sizes), math.prod(inputs))
    return np.where(inside, np.arange(inside.shape[1]), -1)


def _divided(b: Builder, total: Value, counts: np.ndarray) -> Value:
    return b.divide(total, b.broadcast(b.constant(counts.astype(np.float64)), total.shape))


def _window(
    b: Builder, x: Value, kernel: Numbers, stride: Numbers, padding: Numbers, dilation: Numbers, ceil_mode: bool
) -> Window:
    if ceil_mode:
        raise UnknownOperation("pooling", b.line, "ceil_mode")
    rank = len(kernel) if len(kernel) > 1 else len(x.shape) - 2
    kernel, stride, padding, dilation = (
        tuple(each) * rank if len(each) == 1 else tuple(each) for each in (kernel, stride or kernel, padding, dilation)
    )
    ends = tuple((each, each) for each in padding)
    return Window(tuple(x.shape[-rank:]), kernel, stride, ends, dilation, (1,) * rank)


def _places(x: Value, window: Window) -> np.ndarray:
    return _everywhere(x, window.places(), len(window.input))


def _everywhere(x: Value, places: np.ndarray, rank: int) -> np.ndarray:
    """Returns places [P, K] in the last axes of x for all of its other ones, [N, P, K]."""
    size = math.prod(x.shape[-rank:])
    first = np.arange(x.size // size if size else 0, dtype=np.int64)[:, None, None] * size
    return np.where(places < 0, -1, first + places)


def _joined(b: Builder, rows: Value, x: Value, sizes: tuple[int, ...]) -> Value:
    return b.reshape(rows, (*x.shape[: -len(sizes)], *sizes))
