"""Faults of the feed-forward layer's hidden units."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.parity.faults.replay import Replay, Variant, changed, configured, exchanged
from jax_transformer.parity.oracle.graph import Kind

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig


ACTIVATIONS = {"relu": "ReLU", "gelu": "exact GELU", "gelu_tanh": "tanh GELU", "silu": "SiLU", "none": "no activation"}


def feed_forward(config: TransformerConfig) -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("feed_forward_hidden",)
    for activation, name in ACTIVATIONS.items():
        if activation != config.activation:
            yield configured(name, kinds, activation=activation)
    swapped = {"kernel": "gate_kernel", "gate_kernel": "kernel", "bias": "gate_bias", "gate_bias": "bias"}
    yield Variant("gate and hidden layer swapped", kinds, partial(exchanged, roles=swapped))
    yield Variant("gate missing", kinds, _without_gate)
    yield Variant("GELU by sigmoid(1.702 x)", kinds, _sigmoid_gelu)


def _without_gate(replay: Replay) -> np.ndarray:
    if "gate_kernel" not in replay.parameters:
        raise LookupError("no gate")
    return replay.compute(
        parameters={role: array for role, array in replay.parameters.items() if not role.startswith("gate_")}
    )


def _sigmoid_gelu(replay: Replay) -> np.ndarray:
    """Uses Hendrycks & Gimpel's second approximation: SiLU(1.702 x) / 1.702."""
    roles = ("gate_kernel", "gate_bias") if "gate_kernel" in replay.parameters else ("kernel", "bias")
    scaled = {role: array * 1.702 if role in roles else array for role, array in replay.parameters.items()}
    return replay.compute(parameters=scaled, config=changed(replay.config, activation="silu")) / 1.702
