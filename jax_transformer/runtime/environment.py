"""Reads the machine and the versions of the libraries that a result was computed with."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version


def environment(libraries: Iterable[str]) -> dict[str, str]:
    """Returns the operating system, the number of CPU cores, and the versions of Python and the installed libraries.

    Args:
      libraries: names of distributions, such as "jax"; names that aren't installed are left out.
    """
    machine = {
        "system": f"{platform.system()} {platform.machine()}",
        "CPU cores": str(os.cpu_count()),
        "Python": platform.python_version(),
    }
    return machine | {name: found for name in libraries if (found := _version(name))}


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""
