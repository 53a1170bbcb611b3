"""How ATen convolves, and differentiates convolutions, in terms of a `Builder`'s operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax_transformer.proof.building import Builder
from jax_transformer.proof.convolutions import Window, convolved, kernel_of, spread
from jax_transformer.proof.programs import Value
from jax_transformer.proof.torch_registry import rule

Numbers = Sequence[int]


@rule("convolution")
def convolution(
    b: Builder,
    x: Value,
    kernel: Value,
    bias: Value | None,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    transposed: bool,
    output_padding: Numbers,
    groups: int,
) -> Value:
    """Convolves x [N, C, …] with a kernel [O, C/G, …]; a transposed one [C, O/G, …] is the adjoint of such a
    convolution of the output."""
    window = _window(x.shape[2:], kernel.shape[2:], stride, padding, dilation, transposed, output_padding)
    sizes = window.input if transposed else window.output
    compute = spread if transposed else convolved
    found = _joined(b, compute(b, _split(b, x, groups), _kernel(b, kernel, groups), window), sizes)
    if bias is None:
        return found
    return b.add(found, b.broadcast(b.reshape(bias, (1, bias.size, *[1] * len(sizes))), found.shape))


@rule("convolution_backward")
def convolution_backward(
    b: Builder,
    gradient: Value,
    x: Value,
    kernel: Value,
    bias_sizes: Any,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    transposed: bool,
    output_padding: Numbers,
    groups: int,
    output_mask: Sequence[bool],
) -> list[Value]:
    """Returns the gradients of the input, the kernel and the bias that are asked for."""
    window = _window(x.shape[2:], kernel.shape[2:], stride, padding, dilation, transposed, output_padding)
    output_groups, input_groups, weights = _split(b, gradient, groups), _split(b, x, groups), _kernel(b, kernel, groups)
    found = []
    if output_mask[0]:
        compute = convolved if transposed else spread
        found.append(_joined(b, compute(b, output_groups, weights, window), x.shape[2:]))
    if output_mask[1]:
        both = (output_groups, input_groups) if transposed else (input_groups, output_groups)
        found.append(b.reshape(kernel_of(b, *both, window), kernel.shape))
    if output_mask[2]:
        found.append(b.sum(gradient, (0, *range(2, len(gradient.shape)))))
    return found


def _window(
    sizes: Numbers,
    kernel: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    transposed: bool,
    output_padding: Numbers,
) -> Window:
    """Returns the kernel's window over the input; for a transposed convolution, over the output."""
    rank = len(sizes)
    stride, padding, dilation, more = (
        tuple(each) * rank if len(each) == 1 else tuple(each) for each in (stride, padding, dilation, output_padding)
    )
    if transposed:
        sizes = [
            (sizes[i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + more[i] + 1
            for i in range(rank)
        ]
    ends = tuple((each, each) for each in padding)
    return Window(tuple(sizes), tuple(kernel), stride, ends, dilation, (1,) * rank)


def _split(b: Builder, x: Value, groups: int) -> Value:
    """Returns x [N, G · C, …] as [N, G, C, all places]."""
    return b.reshape(x, (x.shape[0], groups, x.shape[1] // groups, math.prod(x.shape[2:])))


def _kernel(b: Builder, kernel: Value, groups: int) -> Value:
    """Returns a kernel [G · O, C, …] as [G, O, C, K]."""
    return b.reshape(kernel, (groups, kernel.shape[0] // groups, kernel.shape[1], math.prod(kernel.shape[2:])))


def _joined(b: Builder, y: Value, sizes: Numbers) -> Value:
    batch, groups, channels = y.shape[:3]
    return b.reshape(y, (batch, groups * channels, *sizes))
