"""The schedule of batches: weighted corpora, in epochs of one length."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import CorpusConfig, DataConfig, RunConfig, TrainConfig
from jax_transformer.data.preparation import prepare
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
