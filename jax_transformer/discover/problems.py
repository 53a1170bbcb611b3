"""Errors for modules that no config expresses, each with its place in the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.discover.conclusions import Conclusion
from jax_transformer.programs.trace import Value

if TYPE_CHECKING:
    from jax_transformer.programs.calling import Call


class DiscoverError(ValueError):
    """Explains why no config was found for a module, in one line or a list."""

    found: tuple[Conclusion, ...] = ()
    """Conclusions reached before the error."""
    call: Call | None = None
    """The way the module was called."""


class CannotRun(DiscoverError):
    """Reports a module that fails in float64, so that nothing is known about its config."""


class TooLarge(CannotRun):
    """Reports a run that needs too much memory to be recorded, whatever its ids."""


class Differs(DiscoverError):
    """Reports a model that differs from its module, though each conclusion held on the batch that was read."""


class Unknown(DiscoverError):
    """Reports a part of the module that no config expresses.

    Args:
      value: the tensor where it shows.
      what: the part, as in "attention weights that aren't a softmax over the keys".
      nearest: the closest form that a config has, and its distance from the module's numbers: the RMS of the difference
        in units of theirs.
    """

    def __init__(self, value: Value, what: str, nearest: tuple[str, float] | None = None) -> None:
        near = "" if nearest is None else f" (nearest: {nearest[0]}, residual {nearest[1]:.1e})"
        super().__init__(f"{what}{near}: {value.described()}")
        self.value, self.what = value, what
