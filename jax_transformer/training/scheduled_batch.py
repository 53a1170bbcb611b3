"""What the training loop gets from a schedule of batches, whether its corpus is prepared or streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from jax_transformer.data.batching import Batch, Shape

Position = dict[str, Any]
"""Where the data stands after a step, in plain values that a checkpoint keeps; empty where the step says it all."""


class ScheduledBatch(NamedTuple):
    """The batch of one step."""

    batch: Batch
    position: Position
    """After this step."""
    figures: dict[str, Any]
    """What the line of metrics of this step says about the data: "epoch", and more of a stream."""
    is_last: bool
    """Whether the run ends with this step."""
    failure: str = ""
    """Why no batch can follow for now: the run is to be saved after this step, and ended."""


class Schedule(Protocol):
    """Which batch each step gets."""

    @property
    def shapes(self) -> tuple[Shape, ...]: ...

    @property
    def padding(self) -> float:
        """The share of the batches' positions that is padding."""

    @property
    def batches_per_epoch(self) -> int | None:
        """None: unknown, as are the next two."""

    @property
    def last_step(self) -> int | None: ...

    @property
    def epochs(self) -> float | None: ...

    def scheduled_from(self, step: int, position: Position) -> Iterator[ScheduledBatch]:
        """What comes after `step` steps; `position` is the one saved then, {} before the first step."""

    def closing_lines(self, position: Position) -> list[str]:
        """What is to be told at the end of a run, at its last position."""


def known(number: float | None, form: str = ",") -> str:
    """The number as text, or "unknown"."""
    return "unknown" if number is None else format(number, form)
