"""The values of the reference that may be put into a candidate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from jax_transformer.proof.programs import Ref, Value
from jax_transformer.proof.repair.bench import Bench
from jax_transformer.proof.repair.edits import same

MOST_COST = 8
"""Lost operations that come with an edit."""
MOST_INSERTED = 24
"""The same of an edit that puts them behind a value of the candidate, such as those of a norm."""
MOST_AXES, MOST_ORDERS = 5, 2
"""Axes of values whose axes may be permuted, and such orders that are tried for two shapes."""
MOST_ASSIGNMENTS = 60
"""Ways of assigning several values to places that are tried."""


class Sources:
    """The values of the reference that may be put into a candidate."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.reference = bench, bench.reference
        self._axes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[np.ndarray]] = {}

    @cached_property
    def by_size(self) -> dict[int, list[Ref]]:
        """Returns the reference's values by size, from the cheapest on, each once."""
        found: dict[int, list[Ref]] = {}
        for ref in sorted(self.reference.results.values(), key=self.bench.cost):
            if self.bench.cost(ref) <= max(self.most_cost, min(MOST_INSERTED, self._half)):
                found.setdefault(self.reference.replay.values[ref].size, []).append(ref)
        return found

    @cached_property
    def _half(self) -> int:
        """Returns half of the reference's operations: an edit that puts in more is none."""
        return sum(map(self.reference.is_maker, self.reference.needed)) // 2

    @property
    def most_cost(self) -> int:
        return min(MOST_COST, max(2, self._half))

    def orders(self, source: Ref, shape: tuple[int, ...]) -> list[np.ndarray | None]:
        """Returns possible orders of a value's elements in a shape."""
        own = self.reference.replay.values[source]
        found: list[np.ndarray | None] = [None] if own.shape == shape else []
        found += self.reference.index.orders(shape, own.shape)
        if own.shape != shape and own.size == math.prod(shape):
            more = [np.arange(own.size).reshape(shape), *self._permuted(own.shape, shape)]
            found += [each for each in more if not any(same(each, other) for other in found)]
        if own.size < math.prod(shape) and _fills(own.shape, shape):
            found.append(np.broadcast_to(np.arange(own.size).reshape(own.shape), shape))
        return found

    def _permuted(self, own: tuple[int, ...], shape: tuple[int, ...]) -> list[np.ndarray]:
        """Returns the orders of elements in which axes are permuted: none can be learned from values whose elements
        aren't distinct, such as those of repeated tokens."""
        if (own, shape) not in self._axes:
            places = np.arange(math.prod(own)).reshape(own)
            is_long = len(own) > MOST_AXES or sorted(own) != sorted(shape)
            permutations = [] if is_long else itertools.permutations(range(len(own)))
            orders = (places.transpose(each) for each in permutations if tuple(own[axis] for axis in each) == shape)
            self._axes[own, shape] = [*itertools.islice(orders, MOST_ORDERS)]
        return self._axes[own, shape]

    def fitting(self, value: Value) -> Iterator[Ref]:
        """Yields the reference's values as large as another one, and then those that fill its shape if they are
        repeated, such as rows that are the same for all of a batch."""
        yield from self.by_size.get(value.size, ())
        for size in self.by_size:
            if 1 < size < value.size and value.size % size == 0:
                yield from (ref for ref in self.by_size[size] if self.orders(ref, value.shape))


def _fills(own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Returns whether an array that is repeated along axes fills a shape."""
    try:
        return np.broadcast_shapes(own, shape) == shape
    except ValueError:
        return False
