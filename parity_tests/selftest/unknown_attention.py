"""Unknown faults of attention: of heads, logits, weights and context."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from jax_transformer.parity.oracle.graph import Kind
from selftest.unknown import Site, Unknown, require, to_bfloat16, unknown

# --- heads


def head_dropped(site: Site, right: np.ndarray) -> np.ndarray:
    def change(heads: np.ndarray) -> np.ndarray:
        wrong = heads.copy()
        wrong[:, :, site.pick(heads.shape[2])] = 0.0
        return wrong

    return _by_heads(site, right, change)


def heads_swapped(site: Site, right: np.ndarray) -> np.ndarray:
    def change(heads: np.ndarray) -> np.ndarray:
        wrong, pair = heads.copy(), site.pick_two(heads.shape[2])
        wrong[:, :, pair] = heads[:, :, pair[::-1]]
        return wrong

    return _by_heads(site, right, change)


def _by_heads(site: Site, right: np.ndarray, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The change of [B, T, N, H] done to the value, or, where it is of merged heads, to what they are merged from."""
    heads = right if right.ndim == 4 else site.inputs["x"]
    require(heads.ndim == 4 and heads.shape[2] > 1, "needs two heads")
    return change(heads) if right.ndim == 4 else site.compute(inputs={"x": change(heads)})


def bias_of_another_head(site: Site, right: np.ndarray) -> np.ndarray:
    bias = site.parameters["bias"]
    require(bias.ndim == 2, "needs a bias by heads")
    return site.compute(parameters={"bias": np.roll(bias, 1, axis=0)})


# --- logits, [B, N, Q, K]


def warmer(site: Site, right: np.ndarray) -> np.ndarray:
    return right / 1.01


def soft_capped(site: Site, right: np.ndarray) -> np.ndarray:
    return 30.0 * np.tanh(right / 30.0)


def clipped(site: Site, right: np.ndarray) -> np.ndarray:
    visible = site.inputs.get("mask", np.array(True))
    most = 0.5 * np.abs(np.where(visible, right, 0.0)).max()
    return np.clip(right, -most, most)


def lower_with_distance(site: Site, right: np.ndarray) -> np.ndarray:
    heads, queries, keys = right.shape[1:]
    slopes = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
    return right - slopes[:, None, None] * np.abs(np.arange(queries)[:, None] - np.arange(keys))


def second_query_is_the_first(site: Site, right: np.ndarray) -> np.ndarray:
    query = site.inputs["query"].copy()
    require(query.shape[1] > 1, "needs two queries")
    query[:, 1] = query[:, 0]
    return site.compute(inputs={"query": query})


def lower_for_itself(site: Site, right: np.ndarray) -> np.ndarray:
    require(right.shape[-2] == right.shape[-1], "needs as many keys as queries")
    return right - np.eye(right.shape[-1])


def queries_and_keys_normed(site: Site, right: np.ndarray) -> np.ndarray:
    def normed(x: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 1e-6)

    return site.compute(inputs={name: normed(site.inputs[name]) for name in ("query", "key")})


def one_key_head_for_all(site: Site, right: np.ndarray) -> np.ndarray:
    key = site.inputs["key"]
    return site.compute(inputs={"key": np.broadcast_to(key[:, :, :1], key.shape)})


def bias_larger(site: Site, right: np.ndarray) -> np.ndarray:
    return site.compute(inputs={"position_bias": 1.01 * site.inputs["position_bias"]})


# --- weights, [B, N, Q, K]


def one_in_the_denominator(site: Site, right: np.ndarray) -> np.ndarray:
    logits = site.inputs["logits"]
    most = logits.max(axis=-1, keepdims=True)
    total = np.exp(logits - most).sum(axis=-1, keepdims=True)
    return right * (total / (total + np.exp(-most)))


def smallest_dropped(site: Site, right: np.ndarray) -> np.ndarray:
    smallest = np.where(right > 0.0, right, np.inf).min(axis=-1, keepdims=True)
    return _renormalised(right, right > smallest)


def largest_two(site: Site, right: np.ndarray) -> np.ndarray:
    require(right.shape[-1] > 2, "needs three keys")
    return _renormalised(right, right >= np.sort(right, axis=-1)[..., -2:-1])


def _renormalised(weights: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Those that are kept, to sum to 1; where none is, all."""
    left = np.where(kept, weights, 0.0)
    total = left.sum(axis=-1, keepdims=True)
    return np.where(total > 0.0, left / total, weights)


def sparsemax(site: Site, right: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex (Martins & Astudillo 2016)."""
    logits = site.inputs["logits"] - site.inputs["logits"].max(axis=-1, keepdims=True)
    falling = -np.sort(-logits, axis=-1)
    number = np.arange(1, logits.shape[-1] + 1)
    in_support = 1.0 + number * falling > falling.cumsum(axis=-1)
    size = in_support.sum(axis=-1, keepdims=True)
    threshold = (np.where(in_support, falling, 0.0).sum(axis=-1, keepdims=True) - 1.0) / size
    return np.maximum(logits - threshold, 0.0)


def small_ones_cut(site: Site, right: np.ndarray) -> np.ndarray:
    return np.where(right < 1.0 / right.shape[-1], 0.0, right)


def powers_of_two(site: Site, right: np.ndarray) -> np.ndarray:
    return site.compute(inputs={"logits": site.inputs["logits"] * math.log(2.0)})


def smoothed(site: Site, right: np.ndarray) -> np.ndarray:
    return 0.99 * right + 0.01 / right.shape[-1]


def one_head_uniform(site: Site, right: np.ndarray) -> np.ndarray:
    require(right.shape[1] > 1, "needs two heads")
    wrong = right.copy()
    wrong[:, site.pick(right.shape[1])] = 1.0 / right.shape[-1]
    return wrong


# --- context


def value_before(site: Site, right: np.ndarray) -> np.ndarray:
    return site.compute(inputs={"value": np.roll(site.inputs["value"], 1, axis=1)})


def one_value_head_for_all(site: Site, right: np.ndarray) -> np.ndarray:
    value = site.inputs["value"]
    return site.compute(inputs={"value": np.broadcast_to(value[:, :, :1], value.shape)})


def weights_in_bfloat16(site: Site, right: np.ndarray) -> np.ndarray:
    return site.compute(inputs={"weights": to_bfloat16(site.inputs["weights"])})


# --- rotary positions and factors of heads


def first_features_not_turned(site: Site, right: np.ndarray) -> np.ndarray:
    wrong = right.copy()
    wrong[..., :2] = site.inputs["x"][..., :2]
    return wrong


def turned_one_percent_more(site: Site, right: np.ndarray) -> np.ndarray:
    """Each position a hundredth further, in the first two features as they stand."""
    wrong, angle = right.copy(), 0.01 * np.arange(right.shape[1])[:, None]
    first, second = right[..., 0], right[..., 1]
    wrong[..., 0] = first * np.cos(angle) - second * np.sin(angle)
    wrong[..., 1] = first * np.sin(angle) + second * np.cos(angle)
    return wrong


def one_heads_factor_left_out(site: Site, right: np.ndarray) -> np.ndarray:
    wrong, head = right.copy(), site.pick(right.shape[2])
    wrong[:, :, head] = site.inputs["x"][:, :, head]
    return wrong


def factors_of_the_next_heads(site: Site, right: np.ndarray) -> np.ndarray:
    require(right.shape[2] > 1, "needs two heads")
    return site.compute(parameters={"scale": np.roll(site.parameters["scale"], 1)})


_HEADS: tuple[Kind, ...] = ("projection", "context", "merge_heads")

OF_ATTENTION: tuple[Unknown, ...] = (
    unknown("one head is dropped", _HEADS, head_dropped),
    unknown("two heads are swapped", _HEADS, heads_swapped),
    unknown("heads have each other's biases", ("projection",), bias_of_another_head, ("bias",)),
    unknown("attention has a temperature of 1.01", ("attention_logits",), warmer),
    unknown("attention logits are soft-capped at 30", ("attention_logits",), soft_capped),
    unknown("attention logits are clipped", ("attention_logits",), clipped),
    unknown("attention logits fall with the distance (ALiBi)", ("attention_logits",), lower_with_distance),
    unknown("the second query is the first again", ("attention_logits",), second_query_is_the_first),
    unknown("attention logits of a position with itself are 1 too low", ("attention_logits",), lower_for_itself),
    unknown("queries and keys are normed", ("attention_logits",), queries_and_keys_normed),
    unknown("all heads have the first one's keys", ("attention_logits",), one_key_head_for_all),
    unknown("the position bias is added 1 % too large", ("attention_logits",), bias_larger, ("position_bias",)),
    unknown("softmax has 1 more in its denominator", ("attention_weights",), one_in_the_denominator),
    unknown("the smallest attention weight is dropped", ("attention_weights",), smallest_dropped),
    unknown("all but the two largest attention weights are dropped", ("attention_weights",), largest_two),
    unknown("attention weights are sparsemax's", ("attention_weights",), sparsemax),
    unknown("small attention weights are cut off", ("attention_weights",), small_ones_cut),
    unknown("softmax takes powers of two", ("attention_weights",), powers_of_two),
    unknown("attention weights are smoothed by a hundredth", ("attention_weights",), smoothed),
    unknown("one head attends to everything alike", ("attention_weights",), one_head_uniform),
    unknown("attention reads the value before", ("context",), value_before),
    unknown("all heads have the first one's values", ("context",), one_value_head_for_all),
    unknown("the first two features are not turned", ("rotation",), first_features_not_turned),
    unknown("two features are turned further by a hundredth", ("rotation",), turned_one_percent_more),
    unknown("one head's factor is left out", ("head_scale",), one_heads_factor_left_out),
    unknown("heads have each other's factors", ("head_scale",), factors_of_the_next_heads),
    unknown("attention weights are rounded to bfloat16 for the context", ("context",), weights_in_bfloat16),
)
