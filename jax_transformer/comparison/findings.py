"""The results of a diagnosis: the node of a side that computes something else than it should, and its causes."""

from __future__ import annotations

from typing import Literal, NamedTuple

SideName = Literal["candidate", "reference"]
Blamed = Literal["candidate", "reference", "unknown"]
"""The side at fault; "unknown" if the two differ and nothing shows which of them is right."""
Effect = Literal["function", "fully masked rows", "none"]
"""What a difference changes: the model's function; only rows in which a query sees no key; or nothing but the value of
masked logits, which softmax ignores."""


class Match(NamedTuple):
    """Holds a variant from the catalogue, and its distance from the received value."""

    variant: str
    residual: float
    """The relative RMS of the difference."""


class Finding(NamedTuple):
    """Describes a node that computes something else from its own inputs than it should."""

    node: str
    kind: str
    local_error: float
    """The relative RMS between the received value and the right one for these inputs; NaN if that isn't known."""
    matches: tuple[Match, ...]
    """Variants within the gate, those of one change first; none if the catalogue lacks the fault."""
    runner_up: Match | None
    """The nearest variant outside the gate."""
    told_apart_by: str = ""
    """Inputs on which several matches would differ."""
    effect: Effect = "function"
    """What the difference changes; "none" is a note, and no fault."""
    precision: str = ""
    """The dtype that the node was computed in, if it has another fault beside that one that no variant explains."""

    heads: tuple[int, ...] = ()
    """The order of an attention's heads, where that is all that differs: the right number of each."""

    @property
    def is_fault(self) -> bool:
        """Whether it changes what the model computes."""
        return self.effect != "none"

    @property
    def cause(self) -> str:
        unexplained = f"unexplained, computed in {self.precision}" if self.precision else "unexplained"
        return " or ".join(match.variant for match in self.matches) or unexplained


class Fault(NamedTuple):
    """Holds a finding, its side and its stage."""

    side: Blamed
    """The side at fault: the one that departs from the config, or whose gradients aren't the slope of its loss."""
    stage: str
    finding: Finding
    propagated_error: float
    """The relative RMS between the two sides at this node, each computing from the ids."""
    case: str = ""
    """The problem on which it was found."""
    command: str = ""
    """The command that replays this node alone."""
