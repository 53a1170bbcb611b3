"""Prefetches batches: makes the next ones, and sends them to the device, while the current one trains."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
POLL_SECONDS = 0.01
"""Time between two calls of `on_wait`."""
CLOSE_SECONDS = 5.0
"""Time limit for the current item in `close`. The thread is a daemon: it never keeps the interpreter alive."""


def prefetch(iterable: Iterable[Any], depth: int = 2, transfer: Callable[[Any], Any] | None = None) -> Prefetcher[Any]:
    """Iterates over `iterable` in a background thread, up to `depth` items ahead of the consumer.

    Args:
      iterable: the items.
      depth: maximum number of items made but not yet taken; each may hold device memory.
      transfer: applied to each item in that thread, e.g. `jax.device_put`.

    Returns:
      An iterator that is also a context manager. It raises an exception of `iterable` or `transfer` in place of the
        item, with the original traceback. `close()`, the end of a `with` block, or dropping the iterator stops the
        thread after its current item and closes a generator passed as `iterable`.

    Raises:
      ValueError: depth below 1.

    Example:
      >>> from jax_transformer.data import prefetch
      >>> with prefetch(range(3), transfer=lambda item: item * 10) as items:
      ...     list(items)
      [0, 10, 20]
    """
    if depth < 1:
        raise ValueError(f"prefetch depth: expected 1 or more; received {depth}")
    return Prefetcher(iterable, depth, transfer)


class Prefetcher(Generic[Item], Iterator[Item]):
    """Iterates over prefetched items, for one consumer; see `prefetch`."""

    def __init__(self, iterable: Iterable[Any], depth: int, transfer: Callable[[Any], Item] | None) -> None:
        self._work = _Work(depth)
        self._done = False
        self.on_wait: Callable[[], None] | None = None
        """Called every POLL_SECONDS while the consumer waits for an item."""
        # The thread holds the work but not this object, so that dropping this object ends the thread.
        self._thread = threading.Thread(
            target=_run, args=(iterable, transfer, self._work), name="prefetch", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Prefetcher[Item]:
        return self

    def __next__(self) -> Item:
        if self._done:
            raise StopIteration
        item, error, is_last = self._next_result()
        if not is_last:
            self._work.slots.release()
            return item
        self._done = True
        self._thread.join(CLOSE_SECONDS)
        if error is None:
            raise StopIteration
        raise error

    def _next_result(self) -> tuple[Any, BaseException | None, bool]:
        if self.on_wait is None:
            return self._work.results.get()
        while True:
            try:
                return self._work.results.get(timeout=POLL_SECONDS)
            except queue.Empty:
                self.on_wait()

    def close(self) -> None:
        """Stops the thread and ends the iteration. Calling it again does nothing."""
        self._done = True
        self._work.stop()
        self._thread.join(CLOSE_SECONDS)
        self._work.drop_results()

    def __enter__(self) -> Prefetcher[Item]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._work.stop()


class _Work:
    """Holds the state that the thread and its consumer share."""

    def __init__(self, depth: int) -> None:
        self.slots = threading.Semaphore(depth)  # one for each item that may be made ahead
        self.results: queue.SimpleQueue[tuple[Any, BaseException | None, bool]] = queue.SimpleQueue()
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        self.slots.release()  # wakes the waiting thread

    def drop_results(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self.results.get_nowait()


def _run(iterable: Iterable[Any], transfer: Callable[[Any], Any] | None, work: _Work) -> None:
    """Puts (item, None, False) for each item, and (None, the exception or None, True) at the end."""
    failure: BaseException | None = None
    try:
        iterator = iter(iterable)
        try:
            while True:
                work.slots.acquire()
                if work.stopped:
                    break
                try:
                    item = next(iterator)
                except StopIteration:
                    break
                work.results.put((item if transfer is None else transfer(item), None, False))
                del item  # only the consumer keeps it alive
        finally:
            if hasattr(iterator, "close"):
                iterator.close()
    except StopIteration as error:  # in the consumer's __next__, it would look like the end
        failure = RuntimeError("prefetch: transfer raised StopIteration")
        failure.__cause__ = error
    except BaseException as error:  # the consumer receives everything, including KeyboardInterrupt
        failure = error
    work.results.put((None, failure, True))
