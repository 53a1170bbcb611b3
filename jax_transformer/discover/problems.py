"""What can't be expressed by a config, each with its place in the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.discover.conclusions import Conclusion
from jax_transformer.programs.trace import Value

if TYPE_CHECKING:
    from jax_transformer.programs.calling import Call


class DiscoverError(ValueError):
    """Says why no config was found for a module, in one line or a list."""

    found: tuple[Conclusion, ...] = ()
    """What was concluded before."""
    call: Call | None = None
    """How the module was called."""


class CannotRun(DiscoverError):
    """Says that a module can't be run as it must be to be read, which says nothing about configs."""


class TooLarge(CannotRun):
    """Says that a run takes too much memory to be read, on any ids."""


class Differs(DiscoverError):
    """Says that a model computes something else than its module, though each conclusion held on the batch that was
    read."""


class Unknown(DiscoverError):
    """Says that a part of the module computes something that no config expresses.

    Args:
      value: the tensor where it shows.
      what: the part, as in "attention weights that are no softmax over the keys".
      nearest: what the nearest config computes there, and how far it is from the module's numbers: the RMS of the
        difference in units of theirs.
    """

    def __init__(self, value: Value, what: str, nearest: tuple[str, float] | None = None) -> None:
        near = "" if nearest is None else f" (nearest: {nearest[0]}, residual {nearest[1]:.1e})"
        super().__init__(f"{what}{near}: {value.described()}")
        self.value, self.what = value, what
