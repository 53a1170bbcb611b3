"""Attention in blocks, which never materializes all its weights (Dao et al. 2022), on TPUs and GPUs.

It computes the same function as `attention.reference_attention`, for any Boolean mask: a fully masked row attends to
all keys equally, and dropout drops the same weights. Only rounding differs. The kernels are in `flash_kernels`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from jax_transformer.model.dropout import DropoutKey, words_of
from jax_transformer.model.flash_operands import AXES, Gradients, Operands, Plan
from jax_transformer.model.sharding import Axis, device_number, on_each_device, platform, row_shards, spec, width_shards

SAVED = "flash_attention"
"""The name of the results that rematerialisation keeps."""
BLOCKS = {"tpu": (512, 256, 128), "gpu": (64,)}
"""Block sizes of queries or keys by platform, the best first. Lengths are padded to a multiple of the last."""
FROM_TOKENS = {"tpu": 256, "gpu": 128}
"""From how many queries or keys on the kernels need less memory, and read and write less of it, than logits and weights
that XLA computes whole (docs/devices.md has the figures)."""
INTERPRETED_BLOCKS = (16, 8)
"""The same for interpreted kernels."""
FEATURES = 16
"""A head's features are padded to a multiple of this, and on a GPU to a power of two."""
HEADS: tuple[Axis, ...] = ("rows", "width", None, None)
"""The mesh axes of an array [B, N, …] of heads."""


def is_better(query: jax.Array, key: jax.Array, mask: jax.Array | None = None) -> bool:
    """Returns whether the kernels compute an attention of query [B, Q, N, H] and key [B, K, N, H] better than XLA does
    on the platform of the devices. A mask of each head's own is none for them."""
    if mask is not None and _serves_some_heads(mask):
        return False
    batch, queries, heads, _ = query.shape
    is_divided = batch % row_shards() == 0 and heads % width_shards() == 0
    is_narrow = query.dtype.itemsize <= 4
    return is_divided and is_narrow and max(queries, key.shape[1]) >= FROM_TOKENS.get(platform(), math.inf)


def _serves_some_heads(mask: jax.Array) -> bool:
    return mask.ndim > 2 and mask.shape[-3] > 1


def flash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    scale: float,
    masked_value: float | None = None,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey = None,
) -> jax.Array:
    """Returns softmax(query · key · scale + bias) · value.

    Args:
      query: [B, Q, N, H].
      key: [B, K, N, H].
      value: [B, K, N, H].
      mask: Boolean [B, 1, Q, K] or broadcastable, True = may attend; None: no masking.
      bias: added to the scaled logits, [1, N, Q, K]; None adds nothing.
      scale: factor of the logits.
      masked_value: replaces masked logits; None: the lowest finite number of their dtype.
      dropout_rate: dropout rate of the weights.
      dropout_key: key of their dropout; None: no dropout.

    Returns:
      The context [B, Q, N, H], in the values' dtype.

    Raises:
      ValueError: float64 on a TPU or GPU; a mask that differs between heads.
    """
    if query.dtype == jnp.float64 and platform() in BLOCKS:
        raise ValueError(f"attention_path='flash': expected float32 or narrower on a {platform()}; received float64")
    if mask is not None:
        if _serves_some_heads(mask):
            raise ValueError(
                f"attention_path='flash': expected a mask [B, 1, Q, K] for all heads; received {mask.shape}"
            )
        mask = jnp.reshape(mask, (1,) * (4 - mask.ndim) + mask.shape)
    words = None if dropout_key is None or dropout_rate == 0.0 else jnp.stack(words_of(dropout_key))
    plan = Plan(
        queries=query.shape[1],
        keys=key.shape[1],
        heads=query.shape[2],
        scale=scale,
        masked_value=masked_value,
        dropout_rate=0.0 if words is None else dropout_rate,
        platform=platform(),
        block_queries=_block(query.shape[1]),
        block_keys=_block(key.shape[1]),
    )
    query, key, value = (jnp.moveaxis(array, 1, 3) for array in (query, key, value))  # [B, N, H, T]
    operands = Operands(
        query,
        key,
        value,
        mask=None if mask is None else jnp.swapaxes(mask[:, 0], 1, 2).astype(jnp.int8),  # [B, K, Q]
        bias=None if bias is None else jnp.swapaxes(_for_all_heads(bias, plan)[0], 1, 2),  # [N, K, Q]
        words=words,
    )
    context = _attend(plan, _with_spans(plan, _filled(plan, operands)))
    return jnp.moveaxis(context[:, :, : value.shape[2], : plan.queries], 3, 1)


def _for_all_heads(bias: jax.Array, plan: Plan) -> jax.Array:
    return jnp.broadcast_to(bias, (1, plan.heads, plan.queries, plan.keys))


def _block(length: int) -> int:
    """Returns the size of the blocks into which `length` tokens are divided."""
    sizes = BLOCKS.get(platform(), INTERPRETED_BLOCKS)
    filled = -(-length // sizes[-1]) * sizes[-1]
    return next(size for size in sizes if filled % size == 0)


def _features(plan: Plan, features: int) -> int:
    """Returns the padded number of features of a head."""
    features += -features % FEATURES
    return 1 << (features - 1).bit_length() if plan.platform == "gpu" else features


def _filled(plan: Plan, x: Operands) -> Operands:
    """Returns the operands with zeros at the end of axes that don't fill their last block."""
    more = {
        "H": _features(plan, x.query.shape[2]) - x.query.shape[2],
        "K": -plan.keys % plan.block_keys,
        "Q": -plan.queries % plan.block_queries,
    }

    def filled(name: str, array: jax.Array | None) -> jax.Array | None:
        if array is None or name not in AXES:
            return array
        serves_all = name == "mask"  # an axis of size 1 of it
        widths = [
            0 if size == 1 and serves_all else more.get(axis, 0)
            for axis, size in zip(AXES[name], array.shape, strict=True)
        ]
        return jnp.pad(array, [(0, width) for width in widths]) if any(widths) else array

    arrays: dict[str, Any] = {name: filled(name, array) for name, array in x._asdict().items()}
    return Operands(**arrays)


def _with_spans(plan: Plan, x: Operands) -> Operands:
    """Adds the range of blocks to compute for each block: those with a visible key; all of them for a block with a
    fully masked query."""
    if x.mask is None:
        return x
    counts = x.key.shape[3] // plan.block_keys, x.query.shape[3] // plan.block_queries
    visible = x.mask != 0
    blind = ~visible.any(axis=1, keepdims=True)  # [B, 1, Q]
    blind &= jnp.arange(blind.shape[2]) < plan.queries  # queries that only pad a block need no keys
    sizes = plan.block_keys, plan.block_queries
    needed = _any_in_blocks(visible, sizes, counts) | _any_in_blocks(blind, sizes, counts)  # [B, K blocks, Q blocks]
    return x._replace(key_spans=_spans(jnp.swapaxes(needed, 1, 2)), query_spans=_spans(needed))


def _any_in_blocks(array: jax.Array, sizes: tuple[int, int], counts: tuple[int, int]) -> jax.Array:
    """Returns whether any element of each block is true: [B, K or 1, Q or 1] → [B, K blocks, Q blocks]."""
    for axis, size in enumerate(sizes, start=1):
        if array.shape[axis] > 1:
            array = array.reshape(*array.shape[:axis], -1, size, *array.shape[axis + 1 :]).any(axis=axis + 1)
    return jnp.broadcast_to(array, (len(array), *counts))


def _spans(needed: jax.Array) -> jax.Array:
    """Returns the range, from first to last + 1, of true elements along the last axis of [B, I, J]: int32 [B, I, 2]."""
    numbers = jnp.arange(needed.shape[2])
    first = jnp.min(jnp.where(needed, numbers, needed.shape[2]), axis=2)
    end = jnp.max(jnp.where(needed, numbers + 1, 0), axis=2)
    return jnp.stack([jnp.minimum(first, end), end], axis=2).astype(jnp.int32)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, x: Operands) -> jax.Array:
    return _attend_forward(plan, x)[0]


def _attend_forward(plan: Plan, x: Operands) -> tuple[jax.Array, tuple[Operands, jax.Array, jax.Array]]:
    from jax_transformer.model import flash_kernels  # takes Pallas a quarter of a second

    def kernel(x: Operands) -> Any:
        return flash_kernels.forward(plan, _on_this_device(plan, x))

    heads = spec(*HEADS)
    context, statistics = on_each_device(kernel, (_specs(x),), (heads, heads))(x)
    context, statistics = (checkpoint_name(array, SAVED) for array in (context, statistics))
    return context, (x, statistics, context)


def _attend_backward(plan: Plan, saved: tuple[Operands, jax.Array, jax.Array], gradient: jax.Array) -> tuple[Operands]:
    from jax_transformer.model import flash_kernels

    x, statistics, context = saved

    def kernel(x: Operands, statistics: jax.Array, context: jax.Array, gradient: jax.Array) -> Gradients:
        gradients = flash_kernels.backward(plan, _on_this_device(plan, x), statistics, context, gradient)
        return gradients._replace(bias=None if gradients.bias is None else gradients.bias[None])

    heads: Any = spec(*HEADS)
    results = Gradients(heads, heads, heads, None if x.bias is None else heads)
    on_devices = on_each_device(kernel, (_specs(x), heads, heads, heads), results)
    gradients = on_devices(x, statistics, context, gradient)  # the bias's for each share of the rows
    to_bias = None if gradients.bias is None else gradients.bias.sum(axis=0)
    return (Operands(gradients.query, gradients.key, gradients.value, bias=to_bias),)


def _specs(x: Operands) -> Any:
    """Returns the sharding of the operands on a mesh."""
    specs = {"query": spec(*HEADS), "key": spec(*HEADS), "value": spec(*HEADS), "words": spec(None)}
    specs["bias"] = spec("width", None, None)
    arrays = {name: array for name, array in x._asdict().items() if array is not None}
    lies: dict[str, Any] = {name: specs.get(name) or _sentence_spec(array) for name, array in arrays.items()}
    return Operands(**lies)


def _sentence_spec(array: jax.Array) -> PartitionSpec:
    return spec("rows" if len(array) > 1 else None, None, None)


def _on_this_device(plan: Plan, x: Operands) -> Operands:
    """Returns a device's operands, with the dropout key advanced to the device's part of the weights."""
    if x.words is None:
        return x
    batch, heads = x.query.shape[:2]
    before = device_number("rows") * batch * plan.heads + device_number("width") * heads
    origin = jnp.asarray(before * plan.queries * plan.keys).astype(jnp.uint32)
    return x._replace(words=x.words + jnp.stack([origin, jnp.zeros_like(origin)]))


_attend.defvjp(_attend_forward, _attend_backward)
