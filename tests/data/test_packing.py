"""Packed rows: every pair once, whole, in a row with room for it; the same number of batches in every epoch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_transformer.data.batching import Batch, assemble_packed, pack_batch
from jax_transformer.data.planning import (
    Lengths,
    PackedPlan,
    Shape,
    choose_packed_shape,
    pack_rows,
    padding_share,
    plan_packed_epoch,
)
from jax_transformer.data.token_pairs import Sentences, TokenPairs

SPECIALS: dict[str, Any] = {"source_pad_id": 0, "target_pad_id": 1, "bos_id": 2, "eos_id": 3}
some_lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=60)
Pair = tuple[tuple[int, ...], tuple[int, ...]]


def as_arrays(lengths: list[tuple[int, int]]) -> Lengths:
    source, target = zip(*lengths, strict=True)
    return np.array(source), np.array(target)


def token_pairs(lengths: Lengths, corpora: list[int] | None = None) -> TokenPairs:
    """Pairs whose tokens differ: 10, 11, …"""
    following = iter(range(10, 10**6))
    source, target = ([[next(following) for _ in range(length)] for length in side] for side in lengths)
    corpus = None if corpora is None else np.array(corpora, np.uint16)
    return TokenPairs(Sentences.pack(source), Sentences.pack(target), max_length=64, corpus=corpus)


def unpacked(batch: Batch) -> list[Pair]:
    """The pairs that a reader of the segments finds; checks all that isn't in them to be padding."""
    assert batch.source_segments is not None
    assert batch.target_segments is not None
    found = []
    for row, (source, target) in enumerate(zip(batch.source_segments, batch.target_segments, strict=True)):
        assert np.all(batch.source_ids[row][source == 0] == 0)
        assert np.all(batch.labels[row][target == 0] == 1)
        assert np.all(batch.decoder_input_ids[row][target == 0] == 1)
        for number in range(1, target.max() + 1):
            inputs, labels = batch.decoder_input_ids[row][target == number], batch.labels[row][target == number]
            assert (inputs[0], labels[-1]) == (2, 3)
            assert inputs[1:].tolist() == labels[:-1].tolist()
            found.append((tuple(batch.source_ids[row][source == number].tolist()), tuple(labels[:-1].tolist())))
        assert np.all(np.diff(source[source > 0]) >= 0)
        assert np.all(np.diff(target[target > 0]) >= 0)
    return found


def pairs_of(pairs: TokenPairs) -> list[Pair]:
    return [(tuple(pairs.source(k).tolist()), tuple(pairs.target(k).tolist())) for k in range(len(pairs))]


def assembled(pairs: TokenPairs, plan: list[PackedPlan]) -> list[Batch]:
    return [assemble_packed(pairs, planned, **SPECIALS) for planned in plan]


@given(some_lengths, st.integers(13, 40), st.integers(1, 5), st.integers(0, 3))
def test_an_epoch_has_every_pair_once(lengths: list[tuple[int, int]], length: int, rows: int, epoch: int) -> None:
    pairs, shape = token_pairs(as_arrays(lengths)), Shape(rows, length, length + 3)
    plan = plan_packed_epoch(pairs, shape, seed=5, epoch=epoch)
    batches = assembled(pairs, plan)
    assert Counter(pair for batch in batches for pair in unpacked(batch)) == Counter(pairs_of(pairs))
    for batch in batches:
        assert batch.source_ids.shape == (rows, length)
        assert batch.labels.shape == (rows, length + 3)
        assert {array.dtype for array in batch if array is not None} == {np.dtype(np.int32)}
    positions = sum(batch.source_ids.size + batch.labels.size for batch in batches)
    padding = sum(int((ids == 0).sum()) for batch in batches for ids in batch[3:] if ids is not None)
    assert padding_share(pairs, [(p.shape, p.indices) for p in plan]) == pytest.approx(padding / positions)


@given(some_lengths, st.integers(13, 40))
def test_no_row_could_hold_a_pair_of_a_later_one(lengths: list[tuple[int, int]], length: int) -> None:
    """Rows are filled greedily: a row takes pairs until none of those left fits."""
    source, target = as_arrays(lengths)
    rows = pack_rows(source, target + 1, Shape(1, length, length))
    for row in range(int(rows.max())):
        room = length - source[rows == row].sum(), length - (target[rows == row] + 1).sum()
        later = rows > row
        assert not np.any((source[later] <= room[0]) & (target[later] + 1 <= room[1]))


def test_epochs_and_shards_differ_and_depend_on_the_seed_alone() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 12, 300), rng.integers(0, 12, 300)
    shape = Shape(4, 32, 32)

    def plan(**options: int) -> list[list[int]]:
        return [
            part.indices.tolist() for part in plan_packed_epoch(lengths, shape, **{"seed": 0, "epoch": 0} | options)
        ]

    first = plan()
    assert plan() == first
    for other in (plan(seed=1), plan(epoch=1), plan(shard=1)):
        assert other != first
        assert len(other) == len(first)
    together = [{tuple(sorted(part)) for part in plan(epoch=epoch)} for epoch in range(2)]
    assert not together[0] & together[1], "the company of a pair changes"


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=2, max_size=40), st.integers(0, 2**31))
def test_weighted_corpora_have_epochs_of_one_length(lengths: list[tuple[int, int]], seed: int) -> None:
    corpora = [k % 3 for k in range(len(lengths))]
    pairs, shape, weights = token_pairs(as_arrays(lengths), corpora), Shape(2, 30, 30), (0.4, 2.0, 1.5)
    plans = [plan_packed_epoch(pairs, shape, seed=seed, epoch=epoch, weights=weights) for epoch in range(3)]
    assert len({len(plan) for plan in plans}) == 1
    for plan in plans:
        unpacked(assembled(pairs, plan)[0])
        comes = Counter(int(k) for part in plan for k in part.indices)
        for number, weight in enumerate(weights):
            members = [k for k, corpus in enumerate(corpora) if corpus == number]
            expected = max(round(weight * len(members)), min(len(members), 1))
            assert sum(comes[k] for k in members) == expected
            assert all(int(weight) <= comes[k] <= int(weight) + (weight % 1 > 0) for k in members)


def test_every_pair_of_a_rare_corpus_comes_by_its_weight() -> None:
    """1,000 pairs of all lengths, 0.3 times each: in 200 epochs 60 times, give or take chance."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 1000), rng.integers(0, 60, 1000)
    comes = np.zeros(1000)
    for epoch in range(200):
        for part in plan_packed_epoch(lengths, Shape(4, 64, 64), seed=0, epoch=epoch, weights=(0.3,)):
            np.add.at(comes, part.indices, 1)
    assert comes.sum() == 300 * 200
    assert 30 < comes.min() < comes.max() < 90  # 4.6 standard deviations


def test_the_shape_follows_the_text() -> None:
    """Twice as many target tokens: rows twice as long on that side, and little padding."""
    rng = np.random.default_rng(0)
    source = rng.integers(3, 20, 2000)
    lengths = source, 2 * source
    shape = choose_packed_shape(*lengths, batch_tokens=2048, length=128)
    assert (shape.rows, shape.target_length) == (16, 128)
    assert 58 <= shape.source_length <= 68
    plan = plan_packed_epoch(lengths, shape, seed=0, epoch=0)
    assert padding_share(lengths, [(part.shape, part.indices) for part in plan]) < 0.05
    longest = choose_packed_shape(*lengths, batch_tokens=2048, length=128, longest=(128, 128))
    assert longest == Shape(16, 128, 128)


def test_no_pairs_make_no_batches() -> None:
    nothing = np.zeros(0, np.int64), np.zeros(0, np.int64)
    assert plan_packed_epoch(nothing, Shape(2, 8, 8), seed=0, epoch=0) == []


# --- batches made by hand


def test_pack_batch_holds_its_pairs() -> None:
    source, target = [[4, 5, 3], [6, 3], [7, 8, 9, 3]], [[7, 8], [], [9]]
    batch = pack_batch(source, target, source_pad_id=0, target_pad_id=1, shape=Shape(3, 8, 6))
    assert sorted(unpacked(batch)) == sorted(
        (tuple(one), tuple(other)) for one, other in zip(source, target, strict=True)
    )
    assert batch.source_ids.shape == (3, 8)
    smallest = pack_batch([*source, [4, 3]], [*target, []], source_pad_id=0, target_pad_id=1)
    assert (smallest.source_ids.shape, smallest.labels.shape) == ((3, 4), (3, 3))


@pytest.mark.parametrize(
    ("source", "target", "shape", "message"),
    [
        ([[4]], [[5], [6]], None, "received 1 sources and 2 targets"),
        ([], [], None, "received 0 sources"),
        (
            [[4, 3]],
            [[5, 6]],
            Shape(1, 4, 2),
            "at most 4 source and 2 target positions, .* received pair 0 with 2 and 3",
        ),
        ([[4, 3]] * 3, [[5]] * 3, Shape(1, 4, 8), r"at least 2 rows for these pairs; received \(1, 4, 8\)"),
    ],
)
def test_pack_batch_refuses_what_doesnt_fit(source: Any, target: Any, shape: Shape | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_batch(source, target, shape=shape)


def test_a_plan_that_overfills_a_row_is_refused() -> None:
    pairs = token_pairs(as_arrays([(3, 3), (3, 3)]))
    plan = PackedPlan(Shape(1, 5, 9), np.array([0, 1]), np.array([0, 0]))
    with pytest.raises(ValueError, match="rows of at most 5 positions; received one with 6"):
        assemble_packed(pairs, plan, **SPECIALS)
