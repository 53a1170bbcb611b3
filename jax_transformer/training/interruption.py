"""Stops a run on Ctrl-C or SIGTERM, after the current step, with its state saved."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from jax.experimental import multihost_utils


class Interrupted(Exception):
    """Raised when Ctrl-C or SIGTERM stops a run, after its state was saved.

    Example:
      >>> from pathlib import Path
      >>> from jax_transformer.training import Interrupted
      >>> Interrupted(Path("runs/demo"), step=200).step
      200
    """

    def __init__(self, run: Path, step: int, *, takes_batches: bool = False) -> None:
        super().__init__(f"stopped and saved at step {step}; {how_to_resume(run, takes_batches=takes_batches)}")
        self.run, self.step = run, step


def how_to_resume(run: Path, *, takes_batches: bool = False) -> str:
    """Returns the advice that ends the messages of stopped runs; `takes_batches`: of those on batches of the caller."""
    if takes_batches:
        return f"if the batches can say where they are, resume {run} with: train(config, resume=True, batches=…)"
    return f"resume with: jax-transformer train --resume {run}"


class stop_requests:
    """Turns Ctrl-C and SIGTERM into a request to stop after the current step; a second Ctrl-C stops at once.

    With several processes, a request to any of them stops all after the same step: JAX's preemption service, which
    handles SIGTERM, lets them agree on it.
    """

    def __init__(self, processes: int = 1) -> None:
        self._is_alone = processes == 1

    def __enter__(self) -> Callable[[int], bool]:
        """Returns a function of the step that returns True to stop after it; call it after each step."""
        self._requested = False
        self._previous: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM) if self._is_alone else (signal.SIGINT,):
                self._previous[number] = signal.signal(number, self._request)
        return (lambda step: self._requested) if self._is_alone else multihost_utils.reached_preemption_sync_point

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
        if not self._is_alone:
            os.kill(os.getpid(), signal.SIGTERM)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
