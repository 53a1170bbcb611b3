"""Queues requests: fair turns, and batches of units that wait no longer than they must."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from jax_transformer.serving.work import AnyKind, AnyUnit, Job

SHARE = 2_000.0
"""Tokens a second that a request is entitled to, in the order of turns."""


class Waiting(NamedTuple):
    """Holds a unit in the queue."""

    turn: float
    """Units are served in this order: the time of arrival, and a second more after every SHARE tokens of the job."""
    order: int
    since: float
    number: int
    """Of the unit in its job."""
    job: Job

    @property
    def unit(self) -> AnyUnit:
        return self.job.units[self.number]


class Batch(NamedTuple):
    """Holds units of one kind to compute together."""

    kind: AnyKind
    members: list[Waiting]

    @property
    def units(self) -> list[AnyUnit]:
        return [member.unit for member in self.members]


class Batcher:
    """Lets units wait until they share a batch. Not thread-safe.

    Turns follow virtual clocks (Zhang 1990, "VirtualClock: a new traffic control algorithm"): each request has the
    order that it would have if it were served at SHARE tokens a second. A small request that comes after a huge one
    therefore overtakes most of it, and nothing waits for ever, since turns grow with time.
    """

    def __init__(
        self,
        fits: Callable[[Any, Sequence[Any]], bool],
        shape: Callable[[Any, Any], tuple[int, ...]],
        wait_seconds: float,
        share: float = SHARE,
        size: Callable[[int], int] = lambda waiting: waiting,
    ) -> None:
        """Makes an empty queue.

        Args:
          fits: whether units make one batch. One unit always does.
          shape: the padded lengths of a unit. It shares batches that are begun by one at least as long in each.
          wait_seconds: how long a unit may wait for a full batch.
          share: tokens a second.
          size: how many of so many units, which may share a batch, are best taken now.
        """
        self._fits, self._shape, self._size = fits, shape, size
        self._wait, self._share = wait_seconds, share
        self._queues: dict[AnyKind, list[Waiting]] = {}
        self._count = 0
        self.tokens = 0
        """Tokens that wait, as `Job.cost` counts them."""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, job: Job, now: float) -> None:
        """Puts all units of a job into the queue."""
        queue = self._queues.setdefault(job.kind, [])
        turn = now
        for number, unit in enumerate(job.units):
            self._count += 1
            bisect.insort(queue, Waiting(turn, self._count, now, number, job))
            turn += job.cost(unit) / self._share
            self.tokens += job.cost(unit)

    def remove(self, job: Job) -> None:
        """Takes the units of a job out of the queue, if there are any."""
        self._keep(job.kind, [waiting for waiting in self._queues.get(job.kind, []) if waiting.job is not job])

    def take(self, now: float) -> Batch | None:
        """Returns the next batch: one that is full, or whose first unit has waited long enough. None if there is none.

        Among several, the one whose first unit has the earliest turn.
        """
        best: tuple[Waiting, AnyKind, list[Waiting]] | None = None
        for kind, queue in self._queues.items():
            members, is_full = self._first_batch(kind, queue)
            is_due = is_full or now >= queue[0].since + self._wait
            if is_due and (best is None or queue[0] < best[0]):
                best = queue[0], kind, members
        if best is None:
            return None
        _, kind, members = best
        members = members[: self._size(len(members))]
        taken = {waiting.order for waiting in members}
        self._keep(kind, [waiting for waiting in self._queues[kind] if waiting.order not in taken])
        return Batch(kind, members)

    def is_due(self, now: float) -> bool:
        """Returns whether `take` returns a batch."""
        return any(
            now >= queue[0].since + self._wait or self._first_batch(kind, queue)[1]
            for kind, queue in self._queues.items()
        )

    def clear(self) -> list[Job]:
        """Empties the queue; returns the jobs that had units in it."""
        jobs = {id(waiting.job): waiting.job for queue in self._queues.values() for waiting in queue}
        self._queues, self.tokens = {}, 0
        return list(jobs.values())

    def due(self) -> float | None:
        """Returns when the next batch is due though it isn't full; None if nothing waits."""
        return min((queue[0].since + self._wait for queue in self._queues.values()), default=None)

    def _first_batch(self, kind: AnyKind, queue: Sequence[Waiting]) -> tuple[list[Waiting], bool]:
        """Returns the units that share a batch with the first, and whether there is no room for more."""
        room = self._shape(kind, queue[0].unit)
        short_enough = (
            waiting
            for waiting in queue
            if all(length <= most for length, most in zip(self._shape(kind, waiting.unit), room, strict=True))
        )
        members = list(islice(short_enough, 1))
        while more := list(islice(short_enough, len(members))):  # as many again
            units = [waiting.unit for waiting in (*members, *more)]
            if not self._fits(kind, units):
                counts = range(len(members) + 1, len(units))
                most = bisect.bisect_left(counts, True, key=lambda count: not self._fits(kind, units[:count]))
                return [*members, *more[:most]], True
            members += more
        return members, False

    def _keep(self, kind: AnyKind, queue: list[Waiting]) -> None:
        if queue:
            self._queues[kind] = queue
        else:
            self._queues.pop(kind, None)
        self.tokens = sum(waiting.job.cost(waiting.unit) for each in self._queues.values() for waiting in each)
