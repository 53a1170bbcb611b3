"""Activations of hidden units in plain NumPy, by the names that `FeedForward.activation` has for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jax_transformer.config.specs import FeedForward

FIRST_SLOPE = 0.25
"""The slope of a PReLU that wasn't trained."""


def activation(spec: FeedForward, x: np.ndarray, slope: np.ndarray | None = None) -> np.ndarray:
    """Returns the activated x of a feed-forward; PReLU takes its trained slope, or else its first one."""
    if spec.activation == "prelu":
        return leaky_relu(x, FIRST_SLOPE if slope is None else slope)
    if spec.activation == "leaky_relu":
        return leaky_relu(x, spec.slope)
    return FORMULAS[spec.activation](x)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def leaky_relu(x: np.ndarray, slope: np.ndarray | float) -> np.ndarray:
    return np.where(x < 0.0, slope * x, x)


def gelu(x: np.ndarray) -> np.ndarray:
    """Returns x Φ(x) (Hendrycks & Gimpel 2016). Φ is erfc(−x/√2) / 2, as (1 + erf(x/√2)) / 2 cancels for x < 0."""
    arguments = (x.ravel() / -math.sqrt(2.0)).tolist()
    return 0.5 * x * np.fromiter(map(math.erfc, arguments), np.float64, x.size).reshape(x.shape)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Returns 1 / (1 + exp(−x)) without overflow of exp(−x)."""
    return np.exp(-np.logaddexp(0.0, -x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def quick_gelu(x: np.ndarray) -> np.ndarray:
    """Returns Hendrycks & Gimpel's second approximation of GELU."""
    return x * sigmoid(1.702 * x)


def elu(x: np.ndarray) -> np.ndarray:
    """Returns exp(x) − 1 where x is negative (Clevert et al. 2016)."""
    return np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0)))


def selu(x: np.ndarray) -> np.ndarray:
    """Returns the self-normalizing ELU, whose constants keep mean 0 and variance 1 (Klambauer et al. 2017)."""
    scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
    return scale * np.where(x > 0.0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def mish(x: np.ndarray) -> np.ndarray:
    """Returns x tanh(log(1 + exp(x))) (Misra 2019)."""
    return x * np.tanh(np.logaddexp(0.0, x))


def relu_squared(x: np.ndarray) -> np.ndarray:
    """Returns the square of ReLU (So et al. 2021, Primer)."""
    return np.square(relu(x))


def softplus(x: np.ndarray) -> np.ndarray:
    """Returns log(1 + exp(x)) up to 20, and x above, as PyTorch does."""
    return np.where(x > 20.0, x, np.logaddexp(0.0, x))


FORMULAS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "none": lambda x: x,
    "elu": elu,
    "selu": selu,
    "mish": mish,
    "quick_gelu": quick_gelu,
    "relu_squared": relu_squared,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "softplus": softplus,
}
"""Activations without a slope."""
