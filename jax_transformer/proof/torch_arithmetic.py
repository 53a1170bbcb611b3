"""Rules of ATen's arithmetic, functions and conditions, in terms of a `Builder`'s operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import UnknownOperation, Value
from jax_transformer.proof.torch_registry import RULES, rule, value_of

# --- arithmetic


@rule("add")
def add(b: Builder, x: Any, y: Any, *, alpha: Any = 1) -> Value:
    y = value_of(b, y)
    return b.add(value_of(b, x), y if alpha == 1 else b.multiply(y, value_of(b, alpha)))


@rule("sub")
def sub(b: Builder, x: Any, y: Any, *, alpha: Any = 1) -> Value:
    y = value_of(b, y)
    return b.subtract(value_of(b, x), y if alpha == 1 else b.multiply(y, value_of(b, alpha)))


@rule("rsub")
def rsub(b: Builder, x: Any, y: Any, alpha: Any = 1) -> Value:
    return sub(b, y, x, alpha=alpha)


@rule("mul")
def mul(b: Builder, x: Any, y: Any) -> Value:
    return b.multiply(value_of(b, x), value_of(b, y))


@rule("div")
def div(b: Builder, x: Any, y: Any, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        raise UnknownOperation("div", b.line, f"rounding_mode={rounding_mode} depends on weights")
    return b.divide(value_of(b, x), value_of(b, y))


@rule("neg")
def neg(b: Builder, x: Value) -> Value:
    return b.negate(x)


@rule("reciprocal")
def reciprocal(b: Builder, x: Value) -> Value:
    return b.inverse(x)


@rule("sqrt")
def sqrt(b: Builder, x: Value) -> Value:
    return b.root(x)


@rule("rsqrt")
def rsqrt(b: Builder, x: Value) -> Value:
    return b.inverse(b.root(x))


@rule("pow")
def power(b: Builder, x: Any, exponent: Any) -> Value:
    if isinstance(exponent, Value):
        return b.power_of_known(value_of(b, x), exponent)
    return b.power(value_of(b, x), Fraction(exponent))


@rule("addcmul")
def addcmul(b: Builder, x: Value, y: Value, z: Value, *, value: Any = 1) -> Value:
    return add(b, x, b.multiply(y, z), alpha=value)


@rule("addcdiv")
def addcdiv(b: Builder, x: Value, y: Value, z: Value, *, value: Any = 1) -> Value:
    return b.add(x, b.divide(b.multiply(value_of(b, value), y), z))


@rule("lerp")
def lerp(b: Builder, x: Value, end: Value, weight: Any) -> Value:
    return b.add(x, b.multiply(value_of(b, weight), b.subtract(end, x)))


# --- products and sums


@rule("mm")
def mm(b: Builder, x: Value, y: Value) -> Value:
    product = b.matmul(b.reshape(x, (1, *x.shape)), b.reshape(y, (1, *y.shape)))
    return b.reshape(product, product.shape[1:])


@rule("bmm")
def bmm(b: Builder, x: Value, y: Value) -> Value:
    return b.matmul(x, y)


@rule("mv")
def mv(b: Builder, x: Value, y: Value) -> Value:
    return b.reshape(mm(b, x, b.reshape(y, (*y.shape, 1))), x.shape[:1])


@rule("dot")
def dot(b: Builder, x: Value, y: Value) -> Value:
    return b.sum(b.multiply(x, y), (0,))


@rule("addmm")
def addmm(b: Builder, bias: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    product = mm(b, x, y)
    product = product if alpha == 1 else b.multiply(product, value_of(b, alpha))
    return b.add(product, bias if beta == 1 else b.multiply(bias, value_of(b, beta)))


@rule("baddbmm")
def baddbmm(b: Builder, bias: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    product = b.matmul(x, y)
    product = product if alpha == 1 else b.multiply(product, value_of(b, alpha))
    return product if beta == 0 else b.add(product, bias if beta == 1 else b.multiply(bias, value_of(b, beta)))


@rule("sum")
def total(b: Builder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    axes = _axes(x, dim)
    return _keep(b, x, b.sum(x, axes), axes, keepdim)


@rule("mean")
def mean(b: Builder, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    axes = _axes(x, dim)
    count = math.prod(x.shape[axis] for axis in axes)
    return _keep(b, x, b.divide(b.sum(x, axes), b.constant(np.int64(count))), axes, keepdim)


@rule("var")
def var(b: Builder, x: Value, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Value:
    axes = _axes(x, dim)
    count = math.prod(x.shape[axis] for axis in axes)
    centred = b.subtract(x, mean(b, x, axes, keepdim=True))
    squares = b.sum(b.power(centred, 2), axes)
    divisor = max(
        0, count - (1 if correction is None else correction)
    )  # PyTorch takes fractions, and no divisor below 0
    divided = b.divide(squares, value_of(b, divisor))
    return _keep(b, x, divided, axes, keepdim)


@rule("var_mean")
def var_mean(b: Builder, x: Value, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    return var(b, x, dim, correction=correction, keepdim=keepdim), mean(b, x, _axes(x, dim), keepdim)


@rule("linalg_vector_norm", "norm")
def vector_norm(
    b: Builder, x: Value, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    if order != 2:
        raise UnknownOperation("linalg_vector_norm", b.line, f"of order {order}")
    return b.root(total(b, b.power(x, 2), dim, keepdim))


@rule("native_layer_norm")
def native_layer_norm(
    b: Builder, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    """Returns the norm, the mean and 1/√(variance + ε)."""
    axes = tuple(range(len(x.shape) - len(shape), len(x.shape)))
    centre = mean(b, x, axes, keepdim=True)
    variance = var(b, x, axes, correction=0, keepdim=True)
    scale = b.inverse(b.root(b.add(variance, value_of(b, eps))))
    normed = b.multiply(b.subtract(x, centre), scale)
    normed = normed if weight is None else b.multiply(normed, weight)
    return normed if bias is None else b.add(normed, bias), centre, scale


@rule("native_group_norm")
def native_group_norm(
    b: Builder, x: Value, weight: Value | None, bias: Value | None, n: int, c: int, size: int, groups: int, eps: float
) -> tuple[Value, Value, Value]:
    """Returns the norm of each group of channels, its mean and 1/√(variance + ε)."""
    parts = b.reshape(x, (n, groups, c // groups * size))
    centre = mean(b, parts, (2,), keepdim=True)
    scale = b.inverse(b.root(b.add(var(b, parts, (2,), correction=0, keepdim=True), value_of(b, eps))))
    normed = b.reshape(b.multiply(b.subtract(parts, centre), scale), x.shape)
    normed = normed if weight is None else b.multiply(normed, _per_channel(b, weight, x))
    normed = normed if bias is None else b.add(normed, _per_channel(b, bias, x))
    return normed, b.reshape(centre, (n, groups)), b.reshape(scale, (n, groups))


@rule("native_batch_norm")
def native_batch_norm(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_variance: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Returns the norm by running statistics, and two empty arrays. Raises UnknownOperation for a norm by a batch,
    which changes the statistics."""
    if training or running_mean is None or running_variance is None:
        raise UnknownOperation("native_batch_norm", b.line, "it norms by the statistics of a batch")
    scale = b.inverse(b.root(b.add(running_variance, value_of(b, eps))))
    normed = b.multiply(b.subtract(x, _per_channel(b, running_mean, x)), _per_channel(b, scale, x))
    normed = normed if weight is None else b.multiply(normed, _per_channel(b, weight, x))
    normed = normed if bias is None else b.add(normed, _per_channel(b, bias, x))
    return normed, b.constant(np.zeros(0)), b.constant(np.zeros(0))


def _per_channel(b: Builder, x: Value, whole: Value) -> Value:
    """Returns numbers of channels in a shape that broadcasts to [N, C, …]."""
    return b.reshape(x, (*x.shape, *[1] * (len(whole.shape) - 2)))


@rule("std")
def std(b: Builder, x: Value, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Value:
    return b.root(var(b, x, dim, correction=correction, keepdim=keepdim))


@rule("cumsum")
def cumsum(b: Builder, x: Value, dim: int, *, dtype: Any = None) -> Value:
    return b.cumulative_sum(x, dim % len(x.shape))


@rule("amax")
def amax(b: Builder, x: Value, dim: Any = (), keepdim: bool = False) -> Value:
    axes = _axes(x, dim)
    return _keep(b, x, b.largest(x, axes), axes, keepdim)


# --- functions


def _register_functions() -> None:
    for name in ("exp", "log", "erf", "tanh", "sin", "cos", "sign"):
        RULES[name] = lambda b, x, name=name: getattr(b, name)(x)


_register_functions()


@rule("sgn")
def sgn(b: Builder, x: Value) -> Value:
    return b.sign(x)


@rule("sigmoid")
def sigmoid(b: Builder, x: Value) -> Value:
    return b.logistic(x)


@rule("silu")
def silu(b: Builder, x: Value) -> Value:
    return b.multiply(x, b.logistic(x))


@rule("erfc")
def erfc(b: Builder, x: Value) -> Value:
    return b.subtract(b.constant(1.0), b.erf(x))


@rule("log1p")
def log1p(b: Builder, x: Value) -> Value:
    return b.log(b.add(b.constant(1.0), x))


@rule("leaky_relu")
def leaky_relu(b: Builder, x: Value, negative_slope: Any = 0.01) -> Value:
    return b.where(b.step(x), x, b.multiply(x, value_of(b, negative_slope)))


@rule("relu")
def relu(b: Builder, x: Value) -> Value:
    return b.maximum(x, b.constant(0.0))


@rule("threshold_backward")
def threshold_backward(b: Builder, gradient: Value, x: Value, threshold: Any) -> Value:
    return b.where(b.step(b.subtract(x, value_of(b, threshold))), gradient, b.constant(0.0))


@rule("gelu")
def gelu(b: Builder, x: Value, *, approximate: str = "none") -> Value:
    half, one = b.constant(0.5), b.constant(1.0)
    if approximate == "none":
        inside = b.erf(b.multiply(x, b.constant(math.sqrt(0.5))))
    else:
        cubed = b.add(x, b.multiply(b.constant(0.044715), b.power(x, 3)))
        inside = b.tanh(b.multiply(b.constant(math.sqrt(2 / math.pi)), cubed))
    return b.multiply(b.multiply(half, x), b.add(one, inside))


@rule("abs")
def absolute(b: Builder, x: Value) -> Value:
    return b.absolute(x)


@rule("maximum")
def maximum(b: Builder, x: Value, y: Value) -> Value:
    return b.maximum(x, y)


@rule("minimum")
def minimum(b: Builder, x: Value, y: Value) -> Value:
    return b.minimum(x, y)


@rule("clamp")
def clamp(b: Builder, x: Value, low: Any = None, high: Any = None) -> Value:
    x = x if low is None else b.maximum(x, value_of(b, low))
    return x if high is None else b.minimum(x, value_of(b, high))


@rule("hardtanh")
def hardtanh(b: Builder, x: Value, low: Any = -1.0, high: Any = 1.0) -> Value:
    return clamp(b, x, low, high)


@rule("clamp_min")
def clamp_min(b: Builder, x: Value, low: Any) -> Value:
    return clamp(b, x, low)


@rule("clamp_max")
def clamp_max(b: Builder, x: Value, high: Any) -> Value:
    return clamp(b, x, None, high)


@rule("_softmax")
def softmax(b: Builder, x: Value, dim: int, half_to_float: bool = False) -> Value:
    return b.softmax(x, dim)


@rule("_safe_softmax")
def safe_softmax(b: Builder, x: Value, dim: int, dtype: Any = None) -> Value:
    """Returns 0 for rows of −∞."""
    if x.fills is None:
        return b.softmax(x, dim)
    empty = b.constant(np.broadcast_to(np.isneginf(x.fills).all(axis=dim, keepdims=True), x.shape))
    zeros = b.constant(np.zeros(x.shape))
    return b.where(empty, zeros, b.softmax(b.where(empty, zeros, x), dim))


@rule("_log_softmax")
def log_softmax(b: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    return b.log_softmax(x, dim)


@rule("logsumexp")
def logsumexp(b: Builder, x: Value, dim: Any, keepdim: bool = False) -> Value:
    axes = _axes(x, dim)
    return _keep(b, x, b.log(b.sum(b.exp(x), axes)), axes, keepdim)


@rule("_softmax_backward_data")
def softmax_backward(b: Builder, gradient: Value, output: Value, dim: int, input_dtype: Any) -> Value:
    product = b.multiply(gradient, output)
    return b.subtract(product, b.multiply(output, b.kept_sum(product, dim)))


@rule("_log_softmax_backward_data")
def log_softmax_backward(b: Builder, gradient: Value, output: Value, dim: int, input_dtype: Any) -> Value:
    return b.subtract(gradient, b.multiply(b.exp(output), b.kept_sum(gradient, dim)))


# --- conditions


@rule("where")
def where(b: Builder, condition: Value, x: Any, y: Any) -> Value:
    return b.where(condition, value_of(b, x), value_of(b, y))


@rule("masked_fill")
def masked_fill(b: Builder, x: Value, mask: Value, fill: Any) -> Value:
    return b.where(mask, value_of(b, fill), x)


@rule("gt")
def greater(b: Builder, x: Any, y: Any) -> Value:
    return b.greater(value_of(b, x), value_of(b, y))


@rule("ge")
def at_least(b: Builder, x: Any, y: Any) -> Value:
    return b.at_least(value_of(b, x), value_of(b, y))


@rule("lt")
def less(b: Builder, x: Any, y: Any) -> Value:
    return b.greater(value_of(b, y), value_of(b, x))


@rule("le")
def at_most(b: Builder, x: Any, y: Any) -> Value:
    return b.at_least(value_of(b, y), value_of(b, x))


@rule("eq")
def equal(b: Builder, x: Any, y: Any) -> Value:
    return b.equal(value_of(b, x), value_of(b, y))


@rule("ne")
def unequal(b: Builder, x: Any, y: Any) -> Value:
    return b.logical_not(equal(b, x, y))


@rule("isnan")
def is_nan(b: Builder, x: Value) -> Value:
    return unequal(b, x, x)


@rule("isinf")
def is_infinite(b: Builder, x: Value) -> Value:
    return b.logical_not(b.is_finite(x))


@rule("isfinite")
def is_finite(b: Builder, x: Value) -> Value:
    return b.is_finite(x)


@rule("logical_not", "bitwise_not")
def logical_not(b: Builder, x: Value) -> Value:
    return b.logical_not(x)


@rule("logical_and", "bitwise_and", "__and__")
def logical_and(b: Builder, x: Any, y: Any) -> Value:
    return b.logical_and(value_of(b, x), value_of(b, y))


@rule("logical_or", "bitwise_or", "__or__")
def logical_or(b: Builder, x: Any, y: Any) -> Value:
    return b.logical_or(value_of(b, x), value_of(b, y))


# --- within


def _axes(x: Value, dim: Any) -> tuple[int, ...]:
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return tuple(range(len(x.shape)))
    return tuple(axis % max(len(x.shape), 1) for axis in ([dim] if isinstance(dim, int) else dim)) if x.shape else ()


def _keep(b: Builder, x: Value, reduced: Value, axes: tuple[int, ...], keepdim: bool) -> Value:
    if not keepdim:
        return reduced
    return b.reshape(reduced, tuple(1 if axis in axes else size for axis, size in enumerate(x.shape)))
