"""Runs a program on inputs: activations and output in a type, gradients in float64, and steps of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from jax_transformer.comparison.gates.arrays import Arrays

OWN_TYPE = "own"
"""Stands for the type in which a program runs by itself."""


class Trained(NamedTuple):
    """Holds what a training run computes in float64."""

    gradients: Arrays
    """Those of the first loss, by weight."""
    losses: tuple[float, ...]
    steps: tuple[Arrays, ...]
    """The weights after each step."""


class Nudge(NamedTuple):
    """Says how weights are changed in their last bit."""

    draw: int
    bits: str
    """The type whose last bit it is."""


class Runner(Protocol):
    """Runs one program on one batch."""

    def run(self, dtype: str, nudge: Nudge | None = None) -> dict[str, np.ndarray]:
        """Returns activations in execution order, and the output, last.

        Args:
          dtype: "float64", or OWN_TYPE.
        """

    def train(self, optimizer: Mapping[str, Any] | None, nudge: Nudge | None = None) -> Trained:
        """Returns gradients, and with an optimizer three steps. Raises CannotRun if there are none."""

    def rounds(self) -> bool:
        """Returns whether the program computes in a narrower type inside, given weights in float64."""


def factors(shape: tuple[int, ...]) -> np.ndarray:
    """Returns the numbers that an output is multiplied by before it is summed and differentiated."""
    return np.random.default_rng(0).standard_normal(shape)
