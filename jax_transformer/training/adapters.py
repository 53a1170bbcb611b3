"""Adds LoRA's adapters to a model's kernels, to be trained in place of the kernels."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp

from jax_transformer.config.lora import LoraConfig
from jax_transformer.model.dtypes import at_least_float32
from jax_transformer.model.functional import Params
from jax_transformer.model.lora import KERNEL, SCALE, A, B, split_adapters
from jax_transformer.model.matrices import matrix_axes
from jax_transformer.runtime.trees import flatten, unflatten

FIRST_VALUES = 2**32 - 1
"""Folded into the seed for the adapters' first values. (Dropout folds in the step, which is smaller.)"""


class AdapterError(ValueError):
    """Raised when a pattern of targets doesn't fit the model, or adapters don't fit the targets."""


def add_adapters(params: Params, config: LoraConfig, seed: int) -> tuple[Params, Params]:
    """Returns the adapters of the targets, and the frozen parameters with the adapters' scales.

    As in PEFT, A is drawn from the uniform distribution of Kaiming's initializer with a = √5, which has the bounds
    ±1/√inputs, and B is zero. Each A depends only on the seed and its path. Existing adapters in `params` are kept.

    Args:
      params: the parameters, without constants, with adapters for all of the targets or for none.
      config: rank, scale and targets.
      seed: seed of the initial values.

    Raises:
      AdapterError: a pattern that matches no parameter, or one that isn't the kernel of a linear map; adapters of other
        targets or of another rank.
    """
    base, given = split_adapters(params)
    leaves = flatten(base)
    targets = _targets(leaves, config.targets)
    adapters = flatten(given) if given else _first_values(targets, config.rank, seed)
    _check(adapters, targets, config.rank)
    scales = {
        _part_path(path, SCALE): jnp.full((), config.scale, adapters[_part_path(path, A)].dtype) for path in targets
    }
    return unflatten(adapters), unflatten(leaves | scales)


def _targets(leaves: Mapping[str, Any], patterns: tuple[str, ...]) -> dict[str, Any]:
    """Returns the kernels that match a pattern, by path."""
    for pattern in patterns:
        matched = [path for path in leaves if fnmatchcase(path, pattern)]
        if not matched:
            example = next((path for path in leaves if path.endswith(f"/{KERNEL}")), "")
            raise AdapterError(
                f"train.lora.targets: expected patterns of kernels' paths, such as {example} (--dry-run lists them); "
                f"received {pattern!r}, which matches none"
            )
        for path in matched:
            if _sides(path, leaves[path]) is None:
                kind = "an embedding, which takes no adapter" if "embedding" in path else "no kernel of a linear map"
                raise AdapterError(
                    f"train.lora.targets: expected patterns that match kernels alone; received {pattern!r}, which "
                    f"matches {path}, {kind}"
                )
    return {path: leaf for path, leaf in leaves.items() if any(fnmatchcase(path, pattern) for pattern in patterns)}


def _sides(path: str, leaf: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Returns the sizes of a kernel's layer axis (empty without one), of its inputs and of its outputs; None for any
    other parameter."""
    if path == f"head/{KERNEL}":
        return (), leaf.shape[:1], leaf.shape[1:]
    axes = matrix_axes(path, leaf)
    if axes is None:
        return None
    inputs, outputs = (tuple(leaf.shape[axis] for axis in side) for side in axes)
    return leaf.shape[:1], inputs, outputs


def _shapes(targets: Mapping[str, Any], rank: int) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...], int]]:
    """Yields each target's path, the shapes of its A and its B, and the number of its inputs."""
    for path, leaf in targets.items():
        layers, inputs, outputs = _sides(path, leaf) or ((), (), ())
        yield path, (*layers, *inputs, rank), (*layers, rank, *outputs), math.prod(inputs)


def _first_values(targets: Mapping[str, Any], rank: int, seed: int) -> dict[str, jax.Array]:
    key = jax.random.fold_in(jax.random.key(seed), FIRST_VALUES)
    adapters: dict[str, jax.Array] = {}
    for path, a_shape, b_shape, inputs in _shapes(targets, rank):
        bound, dtype = 1.0 / math.sqrt(inputs), at_least_float32(targets[path].dtype)
        own = jax.random.fold_in(key, zlib.crc32(path.encode()))
        drawn = jax.random.uniform(own, a_shape, jnp.float32, minval=-bound, maxval=bound)
        adapters |= {_part_path(path, A): drawn.astype(dtype), _part_path(path, B): jnp.zeros(b_shape, dtype)}
    return adapters


def _check(adapters: Mapping[str, Any], targets: Mapping[str, Any], rank: int) -> None:
    """Raises AdapterError unless each target, and nothing else, has adapters of the right shapes."""
    expected: dict[str, tuple[int, ...]] = {}
    for path, a_shape, b_shape, _ in _shapes(targets, rank):
        expected |= {_part_path(path, A): a_shape, _part_path(path, B): b_shape}
    problems = [f"{path}: not among train.lora.targets" for path in adapters if path not in expected]
    problems += [f"{path}: missing, expected shape {shape}" for path, shape in expected.items() if path not in adapters]
    problems += [
        f"{path}: expected shape {shape}; received {tuple(adapters[path].shape)}"
        for path, shape in expected.items()
        if path in adapters and tuple(adapters[path].shape) != shape
    ]
    if problems:
        raise AdapterError("\n  - ".join(["adapters that don't fit train.lora:", *problems]))


def _part_path(path: str, name: str) -> str:
    """Returns the path of one part of a kernel's adapter: A, B or the scale."""
    return f"{path.removesuffix(KERNEL)}{name}"
