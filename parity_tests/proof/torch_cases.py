"""Small PyTorch programs, one or more for each rule of ATen's operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rule_checks import Case
from torch.nn import functional

aten = torch.ops.aten
BOTH = (2, 3), (2, 3)
IDS = torch.tensor([[2, 0], [1, 2]])
MASK = torch.tensor([[True, False, False], [False, True, False]])


def of(function: Callable[..., Any], *shapes: tuple[int, ...], positive: bool = False) -> Case:
    return Case(function, shapes or ((2, 3),), positive)


def low(x: torch.Tensor) -> torch.Tensor:
    """Masks entries by −∞."""
    return torch.where(MASK, -torch.inf, x)


def _backward(function: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(
            (function(leaf) * torch.arange(1.0, 1 + leaf.numel()).view(leaf.shape)).sum(), leaf
        )
        return found

    return gradient


def _as_floats(found: Any) -> list[Any]:
    return [each.double() for each in found]


def _gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the gradients of all arguments."""

    def gradients(*arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [each.detach().requires_grad_() for each in arrays]
        found = function(*leaves)
        return torch.autograd.grad((found * torch.arange(1.0, 1 + found.numel()).view(found.shape)).sum(), leaves)

    return gradients


UNARY: dict[str, Callable[..., Any]] = {
    "neg": torch.neg, "reciprocal": torch.reciprocal, "exp": torch.exp, "erf": torch.erf,
    "tanh": torch.tanh, "sin": torch.sin, "cos": torch.cos, "sign": torch.sign, "sgn": torch.sgn,
    "sigmoid": torch.sigmoid, "silu": functional.silu, "erfc": torch.erfc, "relu": torch.relu, "abs": torch.abs,
    "isnan": torch.isnan, "clone": torch.clone,
    "zeros_like": torch.zeros_like, "ones_like": torch.ones_like, "leaky_relu": functional.leaky_relu,
}  # fmt: skip
POSITIVE: dict[str, Callable[..., Any]] = {
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "log": torch.log, "log1p": torch.log1p,
}  # fmt: skip
BINARY: dict[str, Callable[..., Any]] = {
    "mul": torch.mul, "div": torch.div, "maximum": torch.maximum, "minimum": torch.minimum, "gt": torch.gt,
    "lt": torch.lt, "copy": lambda x, y: x.clone().copy_(y),
}  # fmt: skip
FULL: dict[str, Callable[..., Any]] = {
    "fill": lambda x: x.clone().fill_(3.0), "zero": lambda x: x.clone().zero_(),
    "full_like": lambda x: torch.full_like(x, 2.5), "new_zeros": lambda x: x.new_zeros((3, 2)) + x.T,
    "new_ones": lambda x: x.new_ones((3, 2)) * x.T, "new_full": lambda x: x.new_full((3, 2), 2.0) * x.T,
}  # fmt: skip

CASES: dict[str, list[Case]] = {
    **{name: [of(function)] for name, function in {**UNARY, **FULL}.items()},
    **{name: [of(function, positive=True)] for name, function in POSITIVE.items()},
    **{name: [of(function, *BOTH)] for name, function in BINARY.items()},
    "add": [of(lambda x, y: torch.add(x, y, alpha=3), *BOTH), of(lambda x: x + 2.5)],
    "sub": [of(lambda x, y: torch.sub(x, y, alpha=3), *BOTH), of(lambda x: x - 2.5)],
    "rsub": [of(lambda x, y: aten.rsub(x, y, alpha=3), *BOTH)],
    "pow": [
        of(lambda x: x**3),
        of(lambda x: x**-2),
        of(lambda x: x**0.5, positive=True),
        of(lambda x: x ** torch.tensor([0.0, 2.0, -1.0])),
    ],
    "addcmul": [of(lambda x, y, z: torch.addcmul(x, y, z, value=2), *BOTH, (2, 3))],
    "addcdiv": [of(lambda x, y, z: torch.addcdiv(x, y, z, value=2), *BOTH, (2, 3))],
    "lerp": [of(lambda x, y: torch.lerp(x, y, 0.25), *BOTH)],
    "mm": [of(torch.mm, (2, 3), (3, 4)), of(lambda x: x @ x, (3, 3))],
    "bmm": [of(torch.bmm, (2, 2, 3), (2, 3, 2))],
    "mv": [of(torch.mv, (2, 3), (3,))],
    "dot": [of(torch.dot, (3,), (3,))],
    "addmm": [of(lambda b, x, y: torch.addmm(b, x, y, beta=2, alpha=3), (4,), (2, 3), (3, 4))],
    "baddbmm": [of(lambda b, x, y: torch.baddbmm(b, x, y, beta=2, alpha=3), (2, 2, 2), (2, 2, 3), (2, 3, 2))],
    "convolution": [
        of(lambda x, w, b: functional.conv1d(x, w, b, stride=2, padding=1, groups=2), (2, 4, 7), (6, 2, 3), (6,)),
        of(lambda x, w: functional.conv2d(x, w, padding=(1, 0), dilation=(1, 2)), (1, 2, 4, 5), (3, 2, 2, 3)),
        of(lambda x, w: functional.conv_transpose1d(x, w, None, 2, 1, 1, groups=2), (2, 4, 5), (4, 3, 3)),
    ],
    "convolution_backward": [
        of(_gradients(lambda x, w, b: functional.conv1d(x, w, b, 2, 1, 2, 2)), (2, 4, 7), (6, 2, 3), (6,)),
        of(_gradients(lambda x, w, b: functional.conv_transpose2d(x, w, b, 2)), (1, 4, 2, 3), (4, 3, 2, 3), (3,)),
    ],
    "max_pool2d_with_indices": [
        of(lambda x: functional.max_pool2d(x, (2, 3), (1, 2), (1, 1)), (2, 1, 3, 4)),
        of(lambda x: functional.max_pool2d(x, 2, 1, dilation=2), (1, 4, 5)),
        of(lambda x: functional.max_pool1d(x, 3, 2, 1), (1, 2, 6)),
    ],
    "max_pool3d_with_indices": [of(lambda x: functional.max_pool3d(x, 2), (1, 1, 2, 4, 2))],
    "avg_pool2d": [
        of(lambda x: functional.avg_pool2d(x, (2, 3), (1, 2), (1, 1)), (2, 1, 3, 4)),
        of(lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (1, 4, 5)),
        of(lambda x: functional.avg_pool2d(x, 2, divisor_override=3), (1, 1, 4, 4)),
        of(lambda x: functional.avg_pool1d(x, 2), (1, 2, 6)),
    ],
    "avg_pool3d": [of(lambda x: functional.avg_pool3d(x, 2), (1, 1, 2, 4, 2))],
    "avg_pool2d_backward": [of(_gradients(lambda x: functional.avg_pool2d(x, 3, 2, 1, False, False)), (1, 1, 4, 5))],
    "_adaptive_avg_pool2d": [of(lambda x: functional.adaptive_avg_pool2d(x, (2, 3)), (1, 2, 3, 5))],
    "_adaptive_avg_pool2d_backward": [
        of(_gradients(lambda x: functional.adaptive_avg_pool2d(x, (2, 3))), (1, 2, 3, 5))
    ],
    "sum": [of(lambda x: x.sum(1)), of(lambda x: x.sum((0, 2), keepdim=True), (2, 3, 2)), of(lambda x: x.sum())],
    "mean": [of(lambda x: x.mean(1)), of(lambda x: x.mean((0, 2), keepdim=True), (2, 3, 2))],
    "var": [of(lambda x: x.var(1)), of(lambda x: x.var((0, 1), correction=0, keepdim=True))],
    "var_mean": [of(lambda x: torch.var_mean(x, 1)), of(lambda x: torch.var_mean(x, 0, correction=0, keepdim=True))],
    "std": [of(lambda x: x.std(1)), of(lambda x: x.std(0, correction=0, keepdim=True))],
    "linalg_vector_norm": [of(lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True))],
    "native_group_norm": [of(lambda x, w, b: functional.group_norm(x, 2, w, b, 0.5), (2, 4, 3), (4,), (4,))],
    "native_batch_norm": [
        of(lambda x, m, v, w, b: functional.batch_norm(x, m, v, w, b, eps=0.5), (2, 3, 2), *[(3,)] * 4, positive=True)
    ],
    "native_layer_norm": [of(lambda x, w, b: functional.layer_norm(x, (3,), w, b, 0.5), (2, 3), (3,), (3,))],
    "cumsum": [of(lambda x: x.cumsum(1)), of(lambda x: x.cumsum(0))],
    "amax": [of(lambda x: x.amax(1)), of(lambda x: x.amax((0, 2), keepdim=True), (2, 3, 2))],
    "topk": [of(lambda x: _as_floats(x.topk(2))), of(lambda x: _as_floats(x.topk(1, 0, largest=False)))],
    "sort": [of(lambda x: _as_floats(x.sort(1))), of(lambda x: _as_floats(x.sort(0, descending=True)))],
    "argmax": [of(lambda x: x.argmax(1).double()), of(lambda x: x.argmax().double())],
    "argmin": [of(lambda x: x.argmin(0, keepdim=True).double())],
    "max": [of(lambda x: _as_floats(x.max(1))), of(lambda x: x.max())],
    "min": [of(lambda x: _as_floats(x.min(0, keepdim=True))), of(lambda x: x.min())],
    "threshold_backward": [of(_backward(functional.relu))],
    "gelu": [of(functional.gelu), of(lambda x: functional.gelu(x, approximate="tanh"))],
    "clamp": [of(lambda x: x.clamp(-1, 1.5)), of(lambda x, y: torch.clamp(x, max=y), *BOTH)],
    "clamp_min": [of(lambda x: x.clamp_min(0.5))],
    "clamp_max": [of(lambda x: x.clamp_max(0.5))],
    "hardtanh": [of(lambda x: functional.hardtanh(x, -0.5, 1.5)), of(functional.relu6)],
    "_softmax": [of(lambda x: x.softmax(1)), of(lambda x: low(x).softmax(1)), of(lambda x: x.softmax(0))],
    "_safe_softmax": [
        of(lambda x: aten._safe_softmax(low(x), 1)),
        of(lambda x: aten._safe_softmax(torch.where(MASK | MASK.flip(1), -torch.inf, x), 0)),
    ],
    "_log_softmax": [of(lambda x: x.log_softmax(1)), of(lambda x: x.log_softmax(0))],
    "logsumexp": [of(lambda x: x.logsumexp(1)), of(lambda x: x.logsumexp((0, 2), keepdim=True), (2, 3, 2))],
    "_softmax_backward_data": [of(_backward(partial(torch.softmax, dim=1)))],
    "_log_softmax_backward_data": [of(_backward(partial(torch.log_softmax, dim=1)))],
    "where": [of(lambda x, y: torch.where(MASK, x, y), *BOTH), of(lambda x, y: torch.where(x > 0, x, y), *BOTH)],
    "masked_fill": [of(lambda x: x.masked_fill(MASK, 2.0)), of(lambda x: x.clone().masked_fill_(x > 0, 2.0))],
    "gt": [of(torch.gt, *BOTH), of(lambda x: x > x.amax())],
    "ge": [of(torch.ge, *BOTH), of(lambda x: x >= x.amax())],
    "lt": [of(torch.lt, *BOTH), of(lambda x: x.amax() < x)],
    "le": [of(torch.le, *BOTH), of(lambda x: x.amax() <= x)],
    "eq": [of(lambda x: x == x.flip(0), (3, 2)), of(lambda x: x == x.amax())],
    "ne": [of(lambda x: x != x.flip(0), (3, 2)), of(lambda x: x != x.amax())],
    "isinf": [of(lambda x: torch.isinf(low(x)))],
    "logical_not": [of(lambda x: torch.logical_not(x > 0)), of(lambda x: torch.logical_not(x - x.amax()))],
    "bitwise_not": [of(lambda x: ~(x > 0))],
    "logical_and": [of(lambda x, y: torch.logical_and(x > 0, y > 0), (12,), (12,))],
    "bitwise_and": [of(lambda x, y: (x > 0) & (y > 0), (12,), (12,))],
    "logical_or": [of(lambda x, y: torch.logical_or(x > 0, y > 0), (12,), (12,))],
    "bitwise_or": [of(lambda x, y: (x > 0) | (y > 0), (12,), (12,))],
    "_to_copy": [of(lambda x: (x > 0).double() + x.to(torch.float64))],
    "cat": [of(lambda x, y: torch.cat([x, y], 1), *BOTH), of(lambda x, y: torch.cat([x, y]), *BOTH)],
    "stack": [of(lambda x, y: torch.stack([x, y], 1), *BOTH), of(lambda x, y: torch.stack([x, y], -1), *BOTH)],
    "embedding": [of(lambda x: functional.embedding(IDS, x), (3, 2))],
    "index_put": [
        of(lambda x, y: x.index_put((IDS[0],), y), (3, 2), (2, 2)),
        of(lambda x, y: x.index_put((torch.tensor([1, 1]),), y, accumulate=True), (3, 2), (2, 2)),
    ],
    "scatter_add": [of(lambda x, y: x.scatter_add(1, IDS, y), (2, 3), (2, 2))],
    "scatter": [of(lambda x, y: x.scatter(1, IDS, y), (2, 3), (2, 2)), of(lambda x: x.scatter(1, IDS, 2.0))],
    "index_add": [of(lambda x, y: x.index_add(0, torch.tensor([1, 1]), y, alpha=2), (3, 2), (2, 2))],
    "slice_scatter": [of(lambda x, y: x.slice_scatter(y, 1, 1, 3), (2, 4), (2, 2))],
    "select_scatter": [of(lambda x, y: x.select_scatter(y, 1, 2), (2, 3), (2,))],
    "constant_pad_nd": [
        of(lambda x: functional.pad(x, (1, 2))),
        of(lambda x: functional.pad(x, (0, 1, 1, 0), value=2.0)),
    ],
    "gather": [of(lambda x: x.gather(1, IDS))],
    "index_select": [of(lambda x: x.index_select(1, IDS[0]))],
    "index": [of(lambda x: x[:, IDS]), of(lambda x: x[MASK])],
    "flip": [of(lambda x: x.flip(1))],
    "roll": [of(lambda x: x.roll(1, 1))],
    "repeat": [of(lambda x: x.repeat(2, 1, 2))],
    "tril": [of(lambda x: x.tril(), (3, 3))],
    "triu": [of(lambda x: x.triu(1), (3, 3))],
    "take": [of(lambda x: x.take(IDS))],
}
COMMUTATIVE = frozenset(
    ("mul", "maximum", "minimum", "eq", "ne", "logical_and", "bitwise_and", "logical_or", "bitwise_or", "dot")
)
UNIFORM = frozenset((*FULL, "zeros_like", "ones_like"))
"""Rules whose results look the same in any order, or with the other sign."""
AS_RUN = frozenset(("isnan", "isinf"))
"""Rules of results that depend on no weight, and are booleans: they are read from the run."""
