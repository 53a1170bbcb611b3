"""Faults of the feed-forward's hidden layer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from jax_transformer.parity.truth.graph import Kind
from jax_transformer.parity.variants.replay import Variant, configured, exchanged

if TYPE_CHECKING:
    from jax_transformer.config import TransformerConfig


ACTIVATIONS = {"relu": "ReLU", "gelu": "exact GELU", "gelu_tanh": "tanh GELU", "silu": "SiLU", "none": "no activation"}


def feed_forward(config: TransformerConfig) -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("feed_forward_hidden",)
    for activation, name in ACTIVATIONS.items():
        if activation != config.activation:
            yield configured(name, kinds, activation=activation)
    swapped = {"kernel": "gate_kernel", "gate_kernel": "kernel", "bias": "gate_bias", "gate_bias": "bias"}
    yield Variant("gate and hidden layer swapped", kinds, partial(exchanged, roles=swapped))
