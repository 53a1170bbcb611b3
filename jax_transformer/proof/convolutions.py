"""Convolutions as matrix products: patches of the input, which are moved elements, times the kernel.

Axes: N batch, G groups, C input channels of a group, O output channels of a group, P output places, K kernel places;
all spatial dimensions are one axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import Value

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """Slides a kernel over an input."""

    input: Sizes
    """Spatial sizes."""
    kernel: Sizes
    strides: Sizes
    padding: tuple[tuple[int, int], ...]
    """Before and after each dimension of the dilated input; negative ones crop it."""
    kernel_dilation: Sizes
    input_dilation: Sizes

    @property
    def output(self) -> Sizes:
        return tuple(self._output(axis) for axis in range(len(self.input)))

    def _output(self, axis: int) -> int:
        size = self.input[axis]
        dilated = 0 if size == 0 else (size - 1) * self.input_dilation[axis] + 1
        reach = (self.kernel[axis] - 1) * self.kernel_dilation[axis] + 1
        return max(0, (dilated + sum(self.padding[axis]) - reach) // self.strides[axis] + 1)

    def places(self) -> np.ndarray:
        """Returns the place in the input that each kernel place meets at each output place, [P, K]; −1 for padding."""
        rank = len(self.input)
        found = np.zeros((1,) * (2 * rank), np.int64)
        inside = np.ones((1,) * (2 * rank), bool)
        for axis in range(rank):
            start = np.arange(self._output(axis)) * self.strides[axis] - self.padding[axis][0]
            place = start[:, None] + np.arange(self.kernel[axis]) * self.kernel_dilation[axis]
            step = self.input_dilation[axis]
            place, is_element = place // step, place % step == 0
            is_element &= (place >= 0) & (place < self.input[axis])
            shape = [1] * (2 * rank)
            shape[axis], shape[rank + axis] = place.shape
            found = found * self.input[axis] + np.where(is_element, place, 0).reshape(shape)
            inside = inside & is_element.reshape(shape)
        sizes = math.prod(self.output), math.prod(self.kernel)
        return np.where(inside, found, -1).reshape(sizes)


def convolved(b: Builder, x: Value, kernel: Value, window: Window) -> Value:
    """Returns the convolution of x [N, G, C, input] and a kernel [G, O, C, K], as [N, G, O, P]."""
    batch, groups = x.shape[:2]
    places = len(window.places())
    product = b.matmul(_patches(b, x, window), b.transpose(_flat(b, kernel), (0, 2, 1)))
    split = b.reshape(product, (groups, batch, places, kernel.shape[1]))
    return b.transpose(split, (1, 0, 3, 2))


def spread(b: Builder, y: Value, kernel: Value, window: Window) -> Value:
    """Returns the adjoint of `convolved` in x: y [N, G, O, P] and a kernel [G, O, C, K] → [N, G, C, input]."""
    batch, groups = y.shape[:2]
    channels, size = kernel.shape[2], math.prod(window.input)
    products = b.matmul(_rows(b, y), _flat(b, kernel))
    to = _places(window, (batch, groups, channels)).transpose(1, 0, 3, 2, 4).reshape(products.shape)
    zeros = b.constant(np.zeros((batch, groups, channels, size)))
    return b.put(zeros, to, products, adds=True)


def kernel_of(b: Builder, x: Value, y: Value, window: Window) -> Value:
    """Returns the adjoint of `convolved` in the kernel: x [N, G, C, input] and y [N, G, O, P] → [G, O, C, K]."""
    product = b.matmul(b.transpose(_rows(b, y), (0, 2, 1)), _patches(b, x, window))
    return b.reshape(product, (x.shape[1], y.shape[2], x.shape[2], math.prod(window.kernel)))


def _places(window: Window, sizes: Sequence[int]) -> np.ndarray:
    """Returns the places of the patches' elements [N, G, C, P, K] in x [N, G, C, input]."""
    of_one, size = window.places(), math.prod(window.input)
    first = np.arange(math.prod(sizes), dtype=np.int64).reshape(*sizes, 1, 1) * size
    return np.where(of_one < 0, -1, first + of_one)


def _patches(b: Builder, x: Value, window: Window) -> Value:
    """Returns patches [G, N · P, C · K]."""
    places = _places(window, x.shape[:3]).transpose(1, 0, 3, 2, 4)
    groups, batch, count = places.shape[:3]
    return b.take(x, places.reshape(groups, batch * count, -1))


def _rows(b: Builder, y: Value) -> Value:
    """Returns y [N, G, O, P] as [G, N · P, O]."""
    batch, groups, channels, count = y.shape
    return b.reshape(b.transpose(y, (1, 0, 3, 2)), (groups, batch * count, channels))


def _flat(b: Builder, kernel: Value) -> Value:
    """Returns a kernel [G, O, C, K] as [G, O, C · K]."""
    return b.reshape(kernel, (*kernel.shape[:2], kernel.shape[2] * kernel.shape[3]))
