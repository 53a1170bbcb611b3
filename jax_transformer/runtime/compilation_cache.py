"""Keeps compiled programs between processes in JAX's persistent cache."""

from __future__ import annotations

import os
import platform
from hashlib import sha256
from pathlib import Path

LEAST_SECONDS = "0.1"
"""The least time that a program takes to compile if it is kept. Commands have many that take less than a second, JAX's
own limit."""


def use_compilation_cache() -> None:
    """Keeps compiled programs under ~/.cache/jax_transformer; call before jax is imported.

    JAX's own environment variables, such as JAX_COMPILATION_CACHE_DIR, take precedence. Programs compiled for a CPU use
    the instructions of that very CPU, so that each kind has a folder of its own, should a home directory be shared.
    """
    folder = Path("~/.cache/jax_transformer").expanduser() / f"xla-{platform.machine()}-{_cpu_kind()}"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", LEAST_SECONDS)


def _cpu_kind() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        described = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    except OSError:
        described = platform.processor()
    return sha256(described.encode()).hexdigest()[:12]
