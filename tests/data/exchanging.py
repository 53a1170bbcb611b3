"""Threads that stand for the processes of a run and exchange blocks through one directory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from jax_transformer.data.exchange import Exchange, FileExchange

Result = TypeVar("Result")


def in_processes(count: int, directory: Path, run: Callable[[int, Exchange], Result]) -> list[Result]:
    """Returns what `run` returns, given the number and the exchange of each process."""

    def start(number: int) -> Result:
        exchange = FileExchange(directory, number, count)
        try:
            return run(number, exchange)
        finally:
            exchange.close()

    with ThreadPoolExecutor(count) as threads:
        results = list(threads.map(start, range(count)))
    assert not directory.exists()
    return results
