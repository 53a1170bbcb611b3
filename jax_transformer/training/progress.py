"""Shows the progress of training: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jax_transformer.training.batch_schedule import known

SECONDS_BETWEEN_LINES = 10.0


class TrainingProgress:
    """Shows loss, learning rate, target tokens per second and the time left; call `update` as often as you like."""

    def __init__(self, steps: int | None, done: int) -> None:
        """Starts at `done` of `steps` steps; None: unknown."""
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._steps = steps
        self._start = time.perf_counter()
        self._first = done
        self._last_line = self._start
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=steps, completed=done, figures="")

    def update(self, step: int, figures: str) -> None:
        """Shows the text `figures` next to the step."""
        self._bar.update(self._task, completed=step, figures=figures)
        now = time.perf_counter()
        if not self.console.is_terminal and (now - self._last_line > SECONDS_BETWEEN_LINES or step == self._steps):
            left = "time left unknown"
            if self._steps is not None:
                left = f"{(now - self._start) / max(step - self._first, 1) * (self._steps - step):.0f} s left"
            self.console.print(f"step {step}/{known(self._steps, 'd')}  {figures}  {left}")
            self._last_line = now

    def print(self, text: str) -> None:
        """Prints a line above the bar."""
        self.console.print(text, markup=False)

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()
