"""Records a run's parameters, and the machine and libraries that train it."""

from __future__ import annotations

from typing import Any

import jax

from jax_transformer.model.functional import Params
from jax_transformer.runtime.environment import environment
from jax_transformer.runtime.memory import peak_memory
from jax_transformer.runtime.trees import flatten

LIBRARIES = (
    "jax-transformer",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "tokenizers",
    "sentencepiece",
    "sacrebleu",
)


def parameter_table(params: Params) -> list[dict[str, Any]]:
    """Returns path, shape, dtype and count of every parameter, sorted by path."""
    return [
        {"path": path, "shape": list(leaf.shape), "dtype": str(leaf.dtype), "count": int(leaf.size)}
        for path, leaf in sorted(flatten(params).items(), key=lambda item: item[0].split("/"))
    ]


def training_environment() -> dict[str, str]:
    """Returns device, machine and versions, by readable names."""
    devices = jax.devices()
    return {
        "device": f"{len(devices)} × {devices[0].device_kind}" if len(devices) > 1 else devices[0].device_kind,
        "platform": devices[0].platform,
        "processes": str(jax.process_count()),
        **environment(LIBRARIES),
    }


def memory_in_use() -> dict[str, int]:
    """Returns the most bytes that this process has had in main memory, and those that its fullest device has had, if
    the device reports them."""
    devices = [(device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in jax.local_devices()]
    return {"host_bytes": peak_memory()} | ({"device_bytes": max(devices)} if any(devices) else {})
