"""Stores LoRA's adapters in a model directory: A and B of each, next to parameters that contain them already."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jax_transformer.config.lora import LoraConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.runtime.trees import flatten, unflatten

ADAPTERS = "adapters.safetensors"
"""The file in a model directory."""


@dataclass(frozen=True)
class Adapters:
    """Holds LoRA adapters: A and B of each kernel that they adapt.

    Example:
      >>> import numpy as np
      >>> from jax_transformer import LoraConfig
      >>> linear = {"lora_a": np.zeros((8, 2), np.float32), "lora_b": np.zeros((2, 9), np.float32)}
      >>> Adapters(LoraConfig(rank=2, targets=("head/kernel",)), {"head": linear}).config.scale
      4.0
    """

    config: LoraConfig
    params: dict[str, Any]
    """A nested dict of arrays: encoder/layers/self_attention/query/lora_a [layers, *inputs, rank], and lora_b [layers,
    rank, *outputs]."""


def adapter_problems(adapters: Adapters, params: Mapping[str, Any]) -> list[str]:
    """Returns the reasons, by path, why adapters don't fit these parameters."""
    from jax_transformer.model.lora import KERNEL, A, B  # JAX is only needed from here on

    leaves = flatten(adapters.params)
    kernels = {path.removesuffix(A).removesuffix(B) for path in leaves}
    problems = [] if leaves else ["adapters: expected one at least; received none"]
    for start in sorted(kernels):
        missing = [name for name in (start + KERNEL,) if name not in params]
        missing += [name for name in (start + A, start + B) if name not in leaves]
        if missing:
            problems.append(f"adapter {start.rstrip('/')}: expected {missing[0]}; received none")
            continue
        kernel, a, b = params[start + KERNEL].shape, leaves[start + A].shape, leaves[start + B].shape
        if not _fits(tuple(kernel), tuple(a), tuple(b), adapters.config.rank):
            problems.append(
                f"adapter {start.rstrip('/')}: expected A and B of rank {adapters.config.rank} for a kernel "
                f"{tuple(kernel)}; received {tuple(a)} and {tuple(b)}"
            )
    return problems


def _fits(kernel: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...], rank: int) -> bool:
    """Returns whether A [*layers, *inputs, rank] and B [*layers, rank, *outputs] make a kernel of this shape."""
    layers = len(a) + len(b) - len(kernel) - 2
    if layers not in (0, 1) or a[-1:] != (rank,) or b[layers : layers + 1] != (rank,):
        return False
    return a[:-1] + b[layers + 1 :] == kernel and b[:layers] == kernel[:layers]


def described(adapters: Adapters) -> dict[str, Any]:
    """Returns the manifest's entry for adapters."""
    return dataclasses.asdict(adapters.config)


def arrange_adapters(
    tensors: Mapping[str, Any], description: Any, params: Mapping[str, Any], problems: list[str]
) -> Adapters | None:
    """Returns the adapters of a model directory; adds to the problems and returns None where there are any.

    Args:
      tensors: those of their file.
      description: the manifest's, as `described` wrote it.
      params: the model's, by path.
    """
    found = list(_description_problems(description))
    if found:
        problems += found
        return None
    try:
        adapters = Adapters(LoraConfig(**{**description, "targets": tuple(description["targets"])}), unflatten(tensors))
    except ConfigError as error:
        problems.append(f"{ADAPTERS}: {error}")
        return None
    found = adapter_problems(adapters, params)
    problems += [f"{ADAPTERS}: {problem}" for problem in found]
    return None if found else adapters


def _description_problems(description: Any) -> Iterator[str]:
    """Yields why a manifest's description of adapters can't be used."""
    fields = [field.name for field in dataclasses.fields(LoraConfig)]
    if not isinstance(description, dict) or sorted(description) != sorted(fields):
        yield f"lora: expected an object with {', '.join(fields)}; received {description!r}"
    elif not isinstance(description["targets"], list):
        yield f"lora: targets must be a list; received {description['targets']!r}"
