"""Prefetching: the same items, ahead but bounded; errors reach the consumer; no thread is left behind."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_transformer.data.loader import prefetch


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    assert not threads()
    yield
    assert wait_until(lambda: not threads())


@given(st.lists(st.none() | st.integers()), st.integers(1, 5))
def test_items_come_in_order(items: list[int | None], depth: int) -> None:
    assert list(prefetch(iter(items), depth)) == items
    assert list(prefetch(items, depth, transfer=lambda item: [item])) == [[item] for item in items]


def test_after_the_end_there_is_nothing_more() -> None:
    items = prefetch([1])
    assert list(items) == [1]
    assert list(items) == []


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_work_runs_ahead_by_the_depth_and_no_further(depth: int) -> None:
    made: list[int] = []
    source = (made.append(k) or k for k in itertools.count())  # type: ignore[func-returns-value]
    with prefetch(source, depth) as items:
        for taken in range(4):
            assert wait_until(lambda taken=taken: len(made) == taken + depth), "it runs ahead"  # type: ignore[misc]
            time.sleep(0.02)
            assert len(made) == taken + depth, "but not further"
            assert next(items) == taken


def test_source_and_transfer_run_in_one_daemon_thread() -> None:
    seen: list[threading.Thread] = []

    def source() -> Iterator[int]:
        seen.append(threading.current_thread())
        yield 1

    list(prefetch(source(), transfer=lambda item: seen.append(threading.current_thread())))
    assert seen[0] is seen[1]
    assert seen[0] is not threading.current_thread()
    assert seen[0].daemon


def failing_source() -> Iterator[int]:
    yield 1
    yield 2
    raise KeyError("the third item")


def test_an_error_comes_where_the_item_would_with_its_traceback() -> None:
    items = prefetch(failing_source(), depth=4)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(KeyError, match="the third item") as error:
        next(items)
    assert "failing_source" in [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]
    assert list(items) == []


def test_an_error_of_transfer_is_raised_too() -> None:
    def failing_transfer(item: int) -> int:
        return item // (item - 2)

    items = prefetch([1, 2, 3], transfer=failing_transfer)
    assert next(items) == -1
    with pytest.raises(ZeroDivisionError) as error:
        next(items)
    assert "failing_transfer" in [frame.name for frame in traceback.extract_tb(error.value.__traceback__)]


def test_a_stray_stop_iteration_is_no_end() -> None:
    def stop(item: int) -> int:
        raise StopIteration

    with pytest.raises(RuntimeError, match="transfer raised StopIteration"):
        list(prefetch([1, 2], transfer=stop))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exits_reach_the_consumer(error: type[BaseException]) -> None:
    def leave(item: int) -> int:
        raise error

    with pytest.raises(error):
        list(prefetch([1], transfer=leave))


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_closing_early_stops_the_thread_and_closes_the_generator(taken: int) -> None:
    closed_in: list[str] = []

    def endless() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            closed_in.append(threading.current_thread().name)

    started = time.monotonic()
    generator = endless()  # a reference, so that it isn't closed by being collected
    with prefetch(generator) as items:
        assert wait_until(lambda: bool(threads()))
        assert list(itertools.islice(items, taken)) == list(range(taken))
        time.sleep(0.02)  # it has begun, and waits for room
    assert time.monotonic() - started < 2
    assert not threads()
    assert closed_in == ["prefetch"]
    assert list(items) == []
    items.close()


def test_dropping_the_iterator_stops_the_thread_and_frees_the_items() -> None:
    class Item:
        pass

    alive: weakref.WeakSet[Item] = weakref.WeakSet()

    def source() -> Iterator[Item]:
        while True:
            item = Item()
            alive.add(item)
            yield item

    items = prefetch(source())
    next(items)
    assert len(threads()) == 1
    del items
    gc.collect()
    assert wait_until(lambda: not threads())
    gc.collect()
    assert not alive


def test_a_taken_item_lives_as_long_as_its_consumer_wants() -> None:
    class Item:
        pass

    made_second = threading.Event()

    def source() -> Iterator[Item]:
        yield Item()
        made_second.wait(5)
        yield Item()

    with prefetch(source()) as items:
        item = weakref.ref(next(items))
        assert wait_until(lambda: item() is None, seconds=2), "the thread still holds it while it makes the next"
        made_second.set()


def test_an_error_in_the_consumer_stops_the_thread() -> None:
    def consume() -> None:
        with prefetch(itertools.count()) as items:
            for item in items:
                raise ValueError(f"in the loop at {item}")

    with pytest.raises(ValueError, match="in the loop at 0"):
        consume()
    assert not threads()


@pytest.mark.parametrize("depth", [0, -1])
def test_a_depth_below_one_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=f"expected 1 or more; received {depth}"):
        prefetch([1], depth)
