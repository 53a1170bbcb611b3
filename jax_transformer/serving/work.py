"""Defines work for the device: jobs of units, each unit a sentence or a pair, and the kinds that may share a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax_transformer.config.decoding import DecodingConfig


@dataclass(frozen=True)
class Translating:
    """Identifies translations that may share a batch: they have the same search options."""

    target_tag: str
    decoding: DecodingConfig
    """Resolved."""
    prefix_ids: tuple[int, ...]

    @property
    def hypotheses(self) -> int:
        """Returns the number of hypotheses that the search follows for each sentence."""
        return max(self.decoding.beam_size or 1, self.decoding.num_return or 1)

    @property
    def can_stream(self) -> bool:
        """Returns whether tokens are final one by one: in greedy decoding, or sampling of one hypothesis."""
        return self.hypotheses == 1 and self.decoding.semantics != "floydhub"


@dataclass(frozen=True)
class Scoring:
    """Identifies pairs that may share a batch."""

    target_tag: str
    hypotheses: int = 1


@dataclass(frozen=True)
class Attending:
    """Identifies pairs whose attention weights may be computed in one turn."""

    target_tag: str
    hypotheses: int = 1


Kind = Translating | Scoring | Attending


class Unit(NamedTuple):
    """Holds a sentence to translate, or a pair to score or to read the attention of."""

    source_ids: list[int]
    target_ids: Sequence[int] = ()
    number: int = 0
    """The number that random draws depend on, together with the seed."""

    @property
    def tokens(self) -> int:
        return len(self.source_ids) + len(self.target_ids)


@dataclass(eq=False)
class Job:
    """Holds the units of a request, and their results once they are there."""

    kind: Kind
    units: Sequence[Unit]
    on_done: Callable[[Job], object]
    """Called once, on the device's thread, after the last result or with an error."""
    results: dict[int, Any] = field(default_factory=dict)
    """Unit → its result."""
    error: Exception | None = None
    is_cancelled: bool = False
    """Nobody waits for the results."""

    def cost(self, unit: Unit) -> int:
        """Returns the unit's source and target tokens, counted once for each hypothesis."""
        return unit.tokens * self.kind.hypotheses

    @property
    def total_cost(self) -> int:
        return sum(map(self.cost, self.units))

    def finish(self, index: int, result: Any) -> None:
        """Keeps a result; reports the job after its last."""
        self.results[index] = result
        if len(self.results) == len(self.units) and not self.is_cancelled:
            self.on_done(self)

    def fail(self, error: Exception) -> None:
        """Ends the job, whose remaining units aren't computed."""
        if not self.is_cancelled:
            self.is_cancelled, self.error = True, error
            self.on_done(self)
