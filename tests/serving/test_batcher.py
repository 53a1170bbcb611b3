"""The queue: batches that are full or due, few shapes in each, and fair turns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jax_transformer.serving.batcher import Batch, Batcher
from jax_transformer.serving.work import Job, Kind, Scoring, Unit

ONE, OTHER = Scoring("one"), Scoring("other")
ROOM = 40


def shape(kind: Kind, unit: Unit) -> tuple[int, ...]:
    return (10 if unit.tokens <= 10 else 20,)


def fits(kind: Kind, units: Sequence[Unit]) -> bool:
    return len(units) * max(shape(kind, unit)[0] for unit in units) <= ROOM


def make(wait: float = 1.0, share: float = 10.0) -> Batcher:
    return Batcher(fits, shape, wait, share)


def job(*lengths: int, kind: Kind = ONE) -> Job:
    return Job(kind, [Unit([0] * length) for length in lengths], on_done=lambda job: None)


def taken(batch: Batch | None) -> list[tuple[Job, int]]:
    assert batch is not None
    return [(member.job, member.number) for member in batch.members]


def test_a_unit_waits_until_its_deadline() -> None:
    batcher, alone = make(wait=1.0), job(5)
    batcher.add(alone, now=3.0)
    assert batcher.due() == 4.0
    assert batcher.take(3.9) is None
    assert taken(batcher.take(4.0)) == [(alone, 0)]
    assert (len(batcher), batcher.tokens, batcher.due()) == (0, 0, None)


def test_a_full_batch_does_not_wait() -> None:
    batcher, first, second = make(), job(5, 5), job(5, 5, 5)
    batcher.add(first, now=0.0)
    assert not batcher.is_due(0.0)
    batcher.add(second, now=0.0)
    assert batcher.is_due(0.0)
    assert len(taken(batcher.take(0.0))) == 4
    assert len(batcher) == 1
    assert batcher.tokens == 5


def test_kinds_do_not_share_a_batch() -> None:
    batcher, one, other = make(), job(5), job(5, kind=OTHER)
    batcher.add(one, now=0.0)
    batcher.add(other, now=0.5)
    assert taken(batcher.take(2.0)) == [(one, 0)]
    assert taken(batcher.take(2.0)) == [(other, 0)]


def test_long_units_do_not_stretch_the_batch_of_a_short_one() -> None:
    batcher, short, long = make(), job(5), job(15)
    batcher.add(short, now=0.0)
    batcher.add(long, now=0.1)
    assert taken(batcher.take(5.0)) == [(short, 0)]
    assert taken(batcher.take(5.0)) == [(long, 0)]


def test_short_units_ride_with_a_long_one() -> None:
    batcher, short, long = make(), job(5), job(15)
    batcher.add(long, now=0.0)
    batcher.add(short, now=0.1)
    assert taken(batcher.take(5.0)) == [(long, 0), (short, 0)]


def test_a_small_request_overtakes_most_of_a_huge_one() -> None:
    batcher, huge, small = make(share=10.0), job(*[5] * 100), job(5)
    batcher.add(huge, now=0.0)
    batcher.take(0.1)
    batcher.add(small, now=0.2)
    assert (small, 0) in taken(batcher.take(0.2))


def test_a_huge_request_is_not_starved() -> None:
    """Small requests come for ever, as many as the device can do; the huge one goes on at its share."""
    batcher, huge = make(share=10.0), job(*[5] * 12)
    batcher.add(huge, now=0.0)
    left = 12
    for tick in range(20):
        now = float(tick)
        batcher.add(job(5, 5, 5, 5), now)
        left -= sum(job is huge for job, _ in taken(batcher.take(now)))
    assert left == 0


def test_a_batch_may_take_fewer_than_fit() -> None:
    batcher, some = Batcher(fits, shape, 1.0, size=lambda waiting: min(waiting, 2)), job(5, 5, 5)
    batcher.add(some, now=0.0)
    assert taken(batcher.take(1.0)) == [(some, 0), (some, 1)]
    assert taken(batcher.take(1.0)) == [(some, 2)]


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 63, 64, 65, 200, 300])
def test_the_largest_beginning_that_fits_is_found_with_few_checks(most: int) -> None:
    checked: list[int] = []

    def fits(kind: Kind, units: Sequence[Unit]) -> bool:
        checked.append(len(units))
        return len(units) <= most

    batcher = Batcher(fits, shape, 1.0)
    batcher.add(job(*[5] * 200), now=0.0)
    assert batcher.is_due(0.0) == (most < 200)
    assert len(checked) <= 15
    assert len(taken(batcher.take(1.0))) == min(most, 200)


def test_removed_units_are_not_computed() -> None:
    batcher, gone, stays = make(), job(5, 5), job(7)
    batcher.add(gone, now=0.0)
    batcher.add(stays, now=0.0)
    assert batcher.tokens == 17
    batcher.remove(gone)
    assert batcher.tokens == 7
    assert taken(batcher.take(9.0)) == [(stays, 0)]
    batcher.remove(gone)


@pytest.mark.parametrize("hypotheses", [1, 3])
def test_tokens_count_once_for_each_hypothesis(hypotheses: int) -> None:
    batcher = make()
    batcher.add(job(5, 2, kind=Scoring("", hypotheses)), now=0.0)
    assert batcher.tokens == 7 * hypotheses
    assert len(batcher.clear()) == 1
    assert batcher.tokens == len(batcher) == 0


def test_a_job_is_reported_once() -> None:
    reported: list[Job] = []
    done = Job(ONE, [Unit([1]), Unit([2])], on_done=reported.append)
    done.finish(1, "b")
    assert reported == []
    done.finish(0, "a")
    assert reported == [done]
    assert done.results == {0: "a", 1: "b"}
    failed = Job(ONE, [Unit([1])], on_done=reported.append)
    failed.fail(ValueError("no"))
    failed.finish(0, "late")
    failed.fail(ValueError("again"))
    assert reported == [done, failed]
    assert str(failed.error) == "no"
