"""Run several iterators at the same time, each in a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

import jax

Item = TypeVar("Item")


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_streams(streams: Sequence[Iterable[Item]]) -> Iterator[Item]:
    """Yields the items of all streams as they come. Raises what a stream raises."""
    if len(streams) == 1:
        yield from streams[0]
        return
    results: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    stopped = threading.Event()
    wide = jax.config.jax_enable_x64  # type: ignore[attr-defined]  # a thread doesn't inherit it

    def run(stream: Iterable[Item]) -> None:
        try:
            with jax.enable_x64(wide):
                for item in stream:
                    if stopped.is_set():
                        return
                    results.put(("item", item))
            results.put(("end", None))
        except BaseException as error:
            results.put(("error", error))

    threads = [threading.Thread(target=run, args=(stream,), name="stream", daemon=True) for stream in streams]
    for thread in threads:
        thread.start()
    try:
        going_on = len(threads)
        while going_on:
            kind, content = results.get()
            if kind == "error":
                raise content
            if kind == "item":
                yield content
            going_on -= kind == "end"
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
