"""Answers to requests: from the event loop to the device's thread and back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from jax_transformer.decoding.stepwise import Step
from jax_transformer.serving.batcher import Batcher
from jax_transformer.serving.device import Device, Stream
from jax_transformer.serving.engine import Engine, WarmUp
from jax_transformer.serving.limits import Refusal
from jax_transformer.serving.metrics import Metrics, count_programs
from jax_transformer.serving.pieces import Pieces
from jax_transformer.serving.requests import ScoreRequest, TranslateRequest
from jax_transformer.serving.work import AnyKind, AnyUnit, Computer, Job, Translating, Unit

Result = TypeVar("Result")

AT_ONCE = 2_000
"""Texts of up to so many characters, their hypotheses counted, are tokenized by the event loop: to hand them to another
thread and back takes longer."""


class Served(Computer, Protocol):
    """Computes units, and knows which programs to compile beforehand and how units share batches."""

    def fits(self, kind: Any, units: Sequence[Any]) -> bool:
        """Returns whether units make one batch."""

    def shape(self, kind: Any, unit: Any) -> tuple[int, ...]:
        """Returns the padded lengths of a unit."""

    def size(self, waiting: int) -> int:
        """Returns how many of so many units are best taken into a batch."""

    def warm_ups(self, longest: int) -> Iterator[WarmUp]:
        """Yields what compiles the programs of usual requests."""


class Host:
    """Hosts one model. All methods but the constructor belong to the event loop's thread."""

    def __init__(self, engine: Served, *, max_wait_ms: float, warm_up: int, name: str, threads: int) -> None:
        """Makes a host that isn't running yet; see `Service`. `threads` read and write for the event loop."""
        self.name, self._computer, self._warm_up = name, engine, warm_up
        self.limits, self.metrics = engine.limits, Metrics()
        batcher = Batcher(engine.fits, engine.shape, max_wait_ms / 1000, size=engine.size)
        self.device = Device(engine, batcher, self.metrics)
        self._threads = ThreadPoolExecutor(threads, "requests")
        self._done: deque[asyncio.Event] = deque()
        self.state = "loading"
        """loading, warming up, ready, or stopping."""
        self._compiling = ""
        self.cut_off = 0
        """Requests that had no answer when the server ended."""

    def start(
        self,
        on_ready: Callable[[], None] = lambda: None,
        on_compile: Callable[[int, int, str], None] = lambda number, total, name: None,
    ) -> None:
        """Starts the device's thread, which compiles first.

        Args:
          on_ready: called on that thread when the service is ready.
          on_compile: called on that thread before it compiles for a kind of batch: with the batch's number, how many
            there are, and its name.
        """
        count_programs()
        self.state = "warming up"
        warm_ups = list(self._computer.warm_ups(self._warm_up))

        def begin(number: int, name: str) -> None:
            self._compiling = f" (compiling {number} of {len(warm_ups)})"
            on_compile(number, len(warm_ups), name)

        def ready() -> None:
            if self.state == "warming up":
                self.state, self._compiling = "ready", ""
                on_ready()

        self.device.start()
        for number, warm_up in enumerate(warm_ups, 1):
            self.device.call(partial(begin, number, warm_up.name))
            self.device.call(warm_up.compile)
        self.device.call(ready)

    def stop(self, seconds: float) -> bool:
        """Stops the thread; returns whether it ended within so many seconds."""
        self.state, self._compiling = "stopping", ""
        self._threads.shutdown(wait=False, cancel_futures=True)
        return self.device.stop(seconds)

    def check_ready(self) -> None:
        """Raises Refusal unless the service is ready."""
        if self.state != "ready" or not self.device.is_alive:
            raise Refusal(503, f"the server isn't ready: {self.state}{self._compiling}", retry_after=5)

    async def _results(self, kind: AnyKind, units: Sequence[AnyUnit]) -> list[Any]:
        """Returns the result of each unit. Cancelled, it takes the units out of the queue."""
        if not units:
            return []
        done = asyncio.Event()
        job = Job(kind, units, on_done=lambda _: self._wake(done))
        self._loop = asyncio.get_running_loop()
        self.device.submit(job)
        try:
            await done.wait()
        finally:
            self.device.cancel(job)
        if job.error:
            raise _refusal(job.error)
        return [job.results[index] for index in range(len(units))]

    def _wake(self, done: asyncio.Event) -> None:
        """Sets an event from the device's thread. The jobs of a batch wake the event loop once."""
        self._done.append(done)
        if len(self._done) == 1:
            self._loop.call_soon_threadsafe(self._set_done)

    def _set_done(self) -> None:
        """Sets the events of all jobs that are done."""
        while self._done:
            self._done.popleft().set()


class Service(Host):
    """Serves a model that translates."""

    def __init__(self, engine: Engine, *, max_wait_ms: float = 5.0, warm_up: int = 0, name: str = "a model") -> None:
        """Makes a service that isn't running yet.

        Args:
          engine: the model.
          max_wait_ms: how long a sentence may wait for a full batch.
          warm_up: compile the programs for sources of up to so many tokens before the service is ready.
          name: the model's, for the page.
        """
        super().__init__(engine, max_wait_ms=max_wait_ms, warm_up=warm_up, name=name, threads=2)
        self.engine = engine

    async def translate(self, request: TranslateRequest) -> dict[str, Any]:
        """Returns the answer to a request for translations. Raises Refusal."""
        characters = sum(map(len, request.texts))
        texts = await self._aside(characters, self.engine.texts, request)
        results = await self._results(texts.kind, texts.units)
        answer = await self._aside(
            characters * (texts.kind.decoding.num_return or 1), self.engine.translations, texts, results
        )
        if request.attention:
            pairs = self.engine.attended(texts, results)
            weights = await self._results(pairs.kind, pairs.units)
            await self._aside(characters * len(weights), self.engine.add_attention, answer, texts, pairs, weights)
        return {"translations": answer}

    async def score(self, request: ScoreRequest) -> dict[str, Any]:
        """Returns the answer to a request for scores. Raises Refusal."""
        characters = sum(map(len, (*request.sources, *request.targets)))
        pairs = await self._aside(characters, self.engine.pairs, request)
        results = await self._results(pairs.kind, pairs.units)
        return {"scores": [score.as_json() for score in self.engine.scores(pairs, results)]}

    async def stream(self, request: TranslateRequest) -> AsyncIterator[dict[str, Any]]:
        """Yields the pieces of a translation as {"piece": …}, and its whole as {"done": true, …}. Raises Refusal."""
        if len(request.texts) > 1:
            raise Refusal(422, f"texts: expected one text to stream; received {len(request.texts)}")
        if request.attention:
            raise Refusal(422, "attention: expected false with stream, which ends before the weights are computed")
        texts = await self._aside(len(request.texts[0]), self.engine.texts, request)
        if not texts.kind.can_stream:
            raise Refusal(
                422,
                "stream: expected greedy decoding (beam_size=1), or sampling with num_return=1; received "
                f"{texts.kind.hypotheses} hypotheses",
            )
        results, pieces, before = [], Pieces(), ""
        for part, unit in zip(texts.parts[0], texts.units, strict=True):
            decoded = None
            async for step in self._steps(texts.kind, unit):
                decoded = step.decoded
                if piece := pieces.add(before + self.engine.text(decoded.ids, texts.kind.target_tag)):
                    yield {"piece": piece}
            assert decoded is not None
            results.append([decoded])
            before += self.engine.text(decoded.ids, texts.kind.target_tag) + part.space
        answer = self.engine.translations(texts, results)[0]
        if piece := pieces.end(answer["text"]):
            yield {"piece": piece}
        yield {"done": True, **answer}

    async def _aside(self, characters: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """Calls a function of the engine for texts of so many characters: on a thread for tokenizers if there are many,
        so that the event loop goes on."""
        if characters <= AT_ONCE:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def _steps(self, kind: Translating, unit: Unit) -> AsyncIterator[Step]:
        """Yields the steps of a stream. Closed, it ends the stream."""
        loop = asyncio.get_running_loop()
        steps: asyncio.Queue[Step | Exception] = asyncio.Queue()
        begin = partial(self.engine.steps, kind, unit)
        stream = Stream(unit, begin, on_step=lambda step: loop.call_soon_threadsafe(steps.put_nowait, step))
        self.device.open(stream)
        try:
            while True:
                step = await steps.get()
                if isinstance(step, Exception):
                    raise _refusal(step)
                yield step
                if step.is_last:
                    return
        finally:
            self.device.close(stream)


def _refusal(error: Exception) -> Exception:
    """Returns the refusal that a client gets for an error on the device's thread."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return Refusal(
            503, "the batch doesn't fit into the device's memory: send fewer or shorter texts", retry_after=5
        )
    return Refusal(500, "the computation failed; the server's log says why")
