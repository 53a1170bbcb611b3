"""Watches the other processes of a run, and ends this one if one of them dies or fails."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

POLL_SECONDS = 1.0
OWN_WORD_SECONDS = 15.0
"""Seconds that process 0 may still spend on finding the cause of another process's failure itself, and on writing."""
JOIN_SECONDS = 5.0
LOST = 1


class Failure(NamedTuple):
    """Holds the reason why a process ended."""

    message: str
    code: int


class Watch:
    """Watches in two threads, so that it also works while the main one waits for a device.

    Heartbeats, which JAX's client sends from a separate thread, show that a process is alive: long work in Python
    doesn't stop them; a signal that kills or stops the process does.
    """

    def __init__(
        self, client: Any, number: int, names: Sequence[str], advice: Callable[[], str], end: Callable[[int], Any]
    ) -> None:
        """Prepares to watch.

        Args:
          client: JAX's coordination client.
          number: this process's number.
          names: descriptions of all processes.
          advice: returns advice for messages about a lost process.
          end: exits with a code.
        """
        self._client, self._number, self._names, self._advice, self._end = client, number, names, advice, end
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=run, name=f"watch {name}", daemon=True)
            for name, run in (("presence", self._watch_presence), ("failures", self._watch_failures))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stops watching, since this process or all are about to end."""
        self._stopped.set()

    def join(self) -> None:
        """Waits until the threads have ended: one that still runs C++ code would end the interpreter with an error."""
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def _watch_presence(self) -> None:
        everyone = list(range(len(self._names)))
        while not self._stopped.is_set():
            with contextlib.suppress(Exception):  # the service is gone: JAX ends this process
                present = self._client.get_live_nodes(everyone)  # returns when all that live have asked
                gone = [number for number in everyone if number not in present]
                if gone:
                    self._finish(Failure(f"{self._named(gone)} died or stopped answering; {self._advice()}", LOST))
            self._stopped.wait(POLL_SECONDS)

    def _watch_failures(self) -> None:
        while not self._stopped.is_set():
            self._stopped.wait(POLL_SECONDS)
            with contextlib.suppress(Exception):
                found = self._client.key_value_dir_get("failed/")
                if found:
                    if self._number == 0:
                        self._stopped.wait(OWN_WORD_SECONDS)
                    key, value = min(found)
                    failure, number = Failure(*json.loads(value)), int(key.rpartition("/")[2])
                    is_reported = number == 0 or self._number != 0  # process 0 prints for all
                    self._finish(
                        failure._replace(message="" if is_reported else f"{self._named([number])}: {failure.message}")
                    )

    def _finish(self, failure: Failure) -> None:
        if self._stopped.is_set():
            return
        self._stopped.set()
        if failure.message:
            with contextlib.suppress(OSError):
                print(f"error: {failure.message}", file=sys.stderr, flush=True)
        self._end(failure.code)

    def _named(self, numbers: Sequence[int]) -> str:
        return ", ".join(f"process {number} ({self._names[number]})" for number in numbers)
