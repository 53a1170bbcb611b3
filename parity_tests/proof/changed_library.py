"""Imports this library with changed lines, next to the right one."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import linecache
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KEPT = ("jax_transformer.proof", "jax_transformer.runtime")
"""Packages that aren't imported anew: the prover judges both libraries."""


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Finds one module, and loads another source for it."""

    def __init__(self, path: str, source: str) -> None:
        self.name, self.file, self.source = path.removesuffix(".py").replace("/", "."), with_a_fault(path), source

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def get_filename(self, name: str) -> str:
        return self.file

    def get_data(self, path: Any) -> bytes:
        return self.source.encode()


def with_a_fault(path: str) -> str:
    """Returns the name that tracebacks have for a changed file, given its path in the repository."""
    return f"{ROOT / path} with a fault"


@contextlib.contextmanager
def changed_library(path: str, source: str) -> Iterator[None]:
    """Imports the library, and the modules here that call it, anew with another source of one file.

    Args:
      path: the file's path in the repository, such as jax_transformer/model/steps.py.
      source: all of it.
    """
    held = {name: module for name, module in sys.modules.items() if _is_anew(name)}
    finder, file = _Changed(path, source), with_a_fault(path)
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    known = _forget(held)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _forget([name for name in sys.modules if _is_anew(name)])
        sys.modules.update(held)
        for package, last, module in known:
            setattr(package, last, module)


def _is_anew(name: str) -> bool:
    is_kept = any(name == kept or name.startswith(f"{kept}.") for kept in KEPT)
    return not is_kept and (name.split(".")[0] == "jax_transformer" or name.startswith("proof.own_"))


def _forget(names: Iterable[str]) -> list[tuple[ModuleType, str, ModuleType]]:
    """Removes modules, and returns the packages that had them as attributes: the package, the name, the module."""
    names, known = [*names], []
    for name in names:
        package, _, last = name.rpartition(".")
        parent, module = sys.modules.get(package), sys.modules[name]
        if parent is not None and vars(parent).get(last) is module:
            known.append((parent, last, module))
    for parent, last, _ in known:
        delattr(parent, last)
    for name in names:
        del sys.modules[name]
    return known
