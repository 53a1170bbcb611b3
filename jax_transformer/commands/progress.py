"""Progress of a command on standard error: a bar on a terminal, an occasional line elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def progress(done: str, total: int | None, *, has_bar: bool = True) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of further sentences that are `done` ("translated").

    The bar disappears at the end. Without a known `total`, there is no estimate of the time left.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    start = last = time.perf_counter()
    count = 0
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
        nonlocal count, last
        count += more
        bar.update(task, completed=count)
        now = time.perf_counter()
        if not console.is_terminal and now - last > SECONDS_BETWEEN_LINES:
            left = "" if total is None else f" of {total}, {(now - start) / count * (total - count):.0f} s left"
            print(f"{done} {count}{left}", file=sys.stderr, flush=True)
            last = now

    with bar:
        yield advance
