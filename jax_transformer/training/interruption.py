"""Stopping a run: Ctrl-C and SIGTERM end it after the current step, with its state saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any


class Interrupted(Exception):
    """Raised when Ctrl-C or SIGTERM stops a run, after its state was saved.

    Example:
      >>> from pathlib import Path
      >>> from jax_transformer.training import Interrupted
      >>> Interrupted(Path("runs/demo"), step=200).step
      200
    """

    def __init__(self, run: Path, step: int) -> None:
        super().__init__(f"stopped and saved at step {step}; {how_to_resume(run)}")
        self.run, self.step = run, step


def how_to_resume(run: Path) -> str:
    """Returns the advice that ends the messages of stopped runs."""
    return f"resume with: jax-transformer train --resume {run}"


class stop_requests:
    """Turns Ctrl-C and SIGTERM into a request to stop after the current step; a second Ctrl-C stops at once."""

    def __enter__(self) -> Callable[[], bool]:
        self._requested = False
        self._previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request)
        return lambda: self._requested

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
