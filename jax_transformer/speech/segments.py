"""Divides the tokens of a window by their times (Radford et al. 2022, §3.8)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

FRAME = 0.01
"""Seconds from one frame of the spectrum to the next."""


class Span(NamedTuple):
    """Holds the tokens of a segment and its times, in frames from the window's start."""

    start: float
    end: float
    tokens: list[int]


class Divided(NamedTuple):
    """Holds what a window says."""

    spans: list[Span]
    advance: int
    """Frames from the window's start to the next one's."""


def divide(tokens: Sequence[int], first_time: int, frames: int, stride: int) -> Divided:
    """Divides the tokens of a window at each pair of times.

    If the tokens end in one time, or hold no pair, nothing was cut off, and the next window begins where this one ends.
    Otherwise it begins at the last pair, since what follows it may have been cut off, and isn't part of the result.

    Args:
      tokens: of the window, without prompt and end.
      first_time: the id of the time 0.
      frames: of the window, without padding.
      stride: frames from one time to the next.

    Example:
      >>> divided = divide([50, 3, 4, 54, 54, 5], first_time=50, frames=30, stride=2)
      >>> divided.spans, divided.advance
      ([Span(start=0.0, end=8.0, tokens=[50, 3, 4, 54, 54])], 8)
    """

    def at(token: int) -> float:
        return float((token - first_time) * stride)

    tokens = list(tokens)
    is_time = [token >= first_time for token in tokens]
    pairs = [i for i in range(1, len(tokens)) if is_time[i - 1] and is_time[i]]
    ends_alone = is_time[-2:] == [False, True]
    if not pairs:
        times = [token for token, timed in zip(tokens, is_time, strict=True) if timed]
        end = at(times[-1]) if times and times[-1] != first_time else float(frames // stride * stride)
        return Divided([Span(0.0, end, tokens)], frames)
    cuts = [0, *pairs, len(tokens)] if ends_alone else [0, *pairs]
    spans = []
    for number, (first, last) in enumerate(pairwise(cuts), start=2):
        # the last segment keeps the start of the next one, which tells that it was followed by a pair
        kept = last + 1 if number == len(cuts) and not ends_alone else last
        spans.append(Span(at(tokens[first]), at(tokens[last - 1]), tokens[first:kept]))
    return Divided(spans, frames if ends_alone else int(at(tokens[pairs[-1] - 1])))
