"""Fixtures for tests of training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from jax_transformer.training import trainer


@pytest.fixture
def stopped_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """(steps) → a context in which runs are asked to stop after so many steps in it, as by Ctrl-C."""

    @contextlib.contextmanager
    def stopped(steps: int) -> Iterator[None]:
        @contextlib.contextmanager
        def requests(processes: int, say: Callable[[str], None]) -> Iterator[Callable[[int], bool]]:
            checks = iter(range(1, 10**6))  # one a step
            yield lambda step: next(checks) >= steps

        with monkeypatch.context() as patch:
            patch.setattr(trainer, "stop_requests", requests)
            yield

    return stopped
