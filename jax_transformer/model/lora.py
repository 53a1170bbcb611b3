"""LoRA's adapters (Hu et al. 2021), stored next to their kernels in the nested dict of parameters.

The adapter of `query/kernel` [*layers, *inputs, *outputs] consists of `query/lora_a` [*layers, *inputs, R],
`query/lora_b` [*layers, R, *outputs] and the number `query/lora_scale`. The model computes with the kernel plus
scale · A · B, by which `merge_adapters` replaces the kernel: the model itself has no adapters.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]

KERNEL, A, B, SCALE = "kernel", "lora_a", "lora_b", "lora_scale"


def merge_adapters(params: Params) -> Params:
    """Adds each adapter to its kernel, in the kernel's dtype. Returns dicts without adapters unchanged.

    Works on NumPy and JAX arrays, inside `jax.jit` and `jax.grad`.

    Args:
      params: a nested dict of arrays, in which kernels may have adapters.

    Example:
      >>> import numpy as np
      >>> linear = {"kernel": np.eye(2), "lora_a": np.ones((2, 1)), "lora_b": np.ones((1, 2)), "lora_scale": 0.5}
      >>> merge_adapters({"head": linear})["head"]["kernel"].tolist()
      [[1.5, 0.5], [0.5, 1.5]]
    """
    merged = {
        name: merge_adapters(value) if isinstance(value, dict) else value
        for name, value in params.items()
        if name not in (A, B, SCALE)
    }
    if A in params:
        merged[KERNEL] = _adapted(*(params[name] for name in (KERNEL, A, B, SCALE)))
    is_changed = any(merged.get(name) is not value for name, value in params.items())
    return merged if is_changed else params


def split_adapters(params: Params) -> tuple[Params, Params]:
    """Returns the parameters without adapters, and the adapters alone, without their scales."""
    base: Params = {}
    adapters: Params = {}
    for name, value in params.items():
        if isinstance(value, dict):
            base[name], inner = split_adapters(value)
            adapters |= {name: inner} if inner else {}
        elif name in (A, B):
            adapters[name] = value
        elif name != SCALE:
            base[name] = value
    return base, adapters


def _adapted(kernel: Any, a: Any, b: Any, scale: Any) -> Any:
    """Returns a kernel [*layers, *inputs, *outputs] plus scale · A · B."""
    layers, rank = kernel.shape[: a.ndim + b.ndim - kernel.ndim - 2], a.shape[-1]
    matrices = a.reshape(*layers, -1, rank), b.reshape(*layers, rank, -1)
    if any(isinstance(array, jax.Array) for array in (kernel, a, b)):
        # accelerators' products of float32 are of fewer bits unless asked
        product = jnp.matmul(*matrices, precision="highest")
    else:
        product = np.matmul(*matrices)
    return (kernel + scale * product.reshape(kernel.shape)).astype(kernel.dtype)
