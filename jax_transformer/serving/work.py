"""Defines work for the device: jobs of units, such as sentences or pairs, and the kinds that may share a batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.serving.limits import Limits


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


class AnyKind(Hashable, Protocol):
    """Identifies units that may share a batch."""

    @property
    def hypotheses(self) -> int:
        """Returns how often the device counts a unit's tokens."""


class AnyUnit(Protocol):
    """Holds a part of a request."""

    @property
    def tokens(self) -> int:
        """Returns the positions that the device computes for it."""


class Computer(Protocol):
    """Computes units on the device. `compute` belongs to the device's thread."""

    limits: Limits

    def compute(self, kind: Any, units: Sequence[Any]) -> Sequence[Any]:
        """Returns the result of each unit of a batch."""

    def fill(self, kind: Any, units: Sequence[Any]) -> float:
        """Returns the share of a batch that isn't padding."""

    def target_tokens(self, unit: Any, result: Any) -> int:
        """Returns the tokens of a unit's result."""


@dataclass(eq=False)
class Job:
    """Holds the units of a request, and their results once they are there."""

    kind: AnyKind
    units: Sequence[AnyUnit]
    on_done: Callable[[Job], object]
    """Called once, on the device's thread, after the last result or with an error."""
    results: dict[int, Any] = field(default_factory=dict)
    """Unit → its result."""
    error: Exception | None = None
    is_cancelled: bool = False
    """Nobody waits for the results."""

    def cost(self, unit: AnyUnit) -> int:
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
