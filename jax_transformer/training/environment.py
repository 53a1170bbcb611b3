"""What a run is made of, beside its config: every parameter, and the machine and libraries that train it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

from jax_transformer.model.functional import Params
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
    """Path, shape, dtype and count of every parameter, in the order of their paths."""
    return [
        {"path": path, "shape": list(leaf.shape), "dtype": str(leaf.dtype), "count": int(leaf.size)}
        for path, leaf in sorted(flatten(params).items(), key=lambda item: item[0].split("/"))
    ]


def environment() -> dict[str, str]:
    """Device, machine and versions, by the names that people read."""
    devices = jax.devices()
    return {
        "device": f"{len(devices)} × {devices[0].device_kind}" if len(devices) > 1 else devices[0].device_kind,
        "platform": devices[0].platform,
        "processes": str(jax.process_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "CPU cores": str(os.cpu_count()),
        "Python": platform.python_version(),
        **{name: found for name in LIBRARIES if (found := _version(name))},
    }


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""
