"""Shows the progress of training: a bar on a terminal, plain lines elsewhere, and plain values for other programs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from jax_transformer.runtime.durations import duration
from jax_transformer.runtime.standard_output import discard_output
from jax_transformer.training.batch_schedule import known
from jax_transformer.training.throughput import Window

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_FRAMES = 0.2
SECONDS_BETWEEN_STATUSES = 2.0
RARELY, SOON = 99.0, 9.0
"""Publishing the status takes at most 1 % of the time, and 10 % where something else begins: it is published again
after so many times the time that it took."""
TRAINING = "training"

Status = dict[str, Any]
"""What a run does now, in plain values; see `TrainingProgress.status`."""


class Pace:
    """Estimates the time left from the steps that the devices have finished.

    Leaves out everything up to the first finished step, and whatever interrupts the steps: compilation, evaluations.
    """

    def __init__(self, steps: int | None, evaluate_every: int, clock: Callable[[], float], done: int = 0) -> None:
        """Begins after `done` steps. `steps` is the last one; None: unknown."""
        self._steps, self._every, self._clock = steps, evaluate_every, clock
        self._evaluated_at = done
        self._evaluation: float | None = None
        self._has_evaluated = False
        self._begin()

    def _begin(self) -> None:
        self._first: tuple[int, float] | None = None
        self._last, self._paused = (0, 0.0), 0.0

    def finished(self, step: int) -> None:
        """Counts the steps up to `step`. A step before the last one, as after a rollback, begins anew."""
        if step < self._last[0]:
            self._evaluated_at = min(self._evaluated_at, step)
            self._begin()
        now = self._clock() - self._paused
        if self._first is None:
            self._first = step, now
        if step > self._last[0]:
            self._last = step, now

    def pause(self, seconds: float) -> None:
        """Leaves out some seconds in which no step was made."""
        self._paused += seconds

    def evaluated(self, seconds: float) -> None:
        """Leaves out an evaluation, and expects the next ones to take as long; not the first, which compiles."""
        self.pause(seconds)
        self._evaluated_at = self._last[0]
        if self._has_evaluated:
            self._evaluation = seconds
        self._has_evaluated = True

    @property
    def seconds_per_step(self) -> float | None:
        """None: too few steps are finished."""
        if self._first is None or self._last[0] <= self._first[0]:
            return None
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])

    def seconds_left(self, step: int) -> float | None:
        """Estimates the time from `step` to the last step, with the evaluations on the way once one is measured. None:
        unknown."""
        if self._steps is None or self.seconds_per_step is None:
            return None
        return self.seconds_per_step * (self._steps - step) + (self._evaluation or 0.0) * self._evaluations_left()

    def left(self, step: int) -> str:
        """Describes the time left, such as "45 s left" or "45 s and 2 evaluations left"."""
        seconds, count = self.seconds_left(step), self._evaluations_left()
        if seconds is None:
            return "time left unknown"
        if self._evaluation is not None or not count:
            return f"{duration(seconds)} left"
        return f"{duration(seconds)} and {count} evaluation{'' if count == 1 else 's'} left"

    def _evaluations_left(self) -> int:
        """Counts the evaluations to come: one every so many steps, and one at the end."""
        if self._steps is None or self._evaluated_at >= self._steps:
            return 0
        return math.ceil(self._steps / self._every) - self._evaluated_at // self._every


class Output(Console):
    """Prints to standard output. When its reader, such as `head`, has gone, the run goes on in silence."""

    def on_broken_pipe(self) -> None:
        discard_output()


class TrainingProgress:
    """Shows loss, learning rate, target tokens per second, the time left, and what happens between the steps.

    Call `at_step` after every step: it shows something only every so often, and never waits for a device.
    """

    def __init__(
        self,
        steps: int | None,
        done: int,
        *,
        evaluate_every: int = 10**9,
        publish: Callable[[Status], None] = lambda status: None,
    ) -> None:
        """Starts at `done` of `steps` steps.

        Args:
          steps: the last step. None: unknown.
          done: the steps made before.
          evaluate_every: steps from one evaluation to the next.
          publish: receives the status when something else begins, and every few seconds.
        """
        self.console = Output(file=sys.stdout, highlight=False, soft_wrap=True)
        self.pace = Pace(steps, evaluate_every, time.perf_counter, done)
        self._steps, self._publish = steps, publish
        self._status: Status = {"activity": "", "since": time.time(), "step": done, "last_step": steps}
        now = time.perf_counter()
        self._last_figures, self._last_line, self._next_frame = now, -math.inf, now
        self._next_status = self._soon = now
        self._depth = 0
        self._bar = Progress(
            _Activity(),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task(TRAINING, total=steps, completed=done, figures="", left="", since=now)

    @property
    def status(self) -> Status:
        """What the run does now: `activity` ("" while it makes steps), `since` when in seconds since 1970, the finished
        `step` of `last_step`, `seconds_left`, `tokens_per_second`, and in `steps` the metrics of the finished steps
        that metrics.jsonl doesn't have yet."""
        return dict(self._status)

    def at_step(self, step: int, window: Window) -> None:
        """Shows how far the devices have come, after `step` was given to them."""
        now = time.perf_counter()
        shows = now >= self._next_frame if self.console.is_terminal else now - self._last_line > SECONDS_BETWEEN_LINES
        if not shows and now < self._next_status:
            return
        rows = window.finished()
        finished = step - window.steps + len(rows)
        if len(rows):
            self.pace.finished(finished)
        self._record(finished, [{"step": finished - len(rows) + n, **row} for n, row in enumerate(rows, start=1)])
        if shows and rows:
            self._next_frame = now + SECONDS_BETWEEN_FRAMES
            tokens = sum(row["tokens"] for row in rows)
            loss = sum(row["loss"] * row["tokens"] for row in rows) / max(tokens, 1.0)
            figures = f"loss {loss:.3f}{' (smoothed)' if 'plain_loss' in rows[0] else ''}"
            if self.console.is_terminal:
                self._bar.update(self._task, completed=finished, figures=figures, left=self.pace.left(finished))
            else:
                self._line(finished, figures)
        if now >= self._next_status:
            self._publish_status()

    def update(self, step: int, figures: str, tokens_per_second: float | None = None) -> None:
        """Shows the text `figures` of a line of metrics.jsonl, whose last step is finished."""
        self.pace.finished(step)
        self._record(step, [], tokens_per_second)
        self._bar.update(self._task, completed=step, figures=figures, left=self.pace.left(step))
        now = time.perf_counter()
        self._next_frame = now + SECONDS_BETWEEN_FRAMES
        if not self.console.is_terminal and (now - self._last_figures > SECONDS_BETWEEN_LINES or step == self._steps):
            self._line(step, figures)
            self._last_figures = now

    @contextmanager
    def doing(self, what: str, *, is_evaluation: bool = False, prints: bool = False) -> Iterator[None]:
        """Shows what happens in the block, which makes no steps.

        Args:
          what: such as "compiling program 2 of 4".
          is_evaluation: whether the time left contains further blocks like this one.
          prints: whether to print it as a line where there is no bar.
        """
        before, start = self._status["activity"], time.perf_counter()
        self._begin(what)
        if not is_evaluation and start >= self._soon:  # its parts are published
            self._publish_status()
        if prints and not self.console.is_terminal:
            self.print(f"{what}…")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:  # an outer block takes the time of those in it
                (self.pace.evaluated if is_evaluation else self.pace.pause)(time.perf_counter() - start)
            self._begin(before)

    def print(self, text: str) -> None:
        """Prints a line above the bar."""
        self.console.print(text, markup=False)

    def _begin(self, activity: str) -> None:
        self._status |= {"activity": activity, "since": time.time()}
        self._bar.update(self._task, description=activity or TRAINING, since=time.perf_counter())
        self._next_status = min(self._next_status, self._soon)

    def _line(self, step: int, figures: str) -> None:
        self.print(f"step {step}/{known(self._steps, 'd')}  {figures}  {self.pace.left(step)}")
        self._last_line = time.perf_counter()

    def _record(self, step: int, rows: list[dict[str, float]], speed: float | None = None) -> None:
        """Keeps the finished step in the status, and metrics of the steps up to it that metrics.jsonl doesn't have."""
        if speed is None and rows and self.pace.seconds_per_step:
            speed = sum(row["tokens"] for row in rows) / len(rows) / self.pace.seconds_per_step
        left = self.pace.seconds_left(step)
        plain = [{name: value if math.isfinite(value) else None for name, value in row.items()} for row in rows]
        self._status |= {"step": step, "steps": plain, "seconds_left": left, "tokens_per_second": speed}

    def _publish_status(self) -> None:
        start = time.perf_counter()
        self._publish(self.status)
        now = time.perf_counter()
        self._soon = now + SOON * (now - start)
        self._next_status = now + max(SECONDS_BETWEEN_STATUSES, RARELY * (now - start))

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        self._publish_status()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()
        self._publish_status()


class _Activity(ProgressColumn):
    """Shows what happens, and for anything but training, for how long."""

    def render(self, task: Task) -> Text:
        if task.description == TRAINING:
            return Text(TRAINING)
        return Text(f"{task.description}… {duration(time.perf_counter() - task.fields['since'])}")
