"""What a diagnosis says: which node of which side computes something else than it should, and what it computes
instead."""

from __future__ import annotations

from typing import Literal, NamedTuple

SideName = Literal["candidate", "reference"]


class Match(NamedTuple):
    """A variant, and how near it comes to what was received."""

    variant: str
    residual: float
    """The relative RMS between the two."""


class Finding(NamedTuple):
    """A node that computes something else, from its own inputs."""

    node: str
    kind: str
    local_error: float
    """The relative RMS between what was received and what should have been made of these inputs."""
    matches: tuple[Match, ...]
    """Variants within the gate, those of one change first; none where the fault is in no catalogue."""
    runner_up: Match | None
    """The nearest variant that is not within it."""
    told_apart_by: str = ""
    """With several matches, the inputs on which they would differ."""

    @property
    def cause(self) -> str:
        return " or ".join(match.variant for match in self.matches) or "unexplained"


class Fault(NamedTuple):
    """A finding, and where it was seen."""

    side: SideName
    """Who is at fault: the one that departs from what the config says."""
    stage: str
    finding: Finding
    propagated_error: float
    """The relative RMS between the two sides at this node, each computing from the ids."""
    case: str = ""
    """On which problem."""
    command: str = ""
    """What replays this node alone."""
