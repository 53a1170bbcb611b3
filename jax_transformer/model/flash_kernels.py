"""The kernels of `flash`: attention and its gradients, one block of logits at a time (Dao 2023, §3.1).

Arrays have keys in rows and queries in columns: logits [K, Q], heads [H, Q] and [H, K]. Statistics of a query (its
largest logit, the sum of its weights) are then a row, which broadcasts over a block at no cost, and 64 features don't
leave half of a TPU's 128 lanes to padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton

from jax_transformer.model.dropout import keep_threshold, random_words_at
from jax_transformer.model.dtypes import at_least_float32
from jax_transformer.model.flash_operands import AXES, Gradients, Operands, Plan

BIAS_BLOCK = 256
"""The largest block of the bias's gradient: it needs the queries and keys of all sentences at once."""
VMEM = 100 * 2**20
"""The bytes of a TPU's vector memory that a kernel may use, of 128 MiB."""


def forward(plan: Plan, x: Operands) -> tuple[jax.Array, jax.Array]:
    """Returns the context [B, N, H, Q], and for every query its largest logit and the inverse of its weights' sum,
    [B, N, 2, Q]."""
    batch, heads, _, queries = x.query.shape
    statistics_like = jax.ShapeDtypeStruct((batch, heads, 2, queries), at_least_float32(x.query.dtype))
    results = {"context": _like(x.query), "statistics": statistics_like}
    context, statistics = _call(_forward_kernel, plan, _order("Q", x), x._asdict(), results)
    return context, statistics


def backward(plan: Plan, x: Operands, statistics: jax.Array, context: jax.Array, gradient: jax.Array) -> Gradients:
    """Returns the gradients, from the results of `forward` and the gradient [B, N, H, Q] of the context."""
    wide = at_least_float32(x.query.dtype)
    operands = x._asdict() | {"gradient": gradient, "statistics": statistics}
    if x.query.dtype == wide:
        like_inner = jax.ShapeDtypeStruct((*statistics.shape[:2], 1, statistics.shape[3]), wide)
        (inner,) = _call(_inner_kernel, plan, _order("Q", x), operands, {"inner": like_inner})  # [B, N, 1, Q]
    else:
        inner = jnp.sum(context.astype(wide) * gradient.astype(wide), axis=2, keepdims=True)
    operands["statistics"] = jnp.concatenate([statistics, inner], axis=2)
    (to_query,) = _call(_query_kernel, plan, _order("Q", x), operands, {"to_query": _like(x.query)})
    results = {"to_key": _like(x.key), "to_value": _like(x.value)}
    to_key, to_value = _call(_key_value_kernel, plan, _order("K", x), operands, results)
    if x.bias is None:
        return Gradients(to_query, to_key, to_value, None)
    small = replace(plan, **{name: min(getattr(plan, name), BIAS_BLOCK) for name in ("block_queries", "block_keys")})
    (to_bias,) = _call(_bias_kernel, small, "NKQ", operands, {"to_bias": jax.ShapeDtypeStruct(x.bias.shape, wide)})
    return Gradients(to_query, to_key, to_value, to_bias.astype(x.bias.dtype))


def _order(blocks: str, x: Operands) -> str:
    """Returns the axes of a kernel's grid, the innermost last: heads if all share a large mask, so that a mask block is
    loaded once for all heads; otherwise blocks, so that a head's shared operands are loaded once."""
    is_large = x.mask is not None and min(x.mask.shape[1:]) > 1
    return f"B{blocks}N" if is_large else f"BN{blocks}"


def _like(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


# --- the kernels; `refs` holds a reference to each operand's part by name, and `ids` the number of the part by axis


def _forward_kernel(plan: Plan, ids: dict[str, Any], refs: SimpleNamespace) -> None:
    """Computes the context of a block of queries."""
    query = refs.query[...]
    wide = at_least_float32(query.dtype)

    def add_keys(number: Any, sums: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        context, largest, total = sums
        at = _Place(ids["B"], ids["N"], number, ids["Q"])
        value = _part(refs.value, number, plan.block_keys)
        logits = _logits(plan, refs, _part(refs.key, number, plan.block_keys), query, at)
        new_largest = jnp.maximum(largest, jnp.max(logits, axis=0, keepdims=True))  # [1, Q]
        shrink, weights = jnp.exp(largest - new_largest), jnp.exp(logits - new_largest)
        total = total * shrink + jnp.sum(weights, axis=0, keepdims=True)
        context = context * shrink + _product(value, _kept(plan, refs, weights, at).astype(value.dtype), 1, 0)
        return context, new_largest, total

    none = jnp.zeros((1, plan.block_queries), wide)
    lowest = jnp.full_like(none, jnp.finfo(wide).min)
    first, end = _span(refs.key_spans, ids["B"], ids["Q"], pl.cdiv(plan.keys, plan.block_keys))
    context, largest, total = jax.lax.fori_loop(first, end, add_keys, (jnp.zeros(query.shape, wide), lowest, none))
    refs.context[...] = (context / total).astype(refs.context.dtype)
    refs.statistics[0:1, :] = largest
    refs.statistics[1:2, :] = 1.0 / total


def _inner_kernel(plan: Plan, ids: dict[str, Any], refs: SimpleNamespace) -> None:
    """Computes the inner product of a query's weights and their gradients.

    The inner product of the context and its gradient is the same number with different rounding. If one weight is
    nearly 1, its logit's gradient is the difference between the weight's gradient and this product, and different
    rounding would dominate it: in TensorFloat-32, the gradients of keys were off by twice their size.
    """
    query, gradient = refs.query[...], refs.gradient[...]
    largest, inverse = (refs.statistics[pl.ds(row, 1)] for row in range(2))

    def add_keys(number: Any, inner: jax.Array) -> jax.Array:
        at = _Place(ids["B"], ids["N"], number, ids["Q"])
        key, value = (_part(ref, number, plan.block_keys) for ref in (refs.key, refs.value))
        weights = jnp.exp(_logits(plan, refs, key, query, at) - largest) * inverse
        to_weights = _kept(plan, refs, _product(value, gradient, 0, 0), at)
        return inner + jnp.sum(weights * to_weights, axis=0, keepdims=True)

    first, end = _span(refs.key_spans, ids["B"], ids["Q"], pl.cdiv(plan.keys, plan.block_keys))
    refs.inner[...] = jax.lax.fori_loop(first, end, add_keys, jnp.zeros_like(largest))


def _query_kernel(plan: Plan, ids: dict[str, Any], refs: SimpleNamespace) -> None:
    """Computes the gradient of a block of queries."""
    query, gradient, statistics = refs.query[...], refs.gradient[...], _statistics(refs.statistics)

    def add_keys(number: Any, to_query: jax.Array) -> jax.Array:
        at = _Place(ids["B"], ids["N"], number, ids["Q"])
        key, value = (_part(ref, number, plan.block_keys) for ref in (refs.key, refs.value))
        _, to_logits = _weights_and_gradient(plan, refs, key, value, query, gradient, statistics, at)
        return to_query + _product(key, to_logits.astype(key.dtype), 1, 0)

    first, end = _span(refs.key_spans, ids["B"], ids["Q"], pl.cdiv(plan.keys, plan.block_keys))
    nothing = jnp.zeros(query.shape, at_least_float32(query.dtype))
    to_query = jax.lax.fori_loop(first, end, add_keys, nothing) * plan.scale
    refs.to_query[...] = to_query.astype(query.dtype)


def _key_value_kernel(plan: Plan, ids: dict[str, Any], refs: SimpleNamespace) -> None:
    """Computes the gradients of a block of keys and of their values."""
    key, value = refs.key[...], refs.value[...]

    def add_queries(number: Any, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        to_key, to_value = sums
        at = _Place(ids["B"], ids["N"], ids["K"], number)
        query, gradient = (_part(ref, number, plan.block_queries) for ref in (refs.query, refs.gradient))
        statistics = _statistics(refs.statistics, _slice(number, plan.block_queries))
        weights, to_logits = _weights_and_gradient(plan, refs, key, value, query, gradient, statistics, at)
        to_key = to_key + _product(query, to_logits.astype(query.dtype), 1, 1)
        return to_key, to_value + _product(gradient, weights.astype(gradient.dtype), 1, 1)

    first, end = _span(refs.query_spans, ids["B"], ids["K"], pl.cdiv(plan.queries, plan.block_queries))
    nothing = jnp.zeros(key.shape, at_least_float32(key.dtype))
    to_key, to_value = jax.lax.fori_loop(first, end, add_queries, (nothing, nothing))
    refs.to_key[...] = (to_key * plan.scale).astype(key.dtype)
    refs.to_value[...] = to_value.astype(value.dtype)


def _bias_kernel(plan: Plan, ids: dict[str, Any], refs: SimpleNamespace) -> None:
    """Computes the gradient of a block of the bias, which all sentences share."""

    def add_sentence(number: Any, to_bias: jax.Array) -> jax.Array:
        at = _Place(number, ids["N"], ids["K"], ids["Q"])
        key, value, query, gradient = (ref[number] for ref in (refs.key, refs.value, refs.query, refs.gradient))
        statistics = _statistics(refs.statistics, number)
        return to_bias + _weights_and_gradient(plan, refs, key, value, query, gradient, statistics, at)[1]

    refs.to_bias[...] = jax.lax.fori_loop(0, refs.query.shape[0], add_sentence, jnp.zeros_like(refs.to_bias))


class _Statistics(NamedTuple):
    """Holds a row [1, Q] of each number that belongs to a query."""

    largest: jax.Array
    """Its largest logit."""
    inverse: jax.Array
    """One over the sum of its weights before they are divided by it."""
    inner: jax.Array
    """The inner product of its weights and their gradients, which is that of its context and the context's."""


def _statistics(ref: Any, part: Any = slice(None)) -> _Statistics:
    """Returns rows of a reference [3, Q], for some queries; or those of sentence `part` of [B, 3, Q]."""
    rows = [pl.ds(row, 1) for row in range(3)]  # one by one, since Triton loads no three at once
    return _Statistics(*(ref[row, part] if len(ref.shape) == 2 else ref[part, row, :] for row in rows))


class _Place(NamedTuple):
    """Locates a block of logits."""

    batch: Any
    head: Any
    key_block: Any
    query_block: Any


def _logits(plan: Plan, refs: SimpleNamespace, key: jax.Array, query: jax.Array, at: _Place) -> jax.Array:
    """Returns the logits [K, Q] of a block, after bias and mask."""
    logits = _product(key, query, 0, 0) * plan.scale
    if refs.bias is not None:
        logits = logits + _block(plan, refs.bias, at).astype(logits.dtype)
    if refs.mask is not None:
        masked_value = jnp.finfo(logits.dtype).min if plan.masked_value is None else plan.masked_value
        logits = jnp.where(_allowed(plan, refs, logits, at), logits, np.asarray(masked_value, logits.dtype))
    if plan.keys % plan.block_keys:
        numbers = at.key_block * plan.block_keys + jax.lax.broadcasted_iota(jnp.int32, logits.shape, 0)
        logits = jnp.where(numbers < plan.keys, logits, -jnp.inf)
    return logits


def _allowed(plan: Plan, refs: SimpleNamespace, logits: jax.Array, at: _Place) -> jax.Array:
    """Returns a mask of the logits of a block that may be attended."""
    return jnp.broadcast_to(_block(plan, refs.mask, at).astype(jnp.int32), logits.shape) != 0


def _weights_and_gradient(
    plan: Plan,
    refs: SimpleNamespace,
    key: jax.Array,
    value: jax.Array,
    query: jax.Array,
    gradient: jax.Array,
    statistics: _Statistics,
    at: _Place,
) -> tuple[jax.Array, jax.Array]:
    """Returns the weights [K, Q] of a block after dropout, and the gradient [K, Q] of its logits before the scale."""
    logits = _logits(plan, refs, key, query, at)
    weights = jnp.exp(logits - statistics.largest) * statistics.inverse
    to_weights = _kept(plan, refs, _product(value, gradient, 0, 0), at)
    to_logits = weights * (to_weights - statistics.inner)
    if refs.mask is not None:
        to_logits = jnp.where(_allowed(plan, refs, logits, at), to_logits, 0.0)
    return _kept(plan, refs, weights, at), to_logits


def _kept(plan: Plan, refs: SimpleNamespace, weights: jax.Array, at: _Place) -> jax.Array:
    """Applies dropout to weights [K, Q], the same as to the whole array [B, N, Q, K]."""
    if plan.dropout_rate == 0.0:
        return weights
    first, second = refs.words[0], refs.words[1]
    row, column = (jax.lax.broadcasted_iota(jnp.uint32, weights.shape, axis) for axis in (0, 1))
    sentence = at.batch * plan.heads + at.head  # int32 may wrap around: its bits equal uint32's
    origin = (sentence * plan.queries + at.query_block * plan.block_queries) * plan.keys
    origin = (origin + at.key_block * plan.block_keys).astype(jnp.uint32)
    index = first + origin + row + column * np.uint32(plan.keys)
    keeps = random_words_at(index, second) < keep_threshold(plan.dropout_rate)
    return jnp.where(keeps, weights * (1.0 / (1.0 - plan.dropout_rate)), 0.0)


def _product(left: jax.Array, right: jax.Array, left_axis: int, right_axis: int) -> jax.Array:
    """Returns the product of two matrices over one axis of each, summed in at least float32."""
    axes = (((left_axis,), (right_axis,)), ((), ()))
    return jax.lax.dot_general(left, right, axes, preferred_element_type=at_least_float32(left.dtype))


def _block(plan: Plan, ref: Any, at: _Place) -> jax.Array:
    """Returns the part of a mask or bias [K, Q] for a block, where an axis of size 1 serves all; from a mask of all
    sentences, [B, K, Q], also selects the sentence."""
    sizes = (at.key_block, plan.block_keys), (at.query_block, plan.block_queries)
    keys, queries = ref.shape[-2:]
    index = [
        _slice(*size) if length > size[1] else slice(None) for length, size in zip((keys, queries), sizes, strict=True)
    ]
    if len(ref.shape) == 3:
        index.insert(0, at.batch if ref.shape[0] > 1 else 0)
    return ref[tuple(index)]


def _part(ref: Any, number: Any, size: int) -> jax.Array:
    """Returns block `number` of a reference [H, length]."""
    return ref[:, _slice(number, size)]


def _slice(number: Any, size: int) -> Any:
    return pl.ds(pl.multiple_of(number * size, size), size)


def _span(spans: Any, batch: Any, block: Any, count: int) -> tuple[Any, Any]:
    """Returns the first and the last block, exclusive, that this block needs."""
    if spans is None:
        return 0, count
    batch = batch if spans.shape[0] > 1 else 0
    return spans[batch, block, 0], spans[batch, block, 1]


# --- calls

PRODUCTS = {_forward_kernel: 2, _inner_kernel: 2, _query_kernel: 3, _key_value_kernel: 4, _bias_kernel: 2}
"""Number of products of [K, H] and [H, Q], or of that size, in a kernel."""


def kernel_flops(name: str, shapes: Sequence[tuple[int, ...]]) -> float:
    """Returns the floating-point operations of a kernel's products, from its name in a compiled program and the shapes
    of its operands; 0 for other kernels. Skipped blocks count, too."""
    products = next((count for kernel, count in PRODUCTS.items() if _name(kernel) in name), 0)
    return 2.0 * products * math.prod(shapes[0]) * shapes[1][3] if products else 0.0


def _name(kernel: Callable[..., None]) -> str:
    return f"attention{kernel.__name__}"


def _call(
    kernel: Callable[[Plan, dict[str, Any], SimpleNamespace], None],
    plan: Plan,
    grid: str,
    operands: Mapping[str, jax.Array | None],
    results: Mapping[str, jax.ShapeDtypeStruct],
) -> Sequence[jax.Array]:
    """Runs a kernel for every cell of a grid; absent operands are None in the kernel."""
    present = {name: array for name, array in operands.items() if array is not None}
    lengths = {"B": present["query"].shape[0], "N": present["query"].shape[1]}
    lengths |= {"K": present["key"].shape[3] // plan.block_keys, "Q": present["query"].shape[3] // plan.block_queries}

    def run(*references: Any) -> None:
        ids = {axis: pl.program_id(number) for number, axis in enumerate(grid)}
        by_name = zip([*present, *results], references, strict=True)
        kernel(plan, ids, SimpleNamespace(**dict.fromkeys(operands) | dict(by_name)))

    options: dict[str, Any] = {"interpret": True}
    if plan.platform == "tpu":
        options = {"compiler_params": pltpu.CompilerParams(vmem_limit_bytes=VMEM)}
    elif plan.platform == "gpu":
        options = {"compiler_params": triton.CompilerParams(num_warps=4, num_stages=2)}
    results_of: Callable[..., Sequence[jax.Array]] = pl.pallas_call(
        run,
        name=_name(kernel),
        grid=tuple(lengths[axis] for axis in grid),
        in_specs=[_part_of(plan, grid, name, array.shape) for name, array in present.items()],
        out_specs=[_part_of(plan, grid, name, result.shape) for name, result in results.items()],
        out_shape=list(results.values()),
        **options,
    )
    return results_of(*present.values())


def _part_of(plan: Plan, grid: str, name: str, shape: tuple[int, ...]) -> pl.BlockSpec:
    """Returns the block of an operand or result in a kernel: along an axis of the grid one sentence, head or block (all
    of it if it has size 1); all along other axes."""
    if name not in AXES:  # a TPU's scalar unit reads numbers from a memory of its own
        return pl.BlockSpec(memory_space=pltpu.SMEM) if plan.platform == "tpu" else pl.BlockSpec()
    steps: dict[str, int | None] = {"B": None, "N": None, "K": plan.block_keys, "Q": plan.block_queries}
    axes = [axis if axis in grid else "" for axis in AXES[name]]
    sizes = [
        size if not axis or (size == 1 and steps[axis]) else steps[axis] for axis, size in zip(axes, shape, strict=True)
    ]

    def index(*ids: Any) -> tuple[Any, ...]:
        return tuple(ids[grid.index(axis)] if axis and size > 1 else 0 for axis, size in zip(axes, shape, strict=True))

    return pl.BlockSpec(tuple(sizes), index)
