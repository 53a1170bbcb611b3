"""Handles errors that nobody can catch, which Python only prints."""

from __future__ import annotations

import sys


def silence_closed_loops() -> None:
    """Keeps TensorStore's threads from printing a traceback for each part of a checkpoint that is still being written
    when another part has failed. The failure itself is raised where the checkpoint is waited for."""
    if sys.unraisablehook is sys.__unraisablehook__:  # else another program's, such as a test runner's
        sys.unraisablehook = _unless_loop_is_closed


def _unless_loop_is_closed(unraisable: sys.UnraisableHookArgs) -> None:
    error = unraisable.exc_value
    if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
        sys.__unraisablehook__(unraisable)
