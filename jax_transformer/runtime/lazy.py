"""Loads a package's exports when they are first used, so that importing the package costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, homes: Mapping[str, Sequence[str]], subpackages: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the module functions `__getattr__` and `__dir__` of a package (PEP 562).

    Args:
      package: the package's `__name__`.
      homes: module → the names that the package exports from it.
      subpackages: packages inside it that are exported themselves.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name in subpackages:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name]), name)

    return load, lambda: sorted([*vars(import_module(package)), *home_of, *subpackages])
