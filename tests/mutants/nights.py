"""Choose which tests wait for the night: slow parametrisations, for which a few of their kind stand.

Every quick test runs with every change, and so does every function of tests: of its slow parametrisations a few, those
that killed a change of the core that no quicker test killed, and those without which a function of the core would be
called by none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

QUICK = 0.5
"""Processor seconds of a test that always runs."""
FEW = 2
"""How many slow parametrisations of a function always run."""


class Timed(NamedTuple):
    name: str
    seconds: float
    reach: frozenset[int]
    """Functions of the core that the test calls."""

    @property
    def function(self) -> str:
        return self.name.partition("[")[0]

    @property
    def cost(self) -> float:
        """A test that calls few functions is more likely about one of them."""
        return self.seconds + 0.001 * len(self.reach)


def waiting(tests: Iterable[Timed], killers: Iterable[str]) -> list[Timed]:
    """Returns the tests that wait for the night, in their order."""
    tests, kept = list(tests), set(killers)
    slow: dict[str, list[Timed]] = defaultdict(list)
    for test in tests:
        if test.seconds > QUICK:
            slow[test.function].append(test)
        else:
            kept.add(test.name)
    for group in slow.values():
        few = min(FEW, len(group))
        kept |= {group[len(group) * number // few].name for number in range(few)}
    reached = set().union(*(test.reach for test in tests if test.name in kept))
    left = [test for test in tests if test.name not in kept]
    while any(test.reach - reached for test in left):
        best = max(left, key=lambda test: len(test.reach - reached) / test.seconds)
        kept.add(best.name)
        reached |= best.reach
        left.remove(best)
    return left
