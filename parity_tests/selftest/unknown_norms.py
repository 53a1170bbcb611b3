"""Unknown faults of norms and residuals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind
from selftest.unknown import Site, Unknown, Wrong, require, to_bfloat16, unknown

# --- norms

Statistic = Callable[[np.ndarray], np.ndarray]
"""[B, T, D] → what broadcasts to it."""


def mean(x: np.ndarray) -> np.ndarray:
    return x.mean(axis=-1, keepdims=True)


def mean_square(centred: np.ndarray) -> np.ndarray:
    return np.square(centred).mean(axis=-1, keepdims=True)


def normed(site: Site, centre: Statistic = mean, variance: Statistic = mean_square) -> np.ndarray:
    """The norm with these statistics; which of them it takes, and its ε, are the config's."""
    spec, given = site.stack.norm, _summed(site) if "y" in site.inputs else site.inputs["x"]
    assert spec is not None
    x = formulas.merge_heads(given) if site.node.kind == "context_norm" else given
    x = x - centre(x) if spec.kind == "layer_norm" else x
    width = x.shape[-1]
    square = variance(x) * (width / (width - 1) if spec.unbiased else 1.0)
    deviation = np.sqrt(square) + spec.eps if spec.eps_outside else np.sqrt(square + spec.eps)
    scale = formulas.norm_scale(spec, site.parameters.get("scale"))
    return formulas.affine(x / deviation, scale, site.parameters.get("bias")).reshape(given.shape)


def _summed(site: Site) -> np.ndarray:
    """What a norm after the residual reads."""
    scales = {role: array for role, array in site.parameters.items() if role.endswith("_scale")}
    return formulas.residual(site.stack.residual, site.inputs["x"], site.inputs["y"], **scales)


def _with_variance(variance: Statistic) -> Wrong:
    return lambda site, right: normed(site, variance=variance)


def _half(x: np.ndarray) -> np.ndarray:
    require(x.shape[-1] > 1, "needs two features")
    return mean_square(x[..., : x.shape[-1] // 2])


def _without_the_last(x: np.ndarray) -> np.ndarray:
    require(x.shape[-1] > 1, "needs two features")
    return mean_square(x[..., :-1])


def _whole_sentence(x: np.ndarray) -> np.ndarray:
    return np.square(x).mean(axis=(1, 2), keepdims=True)


def _whole_batch(x: np.ndarray) -> np.ndarray:
    return np.square(x).mean(axis=(0, 1), keepdims=True)


def _at_least_the_mean(x: np.ndarray) -> np.ndarray:
    return np.maximum(mean_square(x), np.square(x).mean())


def _absolute_values(x: np.ndarray) -> np.ndarray:
    return np.square(np.abs(x).mean(axis=-1, keepdims=True))


def _length(x: np.ndarray) -> np.ndarray:
    return np.square(x).sum(axis=-1, keepdims=True)


def _a_hundredth_less(x: np.ndarray) -> np.ndarray:
    return 0.99 * mean_square(x)


def median_for_mean(site: Site, right: np.ndarray) -> np.ndarray:
    return normed(site, centre=lambda x: np.median(x, axis=-1, keepdims=True))


def gain_squared(site: Site, right: np.ndarray) -> np.ndarray:
    return site.compute(parameters={"scale": site.parameters["scale"] ** 2})


def one_gain_off(site: Site, right: np.ndarray) -> np.ndarray:
    scale = site.parameters["scale"].copy()
    scale[site.pick(len(scale))] *= 1.01
    return site.compute(parameters={"scale": scale})


def bias_before_gain(site: Site, right: np.ndarray) -> np.ndarray:
    return site.compute(parameters={"bias": site.parameters["bias"] * site.parameters["scale"]})


# --- residuals


def _with_branch(change: Callable[[np.ndarray], np.ndarray]) -> Wrong:
    """A change of a sublayer's output; of those of several, of the first."""

    def wrong(site: Site, right: np.ndarray) -> np.ndarray:
        name = next(name for name in site.inputs if name != "x")
        return site.compute(inputs={name: change(site.inputs[name])})

    return wrong


def _clipped(y: np.ndarray) -> np.ndarray:
    most = 0.5 * np.abs(y).max()
    return np.clip(y, -most, most)


def _without_one_sentence(y: np.ndarray) -> np.ndarray:
    require(len(y) > 1, "needs two sentences")
    return np.concatenate([np.zeros_like(y[:1]), y[1:]])


def _token_before(y: np.ndarray) -> np.ndarray:
    return np.roll(y, 1, axis=1)


def sum_over_root_two(site: Site, right: np.ndarray) -> np.ndarray:
    return right / np.sqrt(2.0)


def stream_in_bfloat16(site: Site, right: np.ndarray) -> np.ndarray:
    return site.compute(inputs={"x": to_bfloat16(site.inputs["x"])})


_NORMS: tuple[Kind, ...] = ("norm", "residual_norm", "context_norm")
_SUMS: tuple[Kind, ...] = ("residual", "residual_norm", "parallel_residual")

OF_NORMS: tuple[Unknown, ...] = (
    unknown("a norm's variance is 1 % too small", _NORMS, _with_variance(_a_hundredth_less)),
    unknown("a norm's variance is of half of the features", _NORMS, _with_variance(_half)),
    unknown("a norm's variance leaves out the last feature", _NORMS, _with_variance(_without_the_last)),
    unknown("a norm's variance is of all tokens of a sentence", _NORMS, _with_variance(_whole_sentence)),
    unknown("a norm's variance is of all tokens of the batch, by features", _NORMS, _with_variance(_whole_batch)),
    unknown("a norm's variance is at least that of all tokens", _NORMS, _with_variance(_at_least_the_mean)),
    unknown("a norm divides by the mean absolute value", _NORMS, _with_variance(_absolute_values)),
    unknown("a norm divides by the length of the vector", _NORMS, _with_variance(_length)),
    unknown("a norm subtracts the median", _NORMS, median_for_mean),
    unknown("a norm's gain is scale²", _NORMS, gain_squared, ("scale",)),
    unknown("one of a norm's gains is 1 % too large", _NORMS, one_gain_off, ("scale",)),
    unknown("a norm's bias is added before its gain", _NORMS, bias_before_gain, ("scale", "bias")),
    unknown("a residual branch is 1 % too small", _SUMS, _with_branch(lambda y: 0.99 * y)),
    unknown("a residual branch is clipped", _SUMS, _with_branch(_clipped)),
    unknown("a residual branch is dropped for one sentence", _SUMS, _with_branch(_without_one_sentence)),
    unknown("a residual branch is the token before's", _SUMS, _with_branch(_token_before)),
    unknown("the residual stream is rounded to bfloat16", _SUMS, stream_in_bfloat16),
    unknown(
        "a residual sum is divided by √2", ("residual", "parallel_residual"), sum_over_root_two
    ),  # a norm would take it for twice its ε
)
