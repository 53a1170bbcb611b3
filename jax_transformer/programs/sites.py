"""The sites of a program's operations: lines, calls, modules, and steps of loops."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

FRAMEWORKS = (
    *("torch", "jax", "jaxlib", "flax", "equinox", "haiku", "optax", "chex", "einops", "jaxtyping", "numpy"),
    *("jax_transformer.programs", "jax_transformer.proof", "jax_transformer.comparison", "jax_transformer.matching"),
    "jax_transformer.parity.proofs",
)
"""Packages whose lines aren't the program's own: frameworks whose layers programs call, and this package."""
PYTHON = sysconfig.get_paths()["stdlib"]
"""The folder of the standard library."""
TYPED = ("<stdin", "<console", "<input", "<ipython-input", "<python-input")
"""How the names of files begin that stand for lines typed at a prompt."""
MOST_FRAMES = 200
"""The most calls of a stack that are kept."""


class Frame(NamedTuple):
    """A call on a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


Stack = tuple[Frame, ...]
"""Calls, from the innermost on."""


def no_frames() -> Stack:
    return ()


@dataclass(frozen=True, eq=False)
class Site:
    """The place in a program at which an operation runs."""

    operation: str = ""
    """The framework's name for it."""
    line: str = ""
    """The program's own file and line, if it has one, else the innermost library's."""
    module: str = ""
    """The path of the enclosing module, such as `layers.1.self_attn`."""
    steps: tuple[int, ...] = ()
    """The steps of the loops that it is in, from the outermost on."""
    frames: Callable[[], Stack] = no_frames
    """Returns the calls that led to it."""

    @property
    def where(self) -> str:
        """Returns the module and the steps as text; "" if there are none."""
        steps = f"step {', '.join(map(str, self.steps))} of a loop" if self.steps else ""
        return ", ".join(filter(None, (self.module, steps)))


@cache
def is_of_framework(file: str) -> bool:
    """Returns whether no line of a file is a program's own."""
    is_of_python = file.startswith((PYTHON, "<")) and "/site-packages/" not in file and not file.startswith(TYPED)
    loaded = (getattr(sys.modules.get(name), "__file__", None) for name in FRAMEWORKS)
    return is_of_python or file.startswith(tuple(f"{os.path.dirname(path)}{os.sep}" for path in loaded if path))


def own_frame(stack: Stack) -> Frame | None:
    """Returns the program's own innermost call; the innermost of all if only a framework is running."""
    return next((frame for frame in stack if not is_of_framework(frame.file)), stack[0] if stack else None)


def own_frames(site: Site) -> list[Frame]:
    """Returns the program's own calls that lead to a site, from the outermost on."""
    return [frame for frame in reversed(site.frames()) if not is_of_framework(frame.file)]


def python_stack(frame: Any, last: Any = None) -> tuple[tuple[Any, int], ...]:
    """Returns code and lines of a frame and its callers, from the innermost on.

    Args:
      last: the code of the caller at which the stack ends.
    """
    found: list[tuple[Any, int]] = []
    while frame is not None and frame.f_code is not last and len(found) < MOST_FRAMES:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def as_stack(calls: tuple[tuple[Any, int], ...]) -> Stack:
    """Returns code and lines as a stack."""
    return tuple(Frame(code.co_filename, line, getattr(code, "co_qualname", code.co_name)) for code, line in calls)


class ModulePaths:
    """Maps PyTorch's running modules to their paths in the outermost one."""

    def __init__(self) -> None:
        import torch

        self._call = torch.nn.Module._call_impl.__code__  # type: ignore[attr-defined, unused-ignore]
        self._names: dict[int, tuple[Any, dict[int, str]]] = {}

    def running(self, frame: Any) -> list[Any]:
        """Returns the modules whose calls enclose a frame, from the innermost on."""
        found = []
        while frame is not None:
            if frame.f_code is self._call:
                found.append(frame.f_locals["self"])
            frame = frame.f_back
        return found

    def path(self, modules: list[Any]) -> str:
        """Returns the innermost module's path."""
        if not modules:
            return ""
        root = modules[-1]
        if id(root) not in self._names:
            self._names[id(root)] = root, {id(module): name for name, module in root.named_modules()}
        names = self._names[id(root)][1]
        return next((names[id(module)] for module in modules if id(module) in names), "")
