"""Faults of the feed-forward layer's hidden units."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from jax_transformer.parity.faults.replay import Replay, Variant, exchanged, without
from jax_transformer.parity.oracle.graph import Kind

ACTIVATIONS = {
    "relu": "ReLU",
    "gelu": "exact GELU",
    "gelu_tanh": "tanh GELU",
    "quick_gelu": "GELU by sigmoid(1.702 x)",
    "silu": "SiLU",
    "elu": "ELU",
    "selu": "SELU",
    "mish": "Mish",
    "relu_squared": "squared ReLU",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "softplus": "softplus",
    "none": "no activation",
}
"""Activations without a slope, with the names of the faults that use them in place of another."""
SLOPES = (0.01, 0.1, 0.2, 0.25, 0.3)
"""Slopes of leaky ReLUs that programs have: PyTorch's and JAX's default, GANs', PReLU's first, and Keras's."""


def feed_forward() -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("feed_forward_hidden",)
    for activation, name in ACTIVATIONS.items():
        yield Variant(name, kinds, partial(_activated, activation=activation))
    for slope in SLOPES:
        with_slope = partial(_activated, activation="leaky_relu", slope=slope)
        yield Variant(f"leaky ReLU of slope {slope:g}", kinds, with_slope)
    yield Variant("PReLU of slope 0.25", kinds, partial(without, role="slope"))
    swapped = {"kernel": "gate_kernel", "gate_kernel": "kernel", "bias": "gate_bias", "gate_bias": "bias"}
    yield Variant("gate and hidden layer swapped", kinds, partial(exchanged, roles=swapped))
    yield Variant("gate missing", kinds, _without_gate)


def _activated(replay: Replay, activation: str, slope: float | None = None) -> np.ndarray:
    """Computes the hidden units with another activation. Raises LookupError if it is the feed-forward's own."""
    own = replay.option("activation"), replay.option("slope")
    slope = own[1] if slope is None else slope
    if own == (activation, slope):
        raise LookupError("its own")
    return replay.compute(parts=replay.with_options(activation=activation, slope=slope))


def _without_gate(replay: Replay) -> np.ndarray:
    if "gate_kernel" not in replay.parameters:
        raise LookupError("no gate")
    return replay.compute(
        parameters={role: array for role, array in replay.parameters.items() if not role.startswith("gate_")}
    )
