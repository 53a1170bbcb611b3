"""Sets the precision in which JAX computes, and moves arrays to the device in that precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.comparison.sides import Dtype

QUICKLY = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""On a CPU, for programs that run once: the same operations, compiled in a third of the time."""


@contextlib.contextmanager
def in_precision(dtype: Dtype) -> Iterator[None]:
    """Computes matrix products as exactly as the dtype allows, and enables float64 for it."""
    with in_bits(64 if dtype == "float64" else 32):
        yield


@contextlib.contextmanager
def in_bits(bits: int) -> Iterator[None]:
    """Computes in types of up to so many bits, 32 or 64, and matrix products as exactly as these allow."""
    with jax.enable_x64(bits == 64), jax.default_matmul_precision("highest"):
        yield


def in_force(dtype: Dtype) -> dict[str, Any]:
    """Returns the precision in which JAX computes when asked for this dtype."""
    with in_precision(dtype):
        precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
        return {
            "dtype": jnp.zeros(1, dtype).dtype.name,
            "matmul precision": precision,
            "device": jax.devices()[0].platform,
        }


def on_device(array: Any, dtype: Any = None) -> jax.Array:
    """Returns a copy of an array on the device. (`jnp.asarray` would compile a program for each shape.)"""
    return jax.device_put(np.array(array, None if dtype is None else jnp.dtype(dtype)))


def wide(value: jax.Array) -> np.ndarray:
    return np.asarray(value.astype(jnp.float32) if value.dtype == jnp.bfloat16 else value)


def understood(options: dict[str, Any]) -> dict[str, Any] | None:
    """Returns those of the options that the compiler knows, if this is a CPU; None if there are none."""
    if jax.default_backend() != "cpu":
        return None
    return {name: value for name, value in options.items() if _is_known({name: value})} or None


def _is_known(option: dict[str, Any]) -> bool:
    try:
        jax.jit(jnp.negative, compiler_options=option).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:  # options come and go with XLA's versions
        return False
    return True
