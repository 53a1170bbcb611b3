"""The schedule of batches: weighted corpora, in epochs of one length."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import CorpusConfig, DataConfig, RunConfig, TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.data.preparation import PreparedCorpus, prepare
from jax_transformer.training.batch_schedule import BatchSchedule


def write(path: Path, letter: str, count: int) -> str:
    path.write_text("".join(f"{letter}{k} {'x ' * (k % 5)}\t{letter} {'y ' * (k % 3)}\n" for k in range(count)))
    return str(path)


def test_each_epoch_has_the_corpora_by_their_weights(tmp_path: Path) -> None:
    config = RunConfig(
        model=TransformerConfig(max_length=16),
        data=DataConfig(
            train=(write(tmp_path / "a.tsv", "a", 60),),
            valid=(write(tmp_path / "v.tsv", "a", 3),),
            weight=0.5,
            max_length=16,
            more=(
                CorpusConfig(train=(write(tmp_path / "b.tsv", "b", 40),), weight=2.0),
                CorpusConfig(train=(write(tmp_path / "c.tsv", "c", 9),)),
            ),
            batch_tokens=64,
            num_shapes=1,
            tokenizer="whitespace",
            cache_dir=str(tmp_path / "cache"),
        ),
        train=TrainConfig(max_steps=1000, max_epochs=4),
    )
    corpus = prepare(config.data)
    schedule = BatchSchedule(config, corpus)
    rows = schedule.shapes[0].rows
    assert schedule.batches_per_epoch == -(-(30 + 80 + 9) // rows)
    assert schedule.last_step == 4 * schedule.batches_per_epoch
    batches = list(schedule.batches_from(0))
    epochs = [
        batches[start : start + schedule.batches_per_epoch]
        for start in range(0, len(batches), schedule.batches_per_epoch)
    ]
    firsts = []
    for epoch in epochs:
        sources = [row for batch in epoch for row in batch.source_ids if row[0] != corpus.source_tokenizer.pad_id]
        words = [corpus.source_tokenizer.decode([row])[0].split()[0] for row in sources]
        assert Counter(word[0] for word in words) == {"a": 30, "b": 80, "c": 9}
        assert set(Counter(word for word in words if word.startswith("b")).values()) == {2}
        firsts.append(frozenset(word for word in words if word.startswith("a")))
    assert len(set(firsts)) == 4, "another half each time"
    again = list(schedule.batches_from(schedule.batches_per_epoch + 3))
    assert all(
        (one.source_ids == other.source_ids).all() for one, other in zip(again, batches[-len(again) :], strict=True)
    )


# --- packed


@pytest.fixture(params=["words", "sampled subwords"])
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> RunConfig:
    """Seventy pairs, three epochs, packed; with `sampled subwords`, of other lengths in each epoch."""
    subwords = {"tokenizer": "bpe", "vocab_size": 40, "subword_sampling": 0.3}
    return RunConfig(
        model=TransformerConfig(max_length=32),
        data=DataConfig(
            train=(write(tmp_path / "a.tsv", "a", 70),),
            valid=(write(tmp_path / "v.tsv", "a", 3),),
            max_length=32,
            batch_tokens=64,
            packing=True,
            cache_dir=str(tmp_path / "cache"),
            **({"tokenizer": "whitespace"} if request.param == "words" else subwords),  # type: ignore[arg-type]
        ),
        train=TrainConfig(max_steps=1000, max_epochs=3),
    )


def texts(corpus: PreparedCorpus, batches: list[Batch]) -> list[str]:
    rows = [(ids, segments) for batch in batches for ids, segments in zip(batch[0], batch[3], strict=True)]
    sources = [ids[segments == number] for ids, segments in rows for number in range(1, segments.max() + 1)]
    return [text.strip() for text in corpus.source_tokenizer.decode(sources)]


def test_packed_epochs_have_every_pair_and_one_length(packed: RunConfig) -> None:
    corpus = prepare(packed.data)
    schedule = BatchSchedule(packed, corpus)
    batches, count = list(schedule.batches_from(0)), schedule.batches_per_epoch
    assert len(batches) == schedule.last_step == 3 * count
    epochs = [batches[start : start + count] for start in range(0, len(batches), count)]
    for epoch in epochs:
        assert sorted(texts(corpus, epoch)) == sorted(map(str.strip, corpus.splits["train"].source_texts()))
    assert len({texts(corpus, epoch)[0] for epoch in epochs}) > 1
    (shape,) = schedule.shapes
    assert {batch.source_ids.shape for batch in batches} == {(shape.rows, shape.source_length)}


def test_a_packed_schedule_begins_anywhere(packed: RunConfig) -> None:
    schedule = BatchSchedule(packed, prepare(packed.data))
    whole = list(schedule.batches_from(0))
    for start in (1, schedule.batches_per_epoch + 2):
        for received, expected in zip(schedule.batches_from(start), whole[start:], strict=True):
            assert all(np.array_equal(one, other) for one, other in zip(received, expected, strict=True))


def test_the_figures_of_packed_batches_are_true(packed: RunConfig) -> None:
    corpus = prepare(packed.data)
    schedule = BatchSchedule(packed, corpus)
    epoch = list(schedule.batches_from(0))[: schedule.batches_per_epoch]
    segments = np.concatenate([array.ravel() for batch in epoch for array in batch[3:] if array is not None])
    assert schedule.padding == pytest.approx(np.mean(segments == 0), abs=0.02 if schedule.drawing else 1e-12)
    pairs = np.concatenate([array.max(axis=1) for batch in epoch for array in batch[4:] if array is not None])
    assert schedule.pairs_per_row == pytest.approx(pairs.sum() / np.count_nonzero(pairs))
    alone = BatchSchedule(dataclasses.replace(packed, data=dataclasses.replace(packed.data, packing=False)), corpus)
    assert alone.pairs_per_row is None
