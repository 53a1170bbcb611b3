"""The machine, the versions and the precision under which a parity run was made."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from jax_transformer.parity.run_results import Pair

LIBRARIES = ("jax-transformer", "jax", "jaxlib", "flax", "optax", "torch", "transformers", "numpy")


def surroundings(pair: Pair) -> dict[str, Any]:
    """By the names that people read; of both sides what decides about precision."""
    force = {
        f"{name}'s {what}": str(value)
        for name, side in pair.sides.items()
        for what, value in side.in_force("float64").items()
        if what != "dtype"
    }
    machine = {
        "system": f"{platform.system()} {platform.machine()}",
        "CPU cores": str(os.cpu_count()),
        "Python": platform.python_version(),
    }
    return machine | {name: found for name in LIBRARIES if (found := _version(name))} | force


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""
