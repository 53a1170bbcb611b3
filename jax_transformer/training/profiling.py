"""Traces some training steps for XProf or Perfetto."""

from __future__ import annotations

from pathlib import Path

import jax

SKIPPED_STEPS = 20
TRACED_STEPS = 10


class Profile:
    """Traces TRACED_STEPS steps after the first SKIPPED_STEPS, in which the usual shapes are compiled; call
    `before_step` before each step."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._is_open = False
        self._seen = 0

    def before_step(self) -> None:
        self._seen += 1
        if self._seen == SKIPPED_STEPS + 1:
            jax.profiler.start_trace(str(self.directory))
            self._is_open = True
        elif self._seen == SKIPPED_STEPS + TRACED_STEPS + 1:
            self.close()

    def close(self) -> None:
        """Ends the trace, if one has started."""
        if self._is_open:
            jax.profiler.stop_trace()
            self._is_open = False
