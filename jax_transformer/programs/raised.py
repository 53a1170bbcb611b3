"""Describes errors that a user's program raises in one line, with the part of a module that raised them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

RAISED = (Exception, SystemExit)
"""Errors that a user's code may raise. (A SystemExit would end the command with an exit code of its own.)"""
MOST = 240
"""The most characters of an exception's text that a message shows."""


def describe_failure(module: nn.Module, error: BaseException, again: Callable[[], Any] | None = None) -> str:
    """Describes a module's error in one line, with the part that raised it.

    Args:
      again: repeats the failing call, to see which part is running.
    """
    place = None if again is None else _place(module, again)
    return f"its forward raised {in_short(error)}" + (f", in {place}" if place else "")


def in_short(error: BaseException) -> str:
    """Returns an exception's type and text in one line."""
    text = " ".join(str(error).split())
    return (
        f"{type(error).__name__}: {text if len(text) <= MOST else text[:MOST] + ' …'}" if text else type(error).__name__
    )


def _place(module: nn.Module, again: Callable[[], Any]) -> str:
    """Returns the path and class of the innermost part of a module that raises; "" for the module itself, or if it
    doesn't raise again."""
    running: list[str] = []

    def enter(label: str, *call: Any) -> None:
        running.append(label)

    def leave(*call: Any) -> None:
        running.pop()

    with contextlib.ExitStack() as stack:
        try:
            for path, part in module.named_modules():
                label = f"{path} ({type(part).__name__})" if path else ""
                stack.callback(part.register_forward_pre_hook(partial(enter, label)).remove)
                stack.callback(part.register_forward_hook(leave).remove)
            again()
        except RAISED:
            return running[-1] if running else ""
    return ""
