"""Edits of a candidate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.programs.sites import Site
from jax_transformer.proof.programs import Ref, Value
from jax_transformer.proof.tape import Operand


class Moved(NamedTuple):
    """Holds a value of the candidate, and the place of each element in it."""

    ref: Ref
    order: np.ndarray | None

    def put(self, own: Callable[[Ref], Value], builder: Any, read: Callable[[Ref], Value]) -> Value:
        """Returns it as a replacement of another program's value.

        Args:
          own: reads results of the candidate.
        """
        return own(self.ref) if self.order is None else builder.take(own(self.ref), self.order)


@dataclass(frozen=True, eq=False)
class Edit:
    """Replaces a value in places of the candidate by a value of the reference."""

    places: tuple[Ref | Operand, ...]
    source: Ref
    """The reference's."""
    order: np.ndarray | None = None
    """Place of each element in the source; None: unchanged."""
    cost: int = 0
    own: Mapping[Ref, Moved] = field(default_factory=dict)
    """The source or its operands, if the candidate has them earlier → its own values, so that the rest of the candidate
    stays unchanged."""
    site: Site | None = None
    """Place where the reference reads the source; None: where it computes it."""
    is_closed: bool = True
    """Whether all that the source is computed from, and the candidate has, is its own."""
    kept: Ref | None = None
    """The candidate's operand that is put in place of the source, if the operation at the place is left out."""

    @property
    def place(self) -> Ref | Operand:
        return self.places[0]


def same(ours: np.ndarray | None, theirs: Any) -> bool:
    return ours is not None and theirs is not None and np.array_equal(ours, theirs)


def ordered(array: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    return array if order is None else np.ravel(array)[order]


def ordered_as(array: np.ndarray | None, order: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else ordered(array, order)
