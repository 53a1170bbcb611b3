"""Lists the classes and functions that a program consists of, with their files, lines and digests."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

FRAMEWORKS = ("torch", "jax", "jaxlib", "flax", "equinox", "numpy", "ml_dtypes", "builtins", "collections", "functools")
"""Packages whose classes are named by their versions alone."""
DEEPEST = 8


def sources_of(program: Any) -> tuple[dict[str, Any], ...]:
    """Returns the classes of a module and of its parts, or a function: name, file, lines, and SHA-256 of the text.

    A file is named by its path inside its package's folder. What has no source, such as a class typed into a session,
    is left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for each in _parts(program, 0, set()):
        name = f"{each.__module__}.{each.__qualname__}"
        if name in found or each.__module__.partition(".")[0] in FRAMEWORKS:
            continue
        try:
            lines, first = inspect.getsourcelines(each)
            file = inspect.getsourcefile(each) or ""
        except (OSError, TypeError):
            continue
        text = "".join(lines)
        found[name] = {
            "name": name,
            "file": _inside(file),
            "lines": (first, first + len(lines) - 1),
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
    return tuple(found[name] for name in sorted(found))


def _parts(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Yields the classes of a module and its parts, and functions."""
    if id(value) in seen or depth > DEEPEST:
        return
    seen.add(id(value))
    if hasattr(value, "named_modules"):
        yield from dict.fromkeys(type(part) for part in value.modules())
        return
    if inspect.isfunction(value):
        yield value
        return
    if isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _parts(part, depth + 1, seen)
        return
    if hasattr(value, "__dict__") and not isinstance(value, type):
        yield type(value)
        for part in vars(value).values():
            yield from _parts(part, depth + 1, seen)


def _inside(file: str) -> str:
    """Returns a path from its package's folder on."""
    return re.split(r"(?:site|dist)-packages/", file.replace(os.sep, "/"))[-1].removeprefix(os.getcwd() + "/")
