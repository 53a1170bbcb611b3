"""Progress of a command on standard error: a bar on a terminal, an occasional line elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jax_transformer.runtime.durations import duration

SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def progress(done: str, total: int | None, *, has_bar: bool = True) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of further sentences that are `done` ("translated").

    The bar disappears at the end. Without a known `total`, there is no estimate of the time left. The estimate leaves
    out the first sentences, whose time includes compilation.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    last = time.perf_counter()
    count, first = 0, (0, last)
    bar = Progress(
        TextColumn(done),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        disable=not (console.is_terminal and has_bar),
    )
    task = bar.add_task(done, total=total)

    def advance(more: int) -> None:
        nonlocal count, first, last
        count += more
        bar.update(task, completed=count)
        now = time.perf_counter()
        if count == more:
            first = count, now
        if not console.is_terminal and now - last > SECONDS_BETWEEN_LINES:
            print(f"{done} {count}{left(now)}", file=sys.stderr, flush=True)
            last = now

    def left(now: float) -> str:
        if total is None:
            return ""
        if count == first[0]:
            return f" of {total}, time left unknown"
        return f" of {total}, {duration((now - first[1]) / (count - first[0]) * (total - count))} left"

    with bar:
        yield advance
