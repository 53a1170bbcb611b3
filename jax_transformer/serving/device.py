"""Runs the one thread that uses the device: batches, and streams between them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jax_transformer.decoding.stepwise import Step
from jax_transformer.serving.batcher import Batch, Batcher
from jax_transformer.serving.limits import Refusal
from jax_transformer.serving.metrics import Metrics
from jax_transformer.serving.work import AnyUnit, Computer, Job, Unit

TOKENS_BESIDE_BATCHES = 8
"""Tokens of each stream between two batches; 1 where no batch waits, so that each is sent when it is there."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Stream:
    """Holds a unit that is decoded a few tokens at a time."""

    unit: Unit
    begin: Callable[[Callable[[], int]], Iterator[Step]]
    """Returns the steps, on the device's thread. Called with a function of the most tokens of the next step."""
    on_step: Callable[[Step | Exception], object]
    """Called on the device's thread after each step, until one is the last or an error."""
    is_cancelled: bool = False
    steps: Iterator[Step] | None = None


class Device:
    """Owns the thread. Other threads hand it work; it reports results by the callbacks of jobs and streams."""

    def __init__(self, engine: Computer, batcher: Batcher, metrics: Metrics) -> None:
        self._engine, self._batcher, self._metrics = engine, batcher, metrics
        self._limits = engine.limits
        self._changed = threading.Condition()
        self._streams: list[Stream] = []
        self._calls: deque[Callable[[], object]] = deque()
        self._is_stopping = False
        self._done_tokens, self._busy_seconds = 0, 0.0
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, seconds: float) -> bool:
        """Ends the thread after the work in progress; returns whether it ended within so many seconds. All that waits
        fails."""
        with self._changed:
            self._is_stopping = True
            self._calls.clear()
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function on the thread, before any further batch."""
        with self._changed:
            self._calls.append(function)
            self._changed.notify()

    def submit(self, job: Job) -> None:
        """Lets a job wait for its turn. Raises Refusal if the queue is full."""
        cost = job.total_cost
        self._limits.check("max_queue_tokens", cost, "tokens, times hypotheses, in a request", status=413)
        with self._changed:
            self._check_running()
            waiting = self._batcher.tokens
            if waiting + cost > self._limits.max_queue_tokens:
                raise Refusal(
                    503,
                    f"the queue is full: expected at most {self._limits.max_queue_tokens:,} tokens "
                    f"(--max-queue-tokens); received {cost:,} in addition to {waiting:,}",
                    retry_after=self._seconds_for(waiting),
                )
            has_timer, now = self._batcher.due() is not None, time.monotonic()
            self._batcher.add(job, now)
            self._measure()
            if not has_timer or self._batcher.is_due(now):  # to wake the thread takes time from all others
                self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Forgets a job that nobody waits for. A batch in progress goes on without it."""
        with self._changed:
            job.is_cancelled = True
            if len(job.results) < len(job.units):
                self._batcher.remove(job)
            self._measure()

    def open(self, stream: Stream) -> None:
        """Begins a stream. Raises Refusal if there are as many as there may be."""
        with self._changed:
            self._check_running()
            if len(self._streams) >= self._limits.max_streams:
                raise Refusal(
                    503,
                    f"expected at most {self._limits.max_streams} streams at once (--max-streams); received another",
                    retry_after=1,
                )
            self._streams.append(stream)
            self._measure()
            self._changed.notify()

    def close(self, stream: Stream) -> None:
        """Ends a stream that nobody reads."""
        with self._changed:
            stream.is_cancelled = True
            if stream in self._streams:
                self._streams.remove(stream)
            self._measure()

    def _check_running(self) -> None:
        if self._is_stopping or not self._thread.is_alive():
            raise Refusal(503, "the server is stopping", retry_after=10)

    def _seconds_for(self, tokens: int) -> int:
        """Returns in how many seconds so many tokens should be done, from 1 to 60."""
        speed = self._done_tokens / self._busy_seconds if self._busy_seconds else math.inf
        return max(1, min(60, math.ceil(tokens / speed) if speed else 60))

    def _measure(self) -> None:
        self._metrics.queue_tokens.set(self._batcher.tokens)
        self._metrics.queue_units.set(len(self._batcher))
        self._metrics.streams.set(len(self._streams))

    # --- on the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._is_stopping or self._calls or self._streams):
                    if (due := self._batcher.due()) is not None and self._has_batch():
                        break
                    self._changed.wait(None if due is None else max(due - time.monotonic(), 0.0))
                if self._is_stopping:
                    break
                call = self._calls.popleft() if self._calls else None
                batch = None if call else self._batcher.take(time.monotonic())
                streams = [] if call else list(self._streams)
                self._measure()
            if call:
                self._call(call)
            if batch:
                self._compute(batch)
            for stream in streams:
                self._advance(stream)
        self._fail_all()

    def _call(self, function: Callable[[], object]) -> None:
        try:
            function()
        except Exception as error:  # such as a program that fits no memory: smaller ones may
            self._failed(error)

    def _has_batch(self) -> bool:
        return self._batcher.is_due(time.monotonic())

    def _compute(self, batch: Batch) -> None:
        start = time.perf_counter()
        try:
            results = self._engine.compute(batch.kind, batch.units)
        except Exception as error:
            self._failed(error)
            for job in {id(member.job): member.job for member in batch.members}.values():
                with self._changed:
                    self._batcher.remove(job)
                job.fail(error)
            return
        self._spent(start, "batches", batch.units)
        self._metrics.batch_units.observe(len(batch.members))
        self._metrics.batch_fill.observe(self._engine.fill(batch.kind, batch.units))
        self._metrics.tokens.labels("target").inc(sum(map(self._engine.target_tokens, batch.units, results)))
        for member, result in zip(batch.members, results, strict=True):
            member.job.finish(member.number, result)

    def _advance(self, stream: Stream) -> None:
        start = time.perf_counter()
        try:
            if stream.steps is None:
                stream.steps = stream.begin(self._stream_tokens)
                self._metrics.tokens.labels("source").inc(stream.unit.tokens)
            step: Step | Exception = next(stream.steps)
        except Exception as error:
            self._failed(error)
            step = error
        self._metrics.device.labels("streams").inc(time.perf_counter() - start)
        if isinstance(step, Exception) or step.is_last:
            if isinstance(step, Step):
                self._metrics.tokens.labels("target").inc(len(step.decoded.ids))
            self.close(stream)
        stream.on_step(step)

    def _stream_tokens(self) -> int:
        return TOKENS_BESIDE_BATCHES if len(self._batcher) else 1

    def _spent(self, start: float, work: str, units: list[AnyUnit]) -> None:
        seconds, tokens = time.perf_counter() - start, sum(unit.tokens for unit in units)
        self._busy_seconds += seconds
        self._done_tokens += tokens
        self._metrics.device.labels(work).inc(seconds)
        self._metrics.tokens.labels("source").inc(tokens)

    def _failed(self, error: Exception) -> None:
        self._metrics.failures.inc()
        log.error("a computation failed", exc_info=error)

    def _fail_all(self) -> None:
        """Ends all waits: nothing more will come."""
        with self._changed:
            waiting, streams = self._batcher.clear(), list(self._streams)
        for job in waiting:
            job.fail(Refusal(503, "the server stopped before the answer", retry_after=10))
        for stream in streams:
            stream.on_step(Refusal(503, "the server stopped before the answer", retry_after=10))
