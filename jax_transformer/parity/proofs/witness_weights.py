"""Kinds of weights on which a difference may show in float64: the model's own, random ones, and extreme ones.

A missing bias hides where biases are zero, an ε where variances are large, and a clip where activations are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import numpy as np

from jax_transformer.comparison.lowering import INPUT
from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.problems import Problem, is_formula, other_weights, randomised
from jax_transformer.runtime.trees import flatten

Arrays = Mapping[str, np.ndarray]
Sort = Literal["kernel", "input", "bias", "scale", "constant"]
"""The sort of an array. An input is a table of embeddings, or a floating-point input."""

OWN, RANDOM = "own weights", "random weights"
OF_OWN = {f"{OWN} × 2^2": 2, f"{OWN} × 2^-4": -4}
"""Kinds of weights → the power of two by which all own weights are multiplied."""
ALL: tuple[Sort, ...] = ("kernel", "input", "bias", "scale")
OF_RANDOM: Mapping[str, tuple[tuple[Sort, ...], int]] = {
    f"{RANDOM} × 2^2": (ALL, 2),
    f"{RANDOM} × 2^-4": (ALL, -4),
    f"{RANDOM} × 2^12": (ALL, 12),
    f"{RANDOM}, inputs × 2^8": (("input",), 8),
    f"{RANDOM}, inputs × 2^-8": (("input",), -8),
    f"{RANDOM}, kernels × 2^3": (("kernel",), 3),  # softmaxes saturate
    f"{RANDOM}, biases × 2^8": (("bias",), 8),
}
"""Kinds of weights → which sorts of random weights are multiplied by which power of two."""
FRESH = f"{RANDOM}, biases of zero and scales of one"
NORMAL = "normal weights"
"""Every array drawn alike: scales of norms, too, are of both signs."""


def kinds_for_model(config: TransformerConfig, problem: Problem, seed: int) -> Iterator[tuple[str, Arrays]]:
    """Yields kinds of a model's parameters, by path: those that comparisons try, and others."""
    own = {path: np.asarray(leaf) for path, leaf in flatten(problem.params).items()}
    yield OWN, own
    for one in other_weights(config, problem.params, seed):
        yield one.name, {path: np.asarray(leaf) for path, leaf in flatten(one.params).items()}
    drawn = randomised(problem.params, np.random.default_rng([seed, 2]))
    yield from _changed(own, drawn, _sort_of_leaf, seed)


def kinds_for_any(own: Arrays, seed: int) -> Iterator[tuple[str, Arrays]]:
    """Yields kinds of any program's weights and floating-point inputs, by name."""
    yield OWN, own
    drawn = _drawn(own, np.random.default_rng([seed, 2]))
    yield RANDOM, {name: array.astype(np.float32) for name, array in drawn.items()}
    yield from _changed(own, drawn, lambda name: _sort_of(name, own[name]), seed)


def _changed(own: Arrays, drawn: Arrays, sort_of: Callable[[str], Sort], seed: int) -> Iterator[tuple[str, Arrays]]:
    """Yields own and random weights, some sorts of them multiplied. All but constants are numbers of float32, so that
    programs of that dtype hold them, too."""
    sorts = {name: sort_of(name) for name in own}

    def scaled(arrays: Arrays, chosen: tuple[Sort, ...], exponent: int) -> Arrays:
        return {
            name: array
            if sorts[name] == "constant"
            else (array * (2.0**exponent if sorts[name] in chosen else 1.0)).astype(np.float32)
            for name, array in arrays.items()
        }

    for kind, exponent in OF_OWN.items():
        yield kind, scaled(own, ALL, exponent)
    for kind, (chosen, exponent) in OF_RANDOM.items():
        yield kind, scaled(drawn, chosen, exponent)
    fresh = {"bias": 0.0, "scale": 1.0}
    yield (
        FRESH,
        {
            name: np.full_like(array, fresh[sorts[name]]) if sorts[name] in fresh else array
            for name, array in scaled(drawn, (), 0).items()
        },
    )
    rng = np.random.default_rng([seed, 3])
    yield (
        NORMAL,
        {
            name: array
            if sorts[name] == "constant"
            else _positive(name, rng.standard_normal(array.shape)).astype(np.float32)
            for name, array in own.items()
        },
    )


def _sort_of_leaf(path: str) -> Sort:
    if is_formula(path):
        return "constant"
    ends: dict[str, Sort] = {"kernel": "kernel", "embedding": "input", "bias": "bias"}
    return next((sort for end, sort in ends.items() if path.endswith(end)), "scale")


def _sort_of(name: str, array: np.ndarray) -> Sort:
    if name.startswith(INPUT):
        return "input"
    if array.ndim > 1:
        return "kernel"
    return "bias" if "bias" in name or name.endswith(("beta", "b_2")) else "scale"


def _drawn(own: Arrays, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns random arrays as large as usual ones, variances above zero."""
    found = {}
    for name, array in own.items():
        values = rng.standard_normal(array.shape)
        if array.ndim > 1:
            values *= 1.3 / np.sqrt(array.shape[-1])
        elif not name.startswith(INPUT):
            values = 0.4 * values + (_sort_of(name, array) == "scale")
        found[name] = _positive(name, values)
    return found


def _positive(name: str, values: np.ndarray) -> np.ndarray:
    return np.abs(values) if "var" in name else values
