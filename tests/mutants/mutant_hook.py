"""Imports modules of the package with a change: one mutant, or every function marked. The environment says which, so
that processes which a test starts do the same (`startup/sitecustomize.py`)."""

from __future__ import annotations

import atexit
import builtins
import importlib.abc
import importlib.machinery
import json
import marshal
import os
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path

MUTANT = "JAX_TRANSFORMER_MUTANT"
"""Variable: module and number of a mutant, or nothing."""
MARKS = "JAX_TRANSFORMER_MARKS"
"""Variable: a folder with `MODULE.code`, the marked modules, into which a process also writes what it reached."""


class _MutantLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, number: int) -> None:
        super().__init__(name, path)
        self.number = number

    def get_code(self, fullname: str) -> types.CodeType:
        from mutations import mutated

        return compile(mutated(Path(self.path).read_text("utf-8"), self.number), self.path, "exec", dont_inherit=True)


class _MarkedLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, code: Path) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, fullname: str) -> types.CodeType:
        return marshal.loads(self.code.read_bytes())  # type: ignore[no-any-return]


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are changed, and leaves the others to Python."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("jax_transformer."):
            return None
        mutant, marks = os.environ.get(MUTANT), os.environ.get(MARKS)
        spec: ModuleSpec | None = None
        if mutant and name == mutant.partition("#")[0]:
            spec = PathFinder.find_spec(name, path)
            assert spec is not None
            assert spec.origin is not None
            spec.loader = _MutantLoader(name, spec.origin, int(mutant.partition("#")[2]))
        elif marks and (code := Path(marks, f"{name}.code")).exists():
            spec = PathFinder.find_spec(name, path)
            assert spec is not None
            assert spec.origin is not None
            spec.loader = _MarkedLoader(name, spec.origin, code)
        return spec


def install() -> None:
    """Changes what is imported from now on, before pytest, which rewrites the assertions of plugins' packages."""
    sys.meta_path[:] = [Finder(), *(finder for finder in sys.meta_path if not isinstance(finder, Finder))]
    if os.environ.get(MARKS) and not hasattr(builtins, "_reached_"):
        builtins._reached_ = set()  # type: ignore[attr-defined]
        if "PYTEST_CURRENT_TEST" in os.environ:  # a process that a test started
            atexit.register(_write, os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0])


def _write(test: str) -> None:
    record = {"test": test, "reach": sorted(builtins._reached_)}  # type: ignore[attr-defined]
    Path(os.environ[MARKS], f"process-{os.getpid()}.json").write_text(json.dumps(record), "utf-8")
