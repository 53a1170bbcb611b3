"""Batches: few shapes, each pair once an epoch, nothing cut off, and as little padding as the shapes allow."""

from __future__ import annotations

import hashlib
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_transformer.config.run import DataConfig
from jax_transformer.data.batching import assemble, make_batch
from jax_transformer.data.planning import Shape, choose_shapes, cover_shapes, padding_share, plan_epoch, plan_in_order
from jax_transformer.data.preparation import Sentences, TokenPairs, prepare

Lengths = tuple[np.ndarray, np.ndarray]


def as_arrays(pairs: list[tuple[int, int]]) -> Lengths:
    table = np.array(pairs).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def token_pairs(lengths: Lengths, max_length: int = 100) -> TokenPairs:
    """Pairs of these lengths; no token is below 10."""
    generator = np.random.default_rng(0)
    sides = [
        Sentences.pack([generator.integers(10, 99, n).tolist() for n in side], [""] * len(side)) for side in lengths
    ]
    return TokenPairs(sides[0], sides[1], max_length)


many_lengths = st.lists(st.tuples(st.integers(1, 24), st.integers(0, 23)), min_size=1, max_size=80).map(as_arrays)
SPECIALS: dict[str, Any] = {"source_pad_id": 0, "target_pad_id": 1, "bos_id": 2, "eos_id": 3}


# --- shapes


@given(many_lengths, st.integers(1, 6), st.integers(24, 400))
def test_shapes_hold_every_pair_within_the_limits(lengths: Lengths, num_shapes: int, batch_tokens: int) -> None:
    shapes = choose_shapes(*lengths, batch_tokens=batch_tokens, num_shapes=num_shapes)
    assert 1 <= len(shapes) <= num_shapes
    for rows, source_length, target_length in shapes:
        fitting = batch_tokens // max(source_length, target_length)
        assert rows == (fitting if fitting < 8 else fitting // 8 * 8)
        assert all(isinstance(size, int) and size >= 1 for size in (rows, source_length, target_length))
    planned = np.concatenate([indices for _, indices in plan_in_order(lengths, shapes)])
    assert sorted(planned) == list(range(len(lengths[0])))


def least_by_trying_all_cuts(lengths: Lengths, num_shapes: int) -> int:
    """Positions of an epoch with a row per batch, over all cuts of the pairs sorted by the longer side."""
    source, target = lengths[0], lengths[1] + 1
    longer = np.maximum(source, target)
    limits = np.unique(longer)
    costs = []
    for count in range(1, min(num_shapes, len(limits)) + 1):
        for uppers in itertools.combinations(limits[:-1], count - 1):
            runs = np.searchsorted([*uppers, limits[-1]], longer)
            costs.append(
                sum((runs == k).sum() * (source[runs == k].max() + target[runs == k].max()) for k in np.unique(runs))
            )
    return min(costs)


@given(
    st.lists(st.tuples(st.integers(5, 9), st.integers(4, 8)), min_size=1, max_size=30).map(as_arrays), st.integers(1, 4)
)
def test_no_cut_of_the_sorted_pairs_has_less_padding(lengths: Lengths, num_shapes: int) -> None:
    shapes = choose_shapes(
        *lengths, batch_tokens=9, num_shapes=num_shapes
    )  # one row a batch: partial batches play no part
    positions = sum(
        shape.rows * (shape.source_length + shape.target_length) for shape, _ in plan_in_order(lengths, shapes)
    )
    assert positions <= least_by_trying_all_cuts(lengths, num_shapes)


def test_sides_of_different_lengths_get_shapes_of_their_own() -> None:
    lengths = as_arrays([(20, 1)] * 64 + [(2, 19)] * 64 + [(20, 19)])
    shapes = choose_shapes(*lengths, batch_tokens=160, num_shapes=3)
    assert [(shape.source_length, shape.target_length) for shape in shapes] == [(2, 20), (20, 2), (20, 20)]


def test_rows_of_partial_batches_count_as_padding() -> None:
    few = as_arrays([(4, 3), (8, 7)])
    assert len(choose_shapes(*few, batch_tokens=128, num_shapes=2)) == 1, (
        "two nearly empty batches would be worse than one"
    )


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        (as_arrays([]), {}, "received 0 and 0"),
        (
            as_arrays([(3, 9)]),
            {"batch_tokens": 9},
            "expected at least the longest side of a pair, 10 positions; received 9",
        ),
        (as_arrays([(3, 9)]), {"num_shapes": 0}, "num_shapes: expected 1 or more; received 0"),
    ],
)
def test_impossible_shapes_are_refused(lengths: Lengths, options: dict[str, int], message: str) -> None:
    settings = {"batch_tokens": 64, "num_shapes": 2} | options
    with pytest.raises(ValueError, match=message):
        choose_shapes(lengths[0], lengths[1], **settings)


def test_cover_shapes_adds_one_shape_where_it_is_needed() -> None:
    shapes = (Shape(8, 4, 4), Shape(8, 8, 8))
    assert cover_shapes(shapes, as_arrays([(8, 7), (1, 1)]), batch_tokens=64) == shapes
    assert cover_shapes(shapes, as_arrays([(9, 2), (3, 8), (2, 2)]), batch_tokens=64) == (*shapes, Shape(7, 9, 9))


# --- plans


@given(many_lengths, st.integers(1, 5), st.integers(0, 3), st.integers(0, 3))
def test_an_epoch_has_each_pair_once_in_the_cheapest_shape(
    lengths: Lengths, num_shapes: int, seed: int, epoch: int
) -> None:
    shapes = choose_shapes(*lengths, batch_tokens=64, num_shapes=num_shapes)
    plan = plan_epoch(lengths, shapes, seed=seed, epoch=epoch)
    assert sorted(np.concatenate([indices for _, indices in plan])) == list(range(len(lengths[0])))
    for shape, indices in plan:
        assert 1 <= len(indices) <= shape.rows
        for index in indices:
            source, target = lengths[0][index], lengths[1][index] + 1
            holding = [s for s in shapes if source <= s.source_length and target <= s.target_length]
            assert shape in holding
            assert shape.source_length + shape.target_length == min(s.source_length + s.target_length for s in holding)
    for shape in shapes:
        assert sum(len(indices) < shape.rows for planned, indices in plan if planned == shape) <= 1, (
            "one partial batch a shape"
        )


def flat(plan: list[tuple[Shape, np.ndarray]]) -> list[tuple[Shape, list[int]]]:
    return [(shape, indices.tolist()) for shape, indices in plan]


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    lengths = as_arrays([(k % 9 + 1, k % 7) for k in range(300)])
    shapes = choose_shapes(*lengths, batch_tokens=64, num_shapes=3)

    def order(seed: int, epoch: int) -> list[tuple[Shape, list[int]]]:
        return flat(plan_epoch(lengths, shapes, seed=seed, epoch=epoch))

    assert order(0, 1) == order(0, 1)
    assert len({str(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    batches = order(0, 0)
    changes = sum(batch[0] != following[0] for batch, following in itertools.pairwise(batches))
    assert changes > 2 * len(shapes), "batches of one shape don't follow each other"
    assert any(indices != sorted(indices) for _, indices in batches)


@given(many_lengths, st.integers(1, 4))
def test_evaluation_keeps_the_order(lengths: Lengths, num_shapes: int) -> None:
    shapes = choose_shapes(*lengths, batch_tokens=64, num_shapes=num_shapes)
    plan = plan_in_order(lengths, shapes)
    assert sorted(np.concatenate([indices for _, indices in plan])) == list(range(len(lengths[0])))
    firsts = [indices[0] for _, indices in plan]
    assert firsts == sorted(firsts)
    for shape in shapes:
        members = [index for planned, indices in plan if planned == shape for index in indices]
        assert members == sorted(members)


def test_pairs_over_max_length_are_planned_nowhere() -> None:
    pairs = token_pairs(as_arrays([(3, 3), (6, 3), (5, 5), (5, 4)]), max_length=5)
    for plan in (plan_in_order(pairs, (Shape(8, 5, 5),)), plan_epoch(pairs, (Shape(8, 5, 5),), seed=0, epoch=0)):
        assert [sorted(indices) for _, indices in plan] == [[0, 3]]


def test_a_pair_that_fits_no_shape_is_refused() -> None:
    lengths = as_arrays([(3, 3), (3, 9)])
    for plan in (
        lambda: plan_epoch(lengths, (Shape(8, 9, 9),), seed=0, epoch=0),
        lambda: plan_in_order(lengths, (Shape(8, 9, 9),)),
    ):
        with pytest.raises(ValueError, match="received 9x9 for pair 1 with 3 source and 10 target positions"):
            plan()


# --- weights


def in_corpora(lengths: Lengths, corpora: list[int]) -> TokenPairs:
    pairs = token_pairs(lengths)
    return TokenPairs(pairs.source_sentences, pairs.target_sentences, pairs.max_length, np.array(corpora, np.uint16))


@given(many_lengths, st.integers(1, 4), st.integers(0, 3), st.data())
def test_weights_say_how_often_a_corpus_comes(
    lengths: Lengths, num_shapes: int, seed: int, data: st.DataObject
) -> None:
    count = len(lengths[0])
    corpora = np.array(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    weights = data.draw(st.tuples(*[st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 2.75])] * 3))
    pairs = in_corpora(lengths, corpora.tolist())
    shapes = choose_shapes(*lengths, batch_tokens=64, num_shapes=num_shapes, pair_weights=np.array(weights)[corpora])
    in_order = plan_in_order(lengths, shapes)
    expected = {}
    for shape in {shape for shape, _ in in_order}:
        for number in range(3):
            members = int((corpora[np.concatenate([i for s, i in in_order if s == shape])] == number).sum())
            expected[shape, number] = max(round(weights[number] * members), min(members, 1))
    epochs = [plan_epoch(pairs, shapes, seed=seed, epoch=epoch, weights=weights) for epoch in range(3)]
    for plan in epochs:
        times = np.bincount(np.concatenate([indices for _, indices in plan]), minlength=count)
        for index, number in enumerate(corpora):
            assert int(weights[number]) <= times[index] <= int(np.ceil(weights[number]))
        for (shape, number), total in expected.items():
            planned = np.concatenate([np.zeros(0, int), *[indices for planned, indices in plan if planned == shape]])
            assert (corpora[planned] == number).sum() == total
    assert len({len(plan) for plan in epochs}) == 1
    assert all(sorted(shape for shape, _ in plan) == sorted(shape for shape, _ in epochs[0]) for plan in epochs)


def test_a_fraction_is_another_half_each_epoch() -> None:
    pairs = in_corpora(as_arrays([(4, 3)] * 200), [0] * 100 + [1] * 100)
    plans = [plan_epoch(pairs, (Shape(8, 4, 4),), seed=0, epoch=epoch, weights=(1.0, 0.5)) for epoch in range(30)]
    halves = [frozenset(np.concatenate([indices for _, indices in plan]).tolist()) for plan in plans]
    assert len(set(halves)) == 30
    assert all(half >= set(range(100)) for half in halves)
    times = np.bincount([index for half in halves for index in half])[100:]
    assert times.sum() == 30 * 50
    assert times.min() >= 4, "every pair has its turn"
    again = plan_epoch(pairs, (Shape(8, 4, 4),), seed=0, epoch=7, weights=(1.0, 0.5))
    assert flat(again) == flat(plans[7])


def test_weights_of_one_change_nothing() -> None:
    lengths = as_arrays([(k % 9 + 1, k % 7) for k in range(300)])
    pairs = in_corpora(lengths, [k % 2 for k in range(300)])
    shapes = choose_shapes(*lengths, batch_tokens=64, num_shapes=3)
    assert choose_shapes(*lengths, batch_tokens=64, num_shapes=3, pair_weights=np.ones(300)) == shapes
    plain = plan_epoch(lengths, shapes, seed=1, epoch=2)
    assert flat(plan_epoch(pairs, shapes, seed=1, epoch=2, weights=(1.0, 1.0))) == flat(plain)
    digest = hashlib.sha256(str([(tuple(shape), indices) for shape, indices in flat(plain)]).encode()).hexdigest()
    assert digest.startswith("dc2b74e08ec80d31"), (
        "as before there were weights: a run goes on with the batches it began with"
    )


def test_shapes_are_chosen_for_the_pairs_that_come() -> None:
    lengths = as_arrays([(4, 3)] * 500 + [(9, 8)] * 500 + [(10, 9)] * 10)
    weights = np.repeat([0.02, 1.0, 1.0], [500, 500, 10])
    plain = choose_shapes(*lengths, batch_tokens=80, num_shapes=2)
    weighted = choose_shapes(*lengths, batch_tokens=80, num_shapes=2, pair_weights=weights)
    assert plain == (Shape(16, 4, 4), Shape(8, 10, 10))
    assert weighted == (Shape(8, 9, 9), Shape(8, 10, 10))


# --- batches


@given(many_lengths, st.data())
def test_batches_are_what_a_loop_would_fill(lengths: Lengths, data: st.DataObject) -> None:
    pairs = token_pairs(lengths)
    indices = np.array(data.draw(st.lists(st.integers(0, len(pairs) - 1), max_size=6)), np.int64)
    shape = Shape(data.draw(st.integers(max(1, len(indices)), 8)), 24, 24)
    source_ids, decoder_input_ids, labels = assemble(pairs, shape, indices, **SPECIALS)[:3]
    for row in range(shape.rows):
        source = pairs.source(indices[row]).tolist() if row < len(indices) else []
        target = pairs.target(indices[row]).tolist() if row < len(indices) else []
        start, end = ([2], [3]) if row < len(indices) else ([], [])
        assert source_ids[row].tolist() == source + [0] * (24 - len(source))
        assert decoder_input_ids[row].tolist() == start + target + [1] * (24 - len(start + target))
        assert labels[row].tolist() == target + end + [1] * (24 - len(target + end))
    assert source_ids.shape == decoder_input_ids.shape == labels.shape == (shape.rows, 24)
    assert {array.dtype for array in (source_ids, decoder_input_ids, labels)} == {np.dtype(np.int32)}


@given(many_lengths, st.integers(1, 4))
def test_the_padding_share_is_the_padding_in_the_batches(lengths: Lengths, num_shapes: int) -> None:
    pairs = token_pairs(lengths)
    plan = plan_epoch(pairs, choose_shapes(*lengths, batch_tokens=64, num_shapes=num_shapes), seed=0, epoch=0)
    batches = [assemble(pairs, shape, indices, **SPECIALS) for shape, indices in plan]
    padding = sum((batch.source_ids == 0).sum() + (batch.labels == 1).sum() for batch in batches)
    assert padding_share(pairs, plan) == pytest.approx(
        padding / sum(batch.source_ids.size + batch.labels.size for batch in batches)
    )


def test_nothing_is_cut_off() -> None:
    pairs = token_pairs(as_arrays([(3, 3), (5, 2), (2, 5)]))
    assemble(pairs, Shape(2, 5, 6), np.array([1, 2]), **SPECIALS)
    for shape, indices, message in (
        (Shape(2, 4, 6), [0, 1], "at most 4 tokens; received pair 1 with 5"),
        (Shape(2, 5, 5), [0, 2], "at most 4 tokens; received pair 2 with 5"),
        (Shape(1, 9, 9), [0, 1], "at most 1 pairs; received 2"),
    ):
        with pytest.raises(ValueError, match=message):
            assemble(pairs, shape, np.array(indices), **SPECIALS)


# --- real text


def test_padding_of_multi30k(tmp_path: Path) -> None:
    shared = os.environ.get("JAX_TRANSFORMER_SHARED")
    if not shared:
        pytest.skip("JAX_TRANSFORMER_SHARED is not set")
    files = f"{shared}/data/multi30k/train.lc.norm.tok.en.gz", f"{shared}/data/multi30k/train.lc.norm.tok.de.gz"
    config = DataConfig(train=files, valid_pairs=1, tokenizer="words", cache_dir=str(tmp_path))
    pairs = prepare(config).splits["train"]
    for num_shapes, most in ((4, 0.21), (6, 0.15), (8, 0.13)):
        shapes = choose_shapes(pairs.source_lengths, pairs.target_lengths, batch_tokens=4096, num_shapes=num_shapes)
        assert padding_share(pairs, plan_epoch(pairs, shapes, seed=0, epoch=0)) <= most


def test_the_few_pairs_of_a_shape_come_at_any_weight() -> None:
    """One long pair among many short ones, all at weight 0.3: rounded down, the long one would never come."""
    lengths = np.array([3] * 30 + [40]), np.array([3] * 30 + [40])
    shapes = choose_shapes(*lengths, batch_tokens=256, num_shapes=2)
    seen = {
        int(k)
        for epoch in range(12)
        for _, indices in plan_epoch(lengths, shapes, seed=0, epoch=epoch, weights=(0.3,))
        for k in indices
    }
    assert seen == set(range(31))


# --- batches made by hand


def test_make_batch_lays_out_lists_as_assemble_does() -> None:
    source, target = [[4, 5, 3], [6, 3]], [[7, 8], [9]]
    pairs = TokenPairs(Sentences.pack(source), Sentences.pack(target), max_length=8)
    shape = Shape(4, 5, 6)
    expected = assemble(pairs, shape, np.arange(2), source_pad_id=1, target_pad_id=10, bos_id=11, eos_id=12)
    received = make_batch(source, target, source_pad_id=1, target_pad_id=10, bos_id=11, eos_id=12, shape=shape)
    for array, other in zip(received[:3], expected[:3], strict=True):
        np.testing.assert_array_equal(array, other)
        assert array.dtype == np.int32
    assert received[3:] == expected[3:] == (None, None)


def test_make_batch_refuses_what_doesnt_fit() -> None:
    with pytest.raises(ValueError, match="received 1 sources and 2 targets"):
        make_batch([[4]], [[5], [6]])
    with pytest.raises(ValueError, match="received 0 sources"):
        make_batch([], [])
    with pytest.raises(ValueError, match=r"at least \(1, 2, 2\); received \(1, 2, 1\)"):
        make_batch([[4, 3]], [[5]], shape=Shape(1, 2, 1))
