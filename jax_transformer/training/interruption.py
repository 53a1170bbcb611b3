"""Stops a run on Ctrl-C or SIGTERM, after the current step, with its state saved."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

PATIENCE_SECONDS = 3.0
"""How long a second Ctrl-C waits for the main thread, which can't be interrupted while it compiles."""
STOPPED = 130
"""The exit code after Ctrl-C."""
SHOW_CURSOR = b"\x1b[?25h"


class Interrupted(Exception):
    """Raised when Ctrl-C or SIGTERM stops a run, after its state was saved.

    Example:
      >>> from pathlib import Path
      >>> from jax_transformer.training import Interrupted
      >>> Interrupted(Path("runs/demo"), step=200).step
      200
    """

    def __init__(self, run: str | Path, step: int, *, takes_batches: bool = False) -> None:
        super().__init__(f"stopped and saved at step {step}; {how_to_resume(run, takes_batches=takes_batches)}")
        self.run, self.step = run, step


def how_to_resume(run: str | Path, *, takes_batches: bool = False) -> str:
    """Returns the advice that ends the messages of stopped runs; `takes_batches`: of those on batches of the caller."""
    if takes_batches:
        return f"if the batches can say where they are, resume {run} with: train(config, resume=True, batches=…)"
    return f"resume with: jax-transformer train --resume {run}"


class stop_requests:
    """Turns Ctrl-C and SIGTERM into a request to stop after the current step; a second Ctrl-C stops at once.

    The first request is answered at once, even while the main thread compiles a program or waits for a device: Python's
    own handlers run only after that. A second one then ends the process after `PATIENCE_SECONDS`, as SIGKILL would.

    With several processes, a request to any of them stops all after the same step: JAX's preemption service, which
    handles SIGTERM, lets them agree on it.
    """

    def __init__(self, processes: int = 1, say: Callable[[str], None] = lambda text: None) -> None:
        """Prepares to handle signals; `say` prints a line, from another thread."""
        self._is_alone, self._say = processes == 1, say

    def __enter__(self) -> Callable[[int], bool]:
        """Returns a function of the step that returns True to stop after it; call it after each step."""
        self._requested, self._raised = False, threading.Event()
        self._previous: dict[int, Any] = {}
        self._watcher: threading.Thread | None = None
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM) if self._is_alone else (signal.SIGINT,):
                self._previous[number] = signal.signal(number, self._request)
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)
            self._previous_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            self._watcher = threading.Thread(target=self._watch, name="stop requests", daemon=True)
            self._watcher.start()
        if self._is_alone:
            return lambda step: self._requested
        from jax.experimental import multihost_utils

        return multihost_utils.reached_preemption_sync_point

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            self._raised.set()
            raise KeyboardInterrupt
        self._requested = True
        if not self._is_alone:
            os.kill(os.getpid(), signal.SIGTERM)

    def _watch(self) -> None:
        """Answers signals as soon as they arrive: their numbers come through a pipe."""
        count = 0
        while number := os.read(self._reader, 1)[0]:
            count += number in self._previous
            if number in self._previous and count == 1:
                when = "after this step" if self._is_alone else "all processes after the same step"
                self._say(f"stopping {when}; press Ctrl-C again to stop at once")
            elif number in self._previous and not self._raised.wait(PATIENCE_SECONDS):
                self._say("stopped at once, without a checkpoint of this step")
                if sys.stdout.isatty():
                    os.write(sys.stdout.fileno(), SHOW_CURSOR)  # which a bar hides
                os._exit(STOPPED)

    def __exit__(self, *exception: object) -> None:
        if self._watcher is not None:
            self._raised.set()  # the main thread runs
            signal.set_wakeup_fd(self._previous_wakeup)
            os.set_blocking(self._writer, True)
            os.write(self._writer, b"\0")
            self._watcher.join()
            os.close(self._reader)
            os.close(self._writer)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
