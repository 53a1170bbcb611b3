"""For both suites of tests: a process that has compiled thousands of programs lets go of them before its memory mappings run out."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

MAPPINGS = Path("/proc/self/maps")
MOST_MAPPINGS = 30_000
"""Linux gives a process 65,530 (vm.max_map_count). XLA's CPU compiler takes several for each program, and crashes where none are left."""
TESTS_BETWEEN = 10

_finished = 0


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Forgets the compiled programs when there are many; they are compiled anew when they are needed."""
    global _finished
    _finished += 1
    if _finished % TESTS_BETWEEN == 0 and MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()
