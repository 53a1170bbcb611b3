"""Name operations in modules of JAX by their paths: `layers.1.attention`, from attributes of the enclosing modules.

Linen opens a named scope for each module's call; NNX and Equinox don't. So a profiling hook watches the calls of their
modules during tracing, and opens the scopes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

LIBRARIES = ("flax.nnx", "equinox")
"""Libraries whose modules open no scopes."""
CALL = "__call__"
MOST_LEVELS = 4
"""Levels of modules, lists and dicts in which a module is looked for."""


@contextmanager
def named_modules() -> Iterator[None]:
    """Opens a named scope for each call of an NNX or Equinox module within another one's."""
    if not any(name in sys.modules for name in LIBRARIES):
        yield
        return
    calls, outer = _Calls(), sys.getprofile()
    sys.setprofile(calls)
    try:
        yield
    finally:
        sys.setprofile(outer)


class _Calls:
    """The calls of modules that run now."""

    def __init__(self) -> None:
        self._running: list[tuple[Any, Any, Any]] = []
        """Frames, their modules, and the scopes that were opened for them."""

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name == CALL and frame.f_code.co_argcount:
            module = frame.f_locals.get(frame.f_code.co_varnames[0])
            if not _is_module(type(module)) or any(each is module for _, each, _ in self._running[-1:]):
                return
            parents = (parent for _, parent, _ in reversed(self._running))
            path = next(filter(None, (path_in(parent, module) for parent in parents)), None)
            scope = None if path is None else jax.named_scope(path)
            if scope is not None:
                scope.__enter__()
            self._running.append((frame, module, scope))
        elif event == "return" and self._running and self._running[-1][0] is frame:
            scope = self._running.pop()[2]
            if scope is not None:
                scope.__exit__(None, None, None)


def _is_module(kind: type) -> bool:
    """Returns whether a class is of NNX's or Equinox's modules."""
    names = ("Module", "Pytree")
    return any(each.__name__ in names and each.__module__.startswith(LIBRARIES) for each in kind.__mro__)


def path_in(parent: Any, module: Any) -> str | None:
    """Returns the shortest path from a module to another one, through attributes and entries of lists and dicts; None
    without one."""
    level, seen = [("", parent)], {id(parent)}
    for _ in range(MOST_LEVELS):
        below = []
        for path, held in level:
            for name, each in _parts(held):
                if each is module:
                    return f"{path}{name}"
                if id(each) not in seen and (isinstance(each, list | tuple | dict) or _is_module(type(each))):
                    seen.add(id(each))
                    below.append((f"{path}{name}.", each))
        level = below
    return None


def _parts(held: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(held, dict):
        return held.items()
    return enumerate(held) if isinstance(held, list | tuple) else getattr(held, "__dict__", {}).items()
