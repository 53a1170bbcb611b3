"""Unknown faults of products with weights: of linear layers, hidden units and the head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from jax_transformer.parity.oracle import activations, formulas
from jax_transformer.parity.oracle.graph import Kind
from selftest.unknown import (
    Site,
    Unknown,
    Wrong,
    float32,
    require,
    to_bfloat16,
    to_int8,
    unknown,
)

# --- any of them


def _with_kernel(change: Callable[[Site, np.ndarray], np.ndarray]) -> Wrong:
    """The change of the weights: of the kernel, or of the embedding that is one."""

    def wrong(site: Site, right: np.ndarray) -> np.ndarray:
        name = "embedding" if "embedding" in site.parameters else "kernel"
        return site.compute(parameters={name: change(site, site.parameters[name])})

    return wrong


def _one_weight_off(site: Site, kernel: np.ndarray) -> np.ndarray:
    wrong = kernel.copy()
    wrong.flat[site.pick(kernel.size)] += kernel.std()
    return wrong


def _low_rank(site: Site, kernel: np.ndarray) -> np.ndarray:
    """Without its smallest singular value."""
    summed = site.inputs["x"].ndim - 2 if kernel.ndim > 2 else 1
    left, values, right = np.linalg.svd(kernel.reshape(int(np.prod(kernel.shape[:summed])), -1), full_matrices=False)
    require(len(values) > 1, "has only one")
    return ((left[:, :-1] * values[:-1]) @ right[:-1]).reshape(kernel.shape)


def feature_from_its_neighbour(site: Site, right: np.ndarray) -> np.ndarray:
    x = site.inputs["x"].copy()
    require(x.shape[-1] > 1, "needs two features")
    feature = site.pick(x.shape[-1])
    x[..., feature] = x[..., feature - 1]
    return site.compute(inputs={"x": x})


def part_of_the_sum_missing(site: Site, right: np.ndarray) -> np.ndarray:
    x = site.inputs["x"].copy()
    require(x.shape[-1] > 1, "needs two features")
    x[..., x.shape[-1] * 3 // 4 :] = 0.0
    return site.compute(inputs={"x": x})


def bias_added_twice(site: Site, right: np.ndarray) -> np.ndarray:
    return site.compute(parameters={"bias": 2.0 * site.parameters["bias"]})


# --- feed-forward


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a leaky ReLU of slope 0.05": lambda x: np.where(x > 0.0, x, 0.05 * x),
    "ReLU to the power of 1.5": lambda x: np.maximum(x, 0.0) ** 1.5,
    "ELU with α = 0.5": lambda x: np.where(x > 0.0, x, 0.5 * np.expm1(np.minimum(x, 0.0))),
    "log sigmoid": lambda x: -np.logaddexp(0.0, -x),
    "softsign": lambda x: x / (1.0 + np.abs(x)),
    "hard swish": lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "hard tanh": lambda x: np.clip(x, -1.0, 1.0),
    "hard sigmoid": lambda x: np.clip(x / 6.0 + 0.5, 0.0, 1.0),
}
"""None that a config can ask for, nor the catalogue names."""


def activated(activation: Callable[[np.ndarray], np.ndarray]) -> Wrong:
    """With this activation; of a gated layer, of the gate."""

    def wrong(site: Site, right: np.ndarray) -> np.ndarray:
        hidden, gate = _before_activation(site)
        return activation(hidden) if gate is None else activation(gate) * hidden

    return wrong


def _before_activation(site: Site) -> tuple[np.ndarray, np.ndarray | None]:
    """The hidden units and, if there is one, their gate: [B, T, F]."""
    weights, linear = site.parameters, replace(site.parts["spec"], activation="none")

    def product(kernel: str, bias: str) -> np.ndarray:
        return formulas.feed_forward_hidden(linear, site.inputs["x"], weights[kernel], weights.get(bias))

    return product("kernel", "bias"), product("gate_kernel", "gate_bias") if "gate_kernel" in weights else None


def _gated(site: Site) -> tuple[np.ndarray, np.ndarray]:
    hidden, gate = _before_activation(site)
    if gate is None:
        raise LookupError("needs a gate")
    return hidden, gate


def other_factor_activated_too(site: Site, right: np.ndarray) -> np.ndarray:
    hidden, gate = _gated(site)
    return activations.activation(site.parts["spec"], gate) * activations.activation(site.parts["spec"], hidden)


def other_factor_plus_one(site: Site, right: np.ndarray) -> np.ndarray:
    hidden, gate = _gated(site)
    return activations.activation(site.parts["spec"], gate) * (hidden + 1.0)


def large_ones_clipped(site: Site, right: np.ndarray) -> np.ndarray:
    return np.minimum(right, 0.5 * right.max())


def one_unit_dead(site: Site, right: np.ndarray) -> np.ndarray:
    wrong = right.copy()
    wrong[..., site.pick(right.shape[-1])] = 0.0
    return wrong


def bias_after_activation(site: Site, right: np.ndarray) -> np.ndarray:
    bias = site.parameters["bias"]
    return site.compute(parameters={"bias": np.zeros_like(bias)}) + bias


# --- the head, [B, T, V]


def two_tokens_exchanged(site: Site, right: np.ndarray) -> np.ndarray:
    wrong, pair = right.copy(), site.pick_two(right.shape[-1])
    wrong[..., pair] = right[..., pair[::-1]]
    return wrong


def soft_capped(site: Site, right: np.ndarray) -> np.ndarray:
    return 30.0 * np.tanh(right / 30.0)


def warmer(site: Site, right: np.ndarray) -> np.ndarray:
    return right / 1.01


def pad_suppressed(site: Site, right: np.ndarray) -> np.ndarray:
    wrong = right.copy()
    wrong[..., site.config.target.pad_id] = right.min(axis=-1) - 1.0
    return wrong


def bias_of_the_token_before(site: Site, right: np.ndarray) -> np.ndarray:
    return site.compute(parameters={"bias": np.roll(site.parameters["bias"], 1)})


_PRODUCTS: tuple[Kind, ...] = ("projection", "feed_forward_hidden", "logits")

OF_PRODUCTS: tuple[Unknown, ...] = (
    unknown("one weight is perturbed", _PRODUCTS, _with_kernel(_one_weight_off)),
    unknown("a kernel has lost its smallest singular value", _PRODUCTS, _with_kernel(_low_rank)),
    unknown(
        "a kernel is rounded to float32", _PRODUCTS, _with_kernel(lambda _, kernel: float32(kernel).astype(np.float64))
    ),
    unknown("a kernel is rounded to bfloat16", _PRODUCTS, _with_kernel(lambda _, kernel: to_bfloat16(kernel))),
    unknown("a kernel is rounded to 8 bits", _PRODUCTS, _with_kernel(lambda _, kernel: to_int8(kernel))),
    unknown("one feature is read from its neighbour", _PRODUCTS, feature_from_its_neighbour),
    unknown("a quarter of the features is not summed", _PRODUCTS, part_of_the_sum_missing),
    unknown("a bias is added twice", ("projection", "feed_forward_hidden"), bias_added_twice, ("bias",)),
    *(
        unknown(f"the activation is {name}", ("feed_forward_hidden",), activated(function))
        for name, function in ACTIVATIONS.items()
    ),
    unknown(
        "the ungated factor is activated too", ("feed_forward_hidden",), other_factor_activated_too, ("gate_kernel",)
    ),
    unknown("the ungated factor has 1 added", ("feed_forward_hidden",), other_factor_plus_one, ("gate_kernel",)),
    unknown("large hidden units are clipped", ("feed_forward_hidden",), large_ones_clipped),
    unknown("one hidden unit is dead", ("feed_forward_hidden",), one_unit_dead),
    unknown(
        "the hidden bias is added after the activation", ("feed_forward_hidden",), bias_after_activation, ("bias",)
    ),
    unknown("the logits of two tokens are exchanged", ("logits",), two_tokens_exchanged),
    unknown("logits are soft-capped at 30", ("logits",), soft_capped),
    unknown("logits have a temperature of 1.01", ("logits",), warmer),
    unknown("the logit of padding is suppressed", ("logits",), pad_suppressed),
    unknown("every token has the bias of the one before", ("logits",), bias_of_the_token_before, ("bias",)),
)
