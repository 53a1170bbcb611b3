"""Threads that stand for the processes of a run and exchange blocks through one directory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from jax_transformer.data import exchange as exchange_module
from jax_transformer.data.exchange import Exchange, FileExchange

Result = TypeVar("Result")


def in_processes(count: int, directory: Path, run: Callable[[int, Exchange], Result]) -> list[Result]:
    """Calls `run` with the number and the exchange of each process, and returns the results."""

    def start(number: int) -> Result:
        exchange = FileExchange(directory, number, count)
        try:
            return run(number, exchange)
        finally:
            exchange.close()

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(count) as threads:
        patch.setattr(exchange_module, "POLL_SECONDS", 0.01)
        patch.setattr(exchange_module, "WAIT_SECONDS", 60)
        results = list(threads.map(start, range(count)))
    assert not directory.exists()
    return results
