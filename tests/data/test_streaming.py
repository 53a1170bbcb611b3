"""Streamed corpora: which pairs are whose, what is kept of them, reading on from any shard, and what is said when that
fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jax_transformer.config.data import CorpusConfig, DataConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.data import streaming
from jax_transformer.data.corpus import CorpusError
from jax_transformer.data.hub import StreamedPairs, Unreachable
from jax_transformer.data.preparation import PreparedCorpus, prepare
from jax_transformer.data.streaming import Shard, TrainingStream
from jax_transformer.data.tables import Pair

TRAIN, SHARD = 25, 10


@pytest.fixture(autouse=True)
def library_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library keeps what it reads under tmp_path, and asks no one; no test waits for another attempt."""
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "library")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(streaming, "RETRY_SECONDS", (0.0, 0.0))


def pairs_of(split: str, count: int) -> list[Pair]:
    return [(f"{split} {'x ' * (k % 4)}{k}", f"{k} {'y ' * (k % 3)}{split}") for k in range(count)]


def write(path: Path, pairs: list[Any]) -> None:
    rows = [{"id": k, "en": source, "de": target} for k, (source, target) in enumerate(pairs)]
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        path.write_text("id,en,de\n" + "".join(f"{row['id']},{row['en']},{row['de']}\n" for row in rows))
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def streamed(folder: Path, **options: Any) -> DataConfig:
    """The dataset at folder/data, read 10 pairs at a time."""
    usual = {
        "dataset": str(folder / "data"),
        "source_language": "en",
        "target_language": "de",
        "streaming": True,
        "stream_pairs": SHARD,
        "tokenizer": "whitespace",
        "max_unknown": 1.0,
        "max_length": 16,
        "cache_dir": str(folder / "cache"),
    }
    return DataConfig(**usual | options)


def stream_of(config: DataConfig, corpus: PreparedCorpus, log: Any = lambda line: None) -> TrainingStream:
    assert corpus.beginning is not None
    return TrainingStream(config, (corpus.source_tokenizer, corpus.target_tokenizer), corpus.beginning.revision, log)


def ids_of(shards: list[Shard]) -> list[tuple[list[int], list[int]]]:
    return [
        (shard.pairs.source(k).tolist(), shard.pairs.target(k).tolist())
        for shard in shards
        for k in range(len(shard.pairs))
    ]


def encoded(corpus: PreparedCorpus, pairs: list[Pair]) -> list[tuple[list[int], list[int]]]:
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    return list(zip(corpus.source_tokenizer.encode(sources), corpus.target_tokenizer.encode(targets), strict=True))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_the_first_pairs_are_valid_and_test_and_the_rest_is_trained_on(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "data" / f"train.{kind}", pairs_of("train", TRAIN + 5))
    config = streamed(tmp_path, valid_pairs=3, test_pairs=2)
    corpus = prepare(config)
    everything = pairs_of("train", TRAIN + 5)
    for name, own in (("valid", everything[:3]), ("test", everything[3:5])):
        split = corpus.splits[name]
        assert list(zip(split.source_texts(), split.target_texts(), strict=True)) == own
    shards = list(stream_of(config, corpus).shards())
    assert ids_of(shards) == encoded(corpus, everything[5:])
    assert [(shard.start, shard.report.read) for shard in shards] == [(0, 10), (10, 10), (20, 5)]


def test_the_splits_of_the_dataset_are_used_where_it_has_them(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train.jsonl", pairs_of("train", TRAIN))
    write(tmp_path / "data" / "validation.jsonl", pairs_of("valid", 4))
    config = streamed(tmp_path, test_pairs=2)
    corpus = prepare(config)
    assert corpus.splits["valid"].source_texts() == [source for source, _ in pairs_of("valid", 4)]
    assert corpus.splits["test"].source_texts() == [source for source, _ in pairs_of("train", 2)]
    assert ids_of(list(stream_of(config, corpus).shards())) == encoded(corpus, pairs_of("train", TRAIN)[2:])
    with pytest.raises(CorpusError, match="valid_pairs: expected 0, for the corpus has the split valid; received 3"):
        prepare(streamed(tmp_path, valid_pairs=3))


def test_no_training_text_is_kept(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train.jsonl", pairs_of("train", TRAIN))
    write(tmp_path / "data" / "validation.jsonl", pairs_of("valid", 4))
    corpus = prepare(streamed(tmp_path))
    assert set(corpus.splits) == {"valid"}
    assert {path.name for path in corpus.directory.iterdir() if path.name.startswith("train.")} == {"train.lengths"}
    assert (corpus.directory / "train.lengths").stat().st_size == SHARD * 2 * 4
    assert corpus.beginning is not None
    sources, targets = zip(*encoded(corpus, pairs_of("train", SHARD)), strict=True)
    assert [lengths.tolist() for lengths in corpus.beginning.lengths] == [
        list(map(len, sources)),
        list(map(len, targets)),
    ]
    assert not list((tmp_path / "library").rglob("*.arrow")), "nor does the library keep a copy"
    lines = corpus.report.lines()
    assert "train is a stream: its counts cover only the 10 pairs of its first shard; its length is unknown" in lines
    assert any(line.startswith("train: 10 pairs read, 10 kept") for line in lines)


def test_the_tokenizers_know_the_beginning_only(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train.jsonl", pairs_of("train", TRAIN))
    corpus = prepare(streamed(tmp_path, valid_pairs=2))
    unknown = corpus.source_tokenizer.unk_id
    known = [number for number in range(TRAIN) if unknown not in corpus.source_tokenizer.encode([str(number)])[0]]
    assert known == list(range(2, 2 + SHARD))


def test_reading_resumes_at_any_shard(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train-1.jsonl", pairs_of("train", 7))  # several files are one stream
    write(tmp_path / "data" / "train-2.jsonl", pairs_of("later", TRAIN - 7))
    config = streamed(tmp_path, valid_pairs=2)
    corpus = prepare(config)
    whole = list(stream_of(config, corpus).shards())
    assert ids_of(whole) == encoded(corpus, [*pairs_of("train", 7), *pairs_of("later", TRAIN - 7)][2:])
    for start in (10, 20):
        rest = list(stream_of(config, corpus).shards(start))
        assert [shard.start for shard in rest] == list(range(start, TRAIN - 2, SHARD))
        assert ids_of(rest) == ids_of(whole)[start:]


def test_dropped_pairs_are_counted_in_every_shard(tmp_path: Path) -> None:
    pairs: list[Any] = pairs_of("train", TRAIN)
    pairs[12], pairs[13], pairs[14] = ("", "empty"), (None, "missing"), ("long " * 16, "too long")
    pairs[21] = ("a b c d e f g h", "unequal")
    write(tmp_path / "data" / "train.jsonl", pairs)
    write(tmp_path / "data" / "validation.jsonl", pairs_of("valid", 4))
    config = streamed(tmp_path, max_length_ratio=5.0)
    corpus = prepare(config)
    reports = [shard.report for shard in stream_of(config, corpus).shards()]
    assert [(r.read, r.empty, r.too_long, r.unequal, r.kept) for r in reports] == [
        (10, 0, 0, 0, 10),
        (10, 2, 1, 0, 7),
        (5, 0, 0, 1, 4),
    ]


def breaking(monkeypatch: pytest.MonkeyPatch, after: list[int]) -> None:
    """Each attempt to read the stream ends with a lost connection after so many pairs; those after the last of them
    don't."""
    whole = StreamedPairs.pairs_from

    def pairs_from(self: StreamedPairs, start: int) -> Iterator[Pair]:
        left = after.pop(0) if after else -1
        for pair in whole(self, start):
            if left == 0:
                raise Unreachable("dataset: expected more; received ConnectionError.")
            left -= 1
            yield pair

    monkeypatch.setattr(StreamedPairs, "pairs_from", pairs_from)


def test_a_lost_connection_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data" / "train.jsonl", pairs_of("train", TRAIN))
    config = streamed(tmp_path, valid_pairs=2)
    corpus = prepare(config)
    whole = list(stream_of(config, corpus).shards())
    lines: list[str] = []
    breaking(monkeypatch, [4, 14, 4])  # in shard 0, and twice in shard 1: two attempts for each
    again = list(stream_of(config, corpus, lines.append).shards())
    assert ids_of(again) == ids_of(whole)
    assert [shard.report for shard in again] == [shard.report for shard in whole]
    assert lines == [
        f"dataset: expected more; received ConnectionError. Trying again in 0 s ({k} of 2)." for k in (1, 1, 2)
    ]


def test_after_the_last_attempt_the_error_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data" / "train.jsonl", pairs_of("train", TRAIN))
    config = streamed(tmp_path, valid_pairs=2)
    corpus = prepare(config)
    breaking(monkeypatch, [14, 4, 4])
    shards = stream_of(config, corpus).shards()
    assert next(shards).start == 0
    with pytest.raises(Unreachable, match="received ConnectionError"):
        next(shards)


def test_an_error_of_the_library_becomes_a_line(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train.jsonl", pairs_of("train", TRAIN))
    write(tmp_path / "data" / "validation.jsonl", pairs_of("valid", 4))
    config = streamed(tmp_path)
    corpus = prepare(config)
    (tmp_path / "data" / "train.jsonl").write_text('{"en": "half of\n')
    with pytest.raises(Unreachable) as error:
        list(stream_of(config, corpus).shards(10))
    message = str(error.value)
    assert message.startswith(f"dataset {tmp_path / 'data'} (train): expected the pairs after the first 10; received ")
    assert "\n" not in message


def test_the_prepared_version_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a dataset on the Hub, here a stand-in for one: only its name is hashed, and its newest version may be another
    tomorrow."""
    import datasets

    write(tmp_path / "data" / "train.jsonl", pairs_of("train", TRAIN))
    builder = datasets.load_dataset_builder(str(tmp_path / "data"))
    asked: list[str | None] = []

    def load(name: str, config: str | None, revision: str | None = None) -> Any:
        asked.append(revision)
        return builder

    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    builder.hash = "0123abc"
    config = streamed(tmp_path, dataset="somebody/something", valid_pairs=2)
    corpus = prepare(config)
    builder.hash = "newer"
    list(stream_of(config, prepare(config)).shards())
    assert asked == [None, "0123abc"]
    prepare(streamed(tmp_path, dataset="somebody/something", dataset_revision="main", valid_pairs=2))
    assert asked[2:] == ["main"]
    assert "dataset somebody/something, streamed, version 0123abc" in corpus.report.lines()


def test_another_text_is_another_corpus(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train.jsonl", pairs_of("train", TRAIN))
    config = streamed(tmp_path, valid_pairs=2)
    first, same = prepare(config), prepare(config)
    write(tmp_path / "data" / "train.jsonl", pairs_of("train", TRAIN - 1))
    other = prepare(config)
    assert first.directory == same.directory != other.directory


@pytest.mark.parametrize(
    ("pairs", "options", "expected"),
    [
        (
            pairs_of("train", 5),
            {"valid_pairs": 3, "test_pairs": 2},
            "expected training pairs, valid_pairs=3 and test_pairs=2; received 5",
        ),
        (
            [("", "x"), ("x", " ")] * TRAIN,
            {"valid_pairs": 3},
            "train: expected pairs of non-empty sentences .* received 10 pairs, 10 with an empty side",
        ),
        (pairs_of("train", TRAIN), {}, "valid: expected validation pairs"),
        (
            pairs_of("train", TRAIN),
            {"train_split": "trian"},
            r"expected train_split to be one of train; received 'trian'\. Did you mean",
        ),
        (pairs_of("train", TRAIN), {"valid_pairs": 3, "source_column": "fr"}, "expected the column 'fr'"),
    ],
)
def test_unusable_streams_are_refused(
    tmp_path: Path, pairs: list[Pair], options: dict[str, Any], expected: str
) -> None:
    write(tmp_path / "data" / "train.jsonl", pairs)
    with pytest.raises(CorpusError, match=expected):
        prepare(streamed(tmp_path, **options))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dataset": ""}, "dataset must be set with streaming"),
        ({"train": ("a.tsv",)}, r"dataset must be set with streaming, and train be empty; received .* and \['a.tsv'\]"),
        (
            {"more": (CorpusConfig(train=("a.tsv",)),)},
            "more must be empty with streaming, which reads one corpus; received 1 further",
        ),
        ({"drop_duplicates": True}, "drop_duplicates and drop_overlap must be false"),
        ({"weight": 2.0}, "weight must be 1 with streaming, which reads one corpus; received 2.0"),
        (
            {"tokenizer": "bpe", "vocab_size": 50, "subword_sampling": 0.1},
            "subword_sampling must be 0 with streaming; received 0.1",
        ),
        (
            {"train_split": "train[:100]"},
            r"train_split must be a whole split with streaming .*; received 'train\[:100\]'",
        ),
    ],
)
def test_options_that_a_stream_cannot_have_are_refused(tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        streamed(tmp_path, **options)
