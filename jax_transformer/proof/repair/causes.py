"""Edits in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

"""Calls that only move elements."""
JOINS = ("concatenate", "put")
"""Calls that join values, each of which may be wrong."""

Kind = Literal["constant", "weight", "order", "left out", "operand", "missing", "operation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds of edits in order of preference."""


@dataclass(frozen=True)
class Cause:
    """An edit without which two programs differ."""

    kind: Kind
    candidate: str
    """The candidate's line."""
    reference: str
    """The reference's line."""
    text: str
    cure: str
    """The change that makes the two equal."""
    modules: tuple[str, ...] = ()
    """The candidate's modules, and steps of loops, in which it is."""

    def __str__(self) -> str:
        modules = ", ".join(self.modules)
        return f"{self.text}{f' (in {modules})' if modules else ''}"


@dataclass(frozen=True)
class Repair:
    """Holds the edits with which a candidate is proven to be the same function as its reference."""

    causes: tuple[Cause, ...]
    log2_error: float
    """The logarithm of a bound on the probability that the proof is wrong."""

    def __str__(self) -> str:
        cure = self.causes[0].cure if len(self.causes) == 1 else "with the reference's in all of these places"
        return f"{'; '.join(map(str, self.causes))}; {cure}, the two are proven the same"
