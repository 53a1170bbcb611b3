"""Choose which tests wait for the night: long ones, and slow parametrisations, for which the quickest stands.

With every change run the quick tests, the quickest parametrisation of each function of tests unless it is long, those
that killed a change of the core that no quicker test killed, those without which a function of the package would be
called by none, and those that read the source.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

QUICK = 0.15
"""Processor seconds of a test that always runs."""
LONG = 0.3
"""Processor seconds beyond which even the only test of a function waits."""
OF_SOURCE = frozenset(
    f"tests/test_imports.py::test_{name}"
    for name in (
        *("a_part_imports_only_what_it_may", "every_library_is_a_dependency_or_in_an_extra"),
        *("flax_is_seen_in_the_model_alone", "heavy_libraries_are_imported_inside_functions_only"),
        *("no_modules_import_each_other", "no_parts_import_each_other"),
    )
)
"""Tests that read the source and call nothing, so that no record of calls and changes knows what they find."""


class Timed(NamedTuple):
    name: str
    seconds: float
    reach: frozenset[int]
    """Functions of the package that the test calls."""
    setup: float = 0.0
    """Those of the seconds in which its fixtures are made."""
    fixtures: frozenset[str] = frozenset()
    """Fixtures of its file that several tests share."""

    @property
    def function(self) -> str:
        return self.name.partition("[")[0]

    @property
    def cost(self) -> float:
        """A test that calls few functions is more likely about one of them."""
        return self.seconds + 0.001 * len(self.reach)


def with_shared_setups(tests: Iterable[Timed]) -> list[Timed]:
    """Returns the tests with an equal part each of what their shared fixtures take, which the first of them paid."""
    tests, groups = list(tests), defaultdict[tuple[str, frozenset[str]], list[Timed]](list)
    for test in tests:
        groups[test.name.partition("::")[0], test.fixtures].append(test)
    parts = {key: sum(test.setup for test in group) / len(group) for key, group in groups.items() if key[1]}
    return [
        test._replace(seconds=test.seconds - test.setup + parts[key], setup=parts[key])
        if (key := (test.name.partition("::")[0], test.fixtures)) in parts
        else test
        for test in tests
    ]


def waiting(tests: Iterable[Timed], killers: Iterable[str]) -> list[Timed]:
    """Returns the tests that wait for the night, in their order."""
    tests = list(tests)
    kept = {*killers, *(test.name for test in tests if test.function in OF_SOURCE)}
    slow: dict[str, list[Timed]] = defaultdict(list)
    for test in tests:
        if test.seconds > QUICK:
            slow[test.function].append(test)
        else:
            kept.add(test.name)
    for group in slow.values():
        quickest = min(group, key=lambda test: test.seconds)
        if quickest.seconds <= LONG:
            kept.add(quickest.name)
    reached = set().union(*(test.reach for test in tests if test.name in kept))
    left = [test for test in tests if test.name not in kept]
    while any(test.reach - reached for test in left):
        best = max(left, key=lambda test: len(test.reach - reached) / test.seconds)
        kept.add(best.name)
        reached |= best.reach
        left.remove(best)
    return left
