"""Holds a number for each element of all weights, in parts that copies share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from jax_transformer.proof.distinct import distinct


class Row:
    """Holds a number for each element of a program's weights, one weight after the other.

    A copy shares the parts of all weights until one of the two changes them: guesses differ in a few weights each.

    Args:
      parts: the numbers of each weight, each in one row.
    """

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts = list(parts)
        self._starts = np.cumsum([0, *(part.size for part in parts)])

    def copy(self) -> Row:
        found = Row.__new__(Row)
        found.parts, found._starts = list(self.parts), self._starts
        return found

    def joined(self) -> np.ndarray:
        """Returns all numbers in one array."""
        return np.concatenate(self.parts or [np.zeros(0, np.int64)])

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        whole = list(self._split(places))
        if len(whole) == 1:
            number, _, local = whole[0]
            return self.parts[number][local]
        found = np.zeros(places.shape, self.parts[0].dtype if self.parts else np.int64)
        for number, chosen, local in whole:
            found[chosen] = self.parts[number][local]
        return found

    def __setitem__(self, places: np.ndarray, numbers: np.ndarray | int | bool) -> None:
        for number, chosen, local in self._split(places):
            part = self.parts[number].copy()
            part[local] = numbers[chosen] if isinstance(numbers, np.ndarray) else numbers
            self.parts[number] = part

    def apart(self, other: Row) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yields the first place of each part that isn't shared with another row, and the part of both."""
        for start, ours, theirs in zip(self._starts[:-1], self.parts, other.parts, strict=True):
            if ours is not theirs:
                yield int(start), ours, theirs

    def _split(self, places: np.ndarray) -> Iterator[tuple[int, np.ndarray | slice, np.ndarray]]:
        """Yields the numbers of the parts that have these places, which of the places each has, and where in it."""
        if not places.size:
            return
        first, last = np.searchsorted(self._starts, (places.min(), places.max()), side="right") - 1
        if first == last:
            yield int(first), slice(None), places - self._starts[first]
            return
        owners = np.searchsorted(self._starts, places, side="right") - 1
        for number in distinct(owners):
            chosen = owners == number
            yield int(number), chosen, places[chosen] - self._starts[number]
