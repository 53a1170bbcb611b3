"""Other subwords in every epoch: what changes with the seed, and what never does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_transformer.config.run import CorpusConfig, DataConfig, RunConfig, TrainConfig
from jax_transformer.data.planning import Shape
from jax_transformer.data.preparation import PreparedCorpus, prepare
from jax_transformer.data.resegmentation import Resegmentation
from jax_transformer.training.batch_schedule import BatchSchedule

LARGE = Shape(rows=8, source_length=64, target_length=64)


def data(folder: Path, **options: Any) -> DataConfig:
    return DataConfig(
        phrasebook_pairs=120,
        valid_pairs=4,
        test_pairs=4,
        vocab_size=120,
        batch_tokens=512,
        cache_dir=str(folder),
        **{"tokenizer": "bpe", "subword_sampling": 0.3, "max_length": 64} | options,
    )


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return data(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def corpus(config: DataConfig) -> PreparedCorpus:
    return prepare(config)


def resegmentation(config: DataConfig, corpus: PreparedCorpus) -> Resegmentation:
    return Resegmentation(
        corpus.splits["train"], corpus.source_tokenizer, corpus.target_tokenizer, corpus.frames, config
    )


def drawn(
    config: DataConfig, corpus: PreparedCorpus, seed: int, shape: Shape = LARGE
) -> tuple[list[list[int]], list[list[int]]]:
    indices = np.arange(0, 40)
    pairs = resegmentation(config, corpus).draw(shape, indices, seed=(seed, 1))
    return [pairs.source(k).tolist() for k in range(40)], [pairs.target(k).tolist() for k in range(40)]


def test_the_text_stays_and_the_pieces_change(config: DataConfig, corpus: PreparedCorpus) -> None:
    train = corpus.splits["train"]
    source, target = drawn(config, corpus, seed=0)
    assert corpus.source_tokenizer.decode(source) == train.source_texts(range(40))
    assert corpus.target_tokenizer.decode(target) == train.target_texts(range(40))
    assert sum(ids != train.source(k).tolist() for k, ids in enumerate(source)) > 30
    assert sum(ids != train.target(k).tolist() for k, ids in enumerate(target)) > 30


def test_a_draw_is_a_function_of_the_seed(config: DataConfig, corpus: PreparedCorpus) -> None:
    assert drawn(config, corpus, seed=0) == drawn(config, corpus, seed=0)
    assert drawn(config, corpus, seed=0) != drawn(config, corpus, seed=1)


def test_a_sentence_that_outgrows_its_shape_keeps_its_best_pieces(config: DataConfig, corpus: PreparedCorpus) -> None:
    """The shape has room for the longest of the best segmentations, which drawn ones overrun now and then."""
    train = corpus.splits["train"]
    room = int(max(len(train.source(k)) for k in range(40)))
    free, _ = drawn(config, corpus, seed=0)
    source, _ = drawn(config, corpus, seed=0, shape=LARGE._replace(source_length=room))
    assert any(len(ids) > room for ids in free)
    for k, (ids, unbounded) in enumerate(zip(source, free, strict=True)):
        assert ids == (unbounded if len(unbounded) <= room else train.source(k).tolist())


def test_room_is_made_for_the_usual_growth(config: DataConfig, corpus: PreparedCorpus) -> None:
    train, made = corpus.splits["train"], resegmentation(config, corpus)
    source, target = drawn(config, corpus, seed=3)
    assert all(growth > 1.1 for growth in made.growth)
    fits = [len(ids) <= made.rooms.source_lengths[k] for k, ids in enumerate(source)]
    fits += [len(ids) <= made.rooms.target_lengths[k] for k, ids in enumerate(target)]
    assert np.mean(fits) > 0.7
    assert (made.rooms.source_lengths >= train.source_lengths).all()
    expected = made.expected_lengths[0].sum()
    np.testing.assert_allclose(expected, train.source_lengths.sum() * made.growth[0], rtol=0.03)


def test_no_room_goes_beyond_max_length(tmp_path: Path) -> None:
    config = data(tmp_path, max_length=40)
    corpus = prepare(config)
    rooms = resegmentation(config, corpus).rooms
    assert int(rooms.source_lengths.max()) == 40
    assert int(rooms.target_lengths.max()) == 39
    assert len(rooms.usable_indices) == len(corpus.splits["train"])


def test_a_side_without_subwords_stays_as_it_is(tmp_path: Path) -> None:
    config = data(tmp_path, target_kind="characters")
    corpus = prepare(config)
    _, target = drawn(config, corpus, seed=0)
    assert target == [corpus.splits["train"].target(k).tolist() for k in range(40)]
    assert resegmentation(config, corpus).growth[1] == 1.0


def test_tags_keep_their_places(tmp_path: Path) -> None:
    """Two corpora with tags of their own, one twice as often."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.tsv").write_text(
            "".join(f"the {name} cat {k}\tdie {name} katze {k}\n" for k in range(30)), encoding="utf-8"
        )
    config = DataConfig(
        train=(str(tmp_path / "one.tsv"),),
        valid_pairs=2,
        source_tag="<one>",
        tokenizer="bpe",
        vocab_size=60,
        subword_sampling=0.5,
        more=(CorpusConfig(train=(str(tmp_path / "two.tsv"),), source_tag="<two>", weight=2.0),),
        max_length=64,
        cache_dir=str(tmp_path),
    )
    corpus = prepare(config)
    train, tokenizer = corpus.splits["train"], corpus.source_tokenizer
    indices = np.arange(len(train))[::-1].copy()
    pairs = resegmentation(config, corpus).draw(LARGE, indices, seed=(0,))
    assert tokenizer.decode([pairs.source(k) for k in range(len(train))]) == train.source_texts(indices)
    for k, index in enumerate(indices):
        assert pairs.source(k)[0] == train.source(int(index))[0]  # the tag
    schedule = BatchSchedule(RunConfig(data=config, train=TrainConfig(max_steps=10**6)), corpus)
    comes = np.bincount(np.concatenate([train.corpus[plan] for _, plan in schedule._plan(epoch=0)]))
    assert comes.tolist() == [int((train.corpus == 0).sum()), 2 * int((train.corpus == 1).sum())]


def test_a_schedule_begins_anywhere_and_differs_by_epoch(config: DataConfig, corpus: PreparedCorpus) -> None:
    schedule = BatchSchedule(RunConfig(data=config, train=TrainConfig(max_epochs=2)), corpus)
    whole = list(schedule.batches_from(0))
    assert len(whole) == 2 * schedule.batches_per_epoch
    for start in (1, schedule.batches_per_epoch + 2):
        for received, expected in zip(schedule.batches_from(start), whole[start:], strict=True):
            assert all(np.array_equal(ours, theirs) for ours, theirs in zip(received, expected, strict=True))

    def sentences(batches: list[Any]) -> list[str]:
        return sorted(text for batch in batches for text in corpus.source_tokenizer.decode(batch.source_ids) if text)

    first, second = whole[: schedule.batches_per_epoch], whole[schedule.batches_per_epoch :]
    assert sentences(first) == sentences(second) == sorted(corpus.splits["train"].source_texts())
    assert sorted(b.source_ids.tobytes() for b in first) != sorted(b.source_ids.tobytes() for b in second)


def test_words_have_no_subwords_to_draw() -> None:
    with pytest.raises(ValueError, match="subword_sampling must be 0 with tokenizer='words'"):
        DataConfig(subword_sampling=0.1)
    mixed = DataConfig(subword_sampling=0.1, target_kind="bpe", vocab_size=100)
    assert dataclasses.replace(mixed, target_kind="unigram").target_kind == "unigram"
