"""Small JAX programs, one or more for each rule."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from rule_checks import Case

SQUARE, PAIR = ((3, 3),), ((2, 3), (2, 3))


def _by_rows(kind: AxisType) -> jax.NamedSharding:
    return jax.NamedSharding(jax.make_mesh((1,), ("rows",), axis_types=(kind,)), P("rows"))


def of(function: Callable[..., Any], *shapes: tuple[int, ...], positive: bool = False) -> Case:
    return Case(function, shapes or ((2, 3),), positive)


def _scatter(operation: Callable[..., Any], mode: Any = None) -> Callable[..., Any]:
    return lambda x, y: operation(x.at[np.array([2, 0])], y, mode)


BOTH = (2, 3), (2, 3)
UNARY: dict[str, Callable[..., Any]] = {
    "neg": lax.neg, "exp": lax.exp, "tanh": lax.tanh, "erf": lax.erf, "sin": lax.sin, "cos": lax.cos,
    "logistic": lax.logistic, "sign": lax.sign, "abs": lax.abs, "square": lax.square, "expm1": lax.expm1,
    "erfc": lax.erfc,
    "stop_gradient": lax.stop_gradient, "copy": lax.copy_p.bind,
    "sharding_constraint": lambda x: lax.with_sharding_constraint(x, _by_rows(AxisType.Auto)),
    "reshard": lambda x: jax.reshard(x, _by_rows(AxisType.Explicit)),
    "layout_constraint": lambda x: with_layout_constraint(x, Layout((1, 0))),
    "device_put": lambda x: jax.device_put(x, _by_rows(AxisType.Auto)),
    "optimization_barrier": lax.optimization_barrier, "name": partial(checkpoint_name, name="x"),
}  # fmt: skip
POSITIVE: dict[str, Callable[..., Any]] = {
    "sqrt": lax.sqrt, "rsqrt": lax.rsqrt, "log": lax.log, "log1p": lax.log1p,
}  # fmt: skip
BINARY: dict[str, Callable[..., Any]] = {
    "add": lax.add, "sub": lax.sub, "mul": lax.mul, "div": lax.div, "max": lax.max, "min": lax.min,
    "gt": lax.gt, "ge": lax.ge, "lt": lax.lt, "le": lax.le, "eq": lax.eq, "ne": lax.ne,
}  # fmt: skip

if hasattr(lax, "one_minus_square"):
    UNARY["one_minus_square"] = lax.one_minus_square

CASES: dict[str, list[Case]] = {
    **{name: [of(function)] for name, function in UNARY.items()},
    **{name: [of(function, positive=True)] for name, function in POSITIVE.items()},
    **{name: [of(function, *BOTH)] for name, function in BINARY.items()},
    "erf": [of(lax.erf), of(lambda x: jax.vjp(lax.erf, x)[1](x)[0] + 0 * lax.erf(x))],
    "eq": [of(lambda x: lax.eq(x, x[::-1]), (3, 2)), of(lambda x: lax.eq(x, jnp.max(x)))],
    "ne": [of(lambda x: lax.ne(x, x[::-1]), (3, 2)), of(lambda x: lax.ne(x, jnp.max(x)))],
    "ge": [of(lax.ge, *BOTH), of(lambda x: lax.ge(x, jnp.broadcast_to(jnp.max(x), x.shape)))],
    "le": [of(lax.le, *BOTH), of(lambda x: lax.le(jnp.broadcast_to(jnp.max(x), x.shape), x))],
    "gt": [of(lax.gt, *BOTH), of(lambda x: lax.gt(jnp.broadcast_to(jnp.max(x), x.shape), x))],
    "lt": [of(lax.lt, *BOTH), of(lambda x: lax.lt(x, jnp.broadcast_to(jnp.max(x), x.shape)))],
    "is_finite": [of(lambda x: lax.is_finite(jnp.where(np.array([True, False, False]), -jnp.inf, x)))],
    "add_any": [of(jax.grad(lambda x: jnp.sum(x * x + jnp.sin(x) * 2)))],
    "integer_pow": [of(lambda x: x**3), of(lambda x: x**-2)],
    "pow": [
        of(lambda x: lax.pow(x, 1.5), positive=True),
        of(lambda x: lax.pow(x, -0.5), positive=True),
        of(lambda x: lax.pow(x, np.array([[0.0, 1.0, 2.0], [-1.0, 3.0, 1.0]]))),
    ],
    "clamp": [of(lambda x, y: lax.clamp(-1.0, x * y, 2.0), *BOTH)],
    "not": [of(lambda x: ~(x > 0))],
    "and": [of(lambda x, y: (x > 0) & (y > 0), (12,), (12,))],
    "or": [of(lambda x, y: (x > 0) | (y > 0), (12,), (12,))],
    "select_n": [
        of(lambda x, y: lax.select(x > 0, x, y), *BOTH),
        of(lambda x, y: lax.select(np.array([[True, False, True], [False] * 3]), x, y), *BOTH),
    ],
    "convert_element_type": [of(lambda x: (x > 0).astype(x.dtype) + x.astype(x.dtype))],
    "reduce_precision": [of(lambda x: lax.reduce_precision(x, 11, 52))],
    "dot_general": [
        of(lambda x, y: jnp.einsum("bij,bkj->bik", x, y), (2, 2, 3), (2, 4, 3)),
        of(lambda x, y: jnp.einsum("ibj,kjb->bki", x, y), (2, 2, 3), (4, 3, 2)),
        of(jnp.dot, (3,), (3,)),
    ],
    "conv_general_dilated": [
        of(lambda x, y: lax.conv(x, y, (2,), "SAME"), (2, 3, 7), (4, 3, 3)),
        of(
            lambda x, y: lax.conv_general_dilated(
                x, y, (1, 2), ((0, 1), (2, -1)), (1, 2), (2, 1), ("NHWC", "HWIO", "NHWC"), feature_group_count=2
            ),
            (2, 4, 5, 2),
            (2, 2, 1, 4),
        ),
        of(
            jax.grad(lambda y, x: jnp.sum(lax.conv_general_dilated(x, y, (2,), "VALID", feature_group_count=2) ** 2)),
            (4, 2, 2),
            (1, 4, 5),
        ),
    ],
    "reduce_sum": [of(lambda x: x.sum(1)), of(lambda x: x.sum((0, 2)), (2, 3, 2))],
    "reduce_max": [of(lambda x: x.max(1)), of(lambda x: x.max((0, 2)), (2, 3, 2))],
    "reduce_min": [of(lambda x: x.min(0)), of(lambda x: x.min((0, 2)), (2, 3, 2))],
    "reduce_window_sum": [
        of(lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 2), "SAME"), (2, 5)),
        of(lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (2, 1), ((1, 0), (0, 2)), (1, 2), (2, 2)), (3, 4)),
    ],
    "reduce_window_max": [
        of(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 3), (1, 2), ((1, 0), (1, 1))), (3, 4)),
        of(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 1), "VALID", None, (1, 2)), (2, 5)),
    ],
    "reduce_window_min": [of(lambda x: lax.reduce_window(x, jnp.inf, lax.min, (2, 2), (2, 1), "SAME"), (3, 4))],
    "psum": [of(jax.vmap(lambda x: lax.psum(x, "rows"), axis_name="rows", in_axes=1, out_axes=None))],
    "pmax": [of(jax.vmap(lambda x: lax.pmax(x, "rows"), axis_name="rows", in_axes=1, out_axes=None))],
    "pmin": [of(jax.vmap(lambda x: lax.pmin(x, "rows"), axis_name="rows", in_axes=1, out_axes=None))],
    "cumsum": [
        of(lambda x: lax.cumsum(x, 1)),
        of(lambda x: lax.cumsum(x, 0)),
        of(lambda x: lax.cumsum(x, 1, reverse=True)),
    ],
    "reshape": [of(lambda x: x.reshape(3, 2)), of(lambda x: lax.reshape(x, (3, 2), dimensions=(1, 0)))],
    "squeeze": [of(lambda x: lax.squeeze(x, (1,)), (2, 1, 3))],
    "transpose": [of(lambda x: x.transpose(2, 0, 1), (2, 3, 4))],
    "broadcast_in_dim": [of(lambda x: lax.broadcast_in_dim(x, (3, 4, 2), (0, 2)), (3, 2))],
    "concatenate": [of(lambda x, y: jnp.concatenate([x, y], 1), *BOTH)],
    "stack": [of(lambda x, y: jnp.stack([x, y], 1), *BOTH)],
    "unstack": [of(lambda x: jnp.unstack(x, axis=1))],
    "split": [of(lambda x: lax.split(x, (1, 2), 1))],
    "pad": [
        of(lambda x: lax.pad(x, 0.0, ((1, 0, 1), (0, -1, 0)))),
        of(lambda x: lax.pad(x, 2.0, ((0, 1, 0), (2, 0, 1)))),
        of(lambda x: lax.pad(x[:, 3:], 0.0, ((0, 0, 0), (2, 0, 0)))),
    ],
    "slice": [of(lambda x: lax.slice(x, (0, 1), (2, 5), (1, 2)), (2, 5))],
    "rev": [of(lambda x: lax.rev(x, (1,)))],
    "tile": [of(lambda x: jnp.tile(x, (2, 3))), of(lambda x: jnp.tile(x, (2, 1, 3)))],
    "dynamic_slice": [of(lambda x: lax.dynamic_slice(x, (np.int32(1), np.int32(5)), (1, 2)))],
    "gather": [
        of(lambda x: x[np.array([2, 0, -1])], (3, 2)),
        of(lambda x: jnp.take(x, np.array([0, 7]), 0, mode="clip"), (3, 2)),
        of(lambda x: jnp.take(x, np.array([0, 7]), 0, mode="fill", fill_value=0), (3, 2)),
        of(lambda x: jnp.take_along_axis(x, np.array([[1], [0], [1]]), 1), (3, 2)),
    ],
    "dynamic_update_slice": [
        of(lambda x, y: lax.dynamic_update_slice(x, y, (np.int32(1), np.int32(0))), (3, 3), (2, 2)),
        of(lambda x, y: lax.dynamic_update_slice(x, y, (np.int32(9), np.int32(-9))), (3, 3), (2, 2)),
    ],
    "scatter-add": [
        of(_scatter(lambda at, y, mode: at.add(y, mode=mode)), (3, 2), (2, 2)),
        of(lambda x, y: x.at[np.array([1, 1])].add(y), (3, 2), (2, 2)),
        of(lambda x, y: x.at[np.array([1, 7])].add(y, mode="drop"), (3, 2), (2, 2)),
        of(lambda x, y: x.at[:, np.array([1, 0])].add(y), (3, 2), (3, 2)),
    ],
    "scatter": [
        of(_scatter(lambda at, y, mode: at.set(y, mode=mode)), (3, 2), (2, 2)),
        of(lambda x, y: x.at[np.array([0, 1]), np.array([1, 0])].set(y), (3, 2), (2,)),
    ],
}
ALIASES = {"scatter_add": "scatter-add", "copy_p": "copy"}
"""Other names of primitives."""
NEWER = frozenset(name for name in ("one_minus_square",) if not hasattr(lax, name))
"""Primitives that the installed JAX doesn't have yet."""
COMMUTATIVE = frozenset(("add", "add_any", "mul", "max", "min", "and", "or", "eq", "ne", "clamp"))
"""Rules of which some case doesn't change when the first two operands are swapped."""
