"""Many sentences are decoded in batches that ended sentences leave, on all cores, as if each were alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding import batches
from jax_transformer.decoding.batches import generate_each
from jax_transformer.decoding.generation import Search, generate
from jax_transformer.decoding.padding import few_lengths, round_length
from jax_transformer.decoding.streams import in_streams
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("quick_compilation")


def counted_merges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which each merge of batches adds the number of sentences that move."""
    merged: list[int] = []
    take_rows = Search.take_rows

    def counted(self: Search, into: list[int], other: Search, rows: list[int]) -> None:
        merged.append(len(rows))
        take_rows(self, into, other, rows)

    monkeypatch.setattr(Search, "take_rows", counted)
    return merged


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 3, "num_return": 2},
        {"sampling": True, "num_return": 2, "seed": 3},
        {"beam_size": 2, "semantics": "floydhub"},
    ],
    ids=["greedy", "beams", "sampling", "floydhub"],
)
def test_each_sentence_is_decoded_as_if_alone(
    model: Model, sources: list[list[int]], options: dict[str, Any], cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = counted_merges(monkeypatch)
    monkeypatch.setattr(batches, "num_cores", lambda: cores)
    decoding, many = DecodingConfig(max_new_tokens=9, **options), [*sources, *sources[::-1]] * 6
    counts: list[int] = []
    found = generate_each(model, many, decoding, rows=8, prefix_ids=[5], on_batch=counts.append)
    assert merged, "some sentences moved to another batch"
    assert sum(counts) == len(many)
    alone = generate(model, many, decoding, prefix_ids=[[5]] * len(many), sentence_numbers=range(len(many)))
    for each, sequences, scores in zip(found, alone.sequences, alone.scores, strict=True):
        for (ids, score), row, its_score in zip(each, sequences.tolist(), scores, strict=True):
            assert ids == row[: len(ids)]
            np.testing.assert_allclose(score, its_score, rtol=1e-6)


def test_a_sentence_that_moves_takes_its_source_along(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or other tokens would be forbidden."""
    merged = counted_merges(monkeypatch)
    rng = np.random.default_rng(1)
    many = [[int(token) for token in rng.permutation([0, 5, 6, 8, 9])[: rng.integers(1, 5)]] for _ in range(96)]
    options: dict[str, Any] = {"max_new_tokens": 9, "encoder_no_repeat_ngram": 1, "repetition_penalty": 1.3}
    found = [each[0].ids for each in generate_each(model, many, DecodingConfig(**options), rows=8)]
    assert merged
    alone = generate(model, many, **options).sequences[:, 0].tolist()
    assert found == [row[: len(ids)] for row, ids in zip(alone, found, strict=True)]
    assert all(not {*ids} & {*source} for ids, source in zip(found, many, strict=True))


def test_batches_of_one_sentence_become_one(model: Model, sources: list[list[int]]) -> None:
    """A single sentence has a row of padding, for speed, which takes another sentence."""
    expected = generate(model, sources).sequences[:, 0].tolist()
    found = generate_each(model, sources, rows=1)
    assert [each[0].ids for each in found] == [
        row[: len(each[0].ids)] for row, each in zip(expected, found, strict=True)
    ]


def test_streams_yield_everything_and_run_at_once() -> None:
    together = threading.Barrier(2)

    def counting(first: int) -> Iterator[int]:
        together.wait(timeout=60)
        yield from range(first, first + 3)

    assert sorted(in_streams([counting(0), counting(10)])) == [0, 1, 2, 10, 11, 12]
    assert list(in_streams([range(3)])) == [0, 1, 2]


def test_what_a_stream_raises_ends_all() -> None:
    pulled: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            pulled.append(0)
            yield 1

    def failing() -> Iterator[int]:
        yield 2
        raise ValueError("expected")

    with pytest.raises(ValueError, match="expected"):
        list(in_streams([endless(), failing()]))
    count = len(pulled)
    assert not [thread for thread in threading.enumerate() if thread.name == "stream"]
    assert len(pulled) == count


def test_lengths_have_two_sizes_for_each_doubling() -> None:
    lengths = 1, 8, 9, 13, 17, 25, 33, 49, 65, 97
    assert [round_length(length, 100) for length in lengths] == [8, 8, 12, 16, 24, 32, 48, 64, 96, 100]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([3, 9], [12]),  # few sentences share a program
        ([8] * 400 + [12], [12]),
        ([8] * 4000 + [12], [8, 12]),  # many are worth one of their own
        ([5, 16], [16]),
        ([5, 17], [8, 24]),  # no sentence takes more than twice its padded length
        ([70, 400], [100]),  # the most that the model reads
    ],
)
def test_a_length_has_a_program_if_it_saves_enough(lengths: list[int], expected: list[int]) -> None:
    assert few_lengths(lengths, 100 if max(lengths, default=0) > 32 else 512) == expected


def test_sentences_of_few_lengths_share_a_program(
    model: Model, sources: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: set[int] = set()
    padded_sources = batches.padded_sources

    def recorded(*arguments: Any) -> np.ndarray:
        padded = padded_sources(*arguments)
        shapes.add(padded.shape[1])
        return padded

    monkeypatch.setattr(batches, "padded_sources", recorded)
    many = [*sources, [4, 5, 6] * 3] * 4
    found = generate_each(model, many, DecodingConfig(max_new_tokens=4), rows=8)
    assert len({round_length(len(source), 9) for source in many}) > 1
    assert len(shapes) == 1
    alone = generate(model, many, max_new_tokens=4).sequences[:, 0].tolist()
    assert [each[0].ids for each in found] == [row[: len(each[0].ids)] for row, each in zip(alone, found, strict=True)]
