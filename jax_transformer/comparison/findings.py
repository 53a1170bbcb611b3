"""Holds the results of a diagnosis: a side's faulty node, and its causes."""

from __future__ import annotations

from typing import Literal, NamedTuple

SideName = Literal["candidate", "reference"]
Blamed = Literal["candidate", "reference", "unknown"]
"""The side at fault; "unknown" if the two differ and nothing shows which of them is right."""
Effect = Literal["function", "fully masked rows", "none"]
"""Effects of a difference: on the model's function; only on fully masked rows, where a query sees no key; or only on
masked logits, which softmax ignores."""


class Match(NamedTuple):
    """Holds a variant from the catalogue, and its distance from the received value."""

    variant: str
    residual: float
    """The relative RMS of the difference."""


class Finding(NamedTuple):
    """Describes a node that computes a wrong value from its own inputs."""

    node: str
    kind: str
    local_error: float
    """The relative RMS between the received value and the right one for these inputs; NaN if that is unknown."""
    matches: tuple[Match, ...]
    """Variants within the gate, single changes first; empty if the catalogue lacks the fault."""
    runner_up: Match | None
    """The nearest variant outside the gate."""
    told_apart_by: str = ""
    """Inputs that would distinguish several matches."""
    effect: Effect = "function"
    """The effect of the difference; "none" makes it a note, not a fault."""
    precision: str = ""
    """The dtype in which the node was computed, if it has a second fault that no variant explains."""

    heads: tuple[int, ...] = ()
    """The order of an attention's heads, if only that differs: the right number of each head."""

    @property
    def is_fault(self) -> bool:
        """Returns whether the difference changes the model's results."""
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
