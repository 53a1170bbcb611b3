"""A flag of XLA for CPUs without which jaxlib 0.10.2 and later compute wrong numbers, or end the process.

Their compiler fuses products with what follows them. A fused sum over more than 16,384 rows may be anything
(https://github.com/jax-ml/jax/issues/39103), and one of seven axes may end the process
(https://github.com/jax-ml/jax/issues/40412). Products by themselves are right.
"""

from __future__ import annotations

import contextlib
import os
import sys

NAME = "--xla_cpu_experimental_ynn_fusion_type"
FLAG = f"{NAME}=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"
FIRST, BEFORE = (0, 10, 2), (0, 13)
"""The versions of jaxlib that have the flag. Others, which may not, end the process for a flag that they don't know."""


def keep_products_apart() -> None:
    """Adds the flag to XLA_FLAGS, unless it is set there or jaxlib doesn't have it. XLA reads it before it compiles for
    the first time in a process."""
    flags = os.environ.get("XLA_FLAGS", "")
    if NAME not in flags and _has_flag():
        os.environ["XLA_FLAGS"] = f"{flags} {FLAG}".strip()


def _has_flag() -> bool:
    numbers = tuple(int(part) for part in _installed().split(".")[:3] if part.isdecimal())
    return FIRST <= numbers < BEFORE


def _installed() -> str:
    """Returns the version of jaxlib, from the name of its metadata: `importlib.metadata` takes as long to load as all
    else that this package loads. "": it isn't installed."""
    for folder in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder or "."):
                if name.startswith("jaxlib-") and name.endswith(".dist-info"):
                    return name.removeprefix("jaxlib-").removesuffix(".dist-info")
    return ""
