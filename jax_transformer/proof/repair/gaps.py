"""Lines between which operations are missing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from jax_transformer.programs.sites import Frame


class Gap(NamedTuple):
    """The lines of a function between which operations are missing."""

    start: Frame | None
    """The one that makes the value before; None: a caller does."""
    end: Frame | None
    """The one that reads it; None: a caller does."""
    module: str

    @classmethod
    def of(cls, start: Frame | None, end: Frame | None, module: str) -> Gap | None:
        """Returns a gap; None if both lines are unknown, or not in order."""
        is_known = start is not None or end is not None
        is_in_order = start is None or end is None or (start[::2] == end[::2] and start.line <= end.line)
        return cls(start, end, module) if is_known and is_in_order else None

    @classmethod
    def between(cls, made: Sequence[Frame], read: Sequence[Frame]) -> Gap | None:
        """Returns the gap between two stacks, in the innermost function that is in both."""
        pairs = zip(made, read, strict=False)
        both = [*itertools.takewhile(lambda pair: pair[0][::2] == pair[1][::2], pairs)]
        differing = [place for place, (one, other) in enumerate(both) if one != other]
        level = differing[0] if differing else len(both) - 1
        return cls.of(*both[level], "") if both else None

    @property
    def line(self) -> str:
        frame = self.end or self.start
        return "" if frame is None else f"{frame.file}:{frame.line}"

    def __str__(self) -> str:
        function = (self.end or self.start or Frame("", 0, "")).function
        if self.start is None:
            return f"no line of {function} above {self.line} does so to its input"
        first = f"{self.start.file}:{self.start.line}"
        if self.end is None:
            return f"no line of {function} below {first} does so to its result"
        between = f"no line of {function} from {first} to :{self.end.line} does so to the value between"
        return f"{first} doesn't" if first == self.line else between
