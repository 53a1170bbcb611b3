"""How JAX convolves, in terms of a `Builder`'s operations."""

from __future__ import annotations

import math
from typing import Any

from jax_transformer.proof.building import Builder
from jax_transformer.proof.convolutions import Window, convolved
from jax_transformer.proof.jax_rules import rule
from jax_transformer.proof.programs import Value


@rule("conv_general_dilated")
def conv_general_dilated(
    b: Builder,
    x: Value,
    kernel: Value,
    *,
    window_strides: Any,
    padding: Any,
    lhs_dilation: Any,
    rhs_dilation: Any,
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    **params: Any,
) -> Value:
    """Convolves. Groups of rows, with which gradients of kernels are computed, are groups of channels, too: each meets
    a part of the kernels."""
    x, kernel = b.transpose(x, dimension_numbers.lhs_spec), b.transpose(kernel, dimension_numbers.rhs_spec)
    sizes, shape = x.shape[2:], kernel.shape[2:]
    window = Window(
        tuple(sizes),
        tuple(shape),
        tuple(window_strides),
        tuple(map(tuple, padding)),
        tuple(rhs_dilation),
        tuple(lhs_dilation),
    )
    row_groups, channel_groups = batch_group_count, feature_group_count
    groups, places = row_groups * channel_groups, math.prod(sizes)
    rows, channels = x.shape[0] // row_groups, x.shape[1] // channel_groups
    x = b.reshape(x, (row_groups, rows, channel_groups, channels, places))
    x = b.reshape(b.transpose(x, (1, 0, 2, 3, 4)), (rows, groups, channels, places))
    kernel = b.reshape(kernel, (groups, kernel.shape[0] // groups, kernel.shape[1], math.prod(shape)))
    found = b.reshape(convolved(b, x, kernel, window), (rows, groups * kernel.shape[1], *window.output))
    order = dimension_numbers.out_spec
    return b.transpose(found, [order.index(axis) for axis in range(len(order))])
