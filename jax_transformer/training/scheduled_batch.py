"""The interface between the training loop and its batches, for prepared and streamed corpora."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from jax_transformer.data.batching import Batch, Shape

Position = dict[str, Any]
"""Position in the data after a step, in plain values for the checkpoint; empty if the step number suffices."""


class ScheduledBatch(NamedTuple):
    """Holds the batch of one step."""

    batch: Batch
    position: Position
    """Position after this step."""
    figures: dict[str, Any]
    """Data entries of this step's line of metrics: "epoch" and, for a stream, its counts."""
    is_last: bool
    """Whether this is the last step of the run."""
    failure: str = ""
    """Why the next batch can't be read; the loop saves the run after this step and stops. Empty: it can."""


class Schedule(Protocol):
    """Assigns a batch to each step."""

    @property
    def shapes(self) -> tuple[Shape, ...]: ...

    @property
    def padding(self) -> float:
        """Share of the batches' positions that is padding."""

    @property
    def pairs_per_row(self) -> float | None:
        """Mean number of pairs in a row of packed batches. None: they aren't packed."""

    @property
    def batches_per_epoch(self) -> int | None:
        """Batches per epoch. None: unknown, as for the next two properties."""

    @property
    def last_step(self) -> int | None: ...

    @property
    def epochs(self) -> float | None: ...

    def scheduled_from(self, step: int, position: Position) -> Iterator[ScheduledBatch]:
        """Yields the batches after `step` steps; `position` is the one saved at that step, {} before the first."""

    def closing_lines(self, position: Position) -> list[str]:
        """Returns the lines to print at the end of a run, given its last position."""


def batch_figures(schedule: Schedule) -> str:
    """Describes the batches in a few words, such as "2.5% padding, 8.2 pairs per row"."""
    packed = "" if schedule.pairs_per_row is None else f", {schedule.pairs_per_row:.1f} pairs per row"
    return f"{schedule.padding:.1%} padding{packed}"


def known(number: float | None, form: str = ",") -> str:
    """Formats a number, or returns "unknown" for None."""
    return "unknown" if number is None else format(number, form)
