"""How often Python looks for garbage, and that it doesn't at the exit."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from jax_transformer.runtime.garbage import collect_rarely


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(("before", "after"), [(700, 10_000), (200_000, 200_000), (0, 0)])
def test_collection_is_never_made_more_frequent(before: int, after: int) -> None:
    gc.set_threshold(before, 7, 9)
    collect_rarely()
    assert gc.get_threshold() == (after, 7, 9)


LEAVING = """
import gc
from jax_transformer.runtime.garbage import collect_nothing_at_exit
{}
cycle = []
cycle.append(cycle)
del cycle
gc.callbacks.append(lambda phase, found: phase == "stop" and print(found["collected"] > 0, flush=True))
"""


@pytest.mark.parametrize(("call", "looks"), [("", True), ("collect_nothing_at_exit()", False)])
def test_collection_at_the_exit_can_be_skipped(call: str, looks: bool) -> None:
    command = [sys.executable, "-c", LEAVING.format(call)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ("True" in output.split()) == looks
