"""Streams in parts: which pairs a part gives to which shard, reading on from any shard, and several processes that read
their own parts alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from exchanging import in_processes
from test_streaming import breaking, encoded, ids_of, library_in, pairs_of, streamed, write  # noqa: F401

from jax_transformer.config.data import DataConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.data.corpus import CorpusError, fingerprint
from jax_transformer.data.exchange import Exchange, OnlyProcess
from jax_transformer.data.preparation import PreparedCorpus, _entry_name, prepare
from jax_transformer.data.streaming import Shard, TrainingStream
from jax_transformer.data.tables import Pair

FILES = (6, 5, 4, 11)
"""Pairs in each file."""
PARTS = 3
BLOCK = 3
VALID = 2
"""Taken from the first part, which has two files; the pairs left for training are 9, 4 and 11."""


def file_pairs(number: int) -> list[Pair]:
    return pairs_of(f"file{number}", FILES[number])


def write_files(folder: Path, kind: str = "jsonl") -> None:
    folder.mkdir(parents=True)
    for number in range(len(FILES)):
        write(folder / f"train-{number}.{kind}", file_pairs(number))


def break_rows(file: Path) -> None:
    """Makes a file that can't be read. Of Parquet, the footer stays: the library takes all columns from the first."""
    if file.suffix == ".parquet":
        content = file.read_bytes()
        rows = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        file.write_bytes(bytes(rows) + content[rows:])
    else:
        file.write_bytes(b'{"en": "\xff')


def in_parts(folder: Path, **options: Any) -> DataConfig:
    return streamed(folder, **{"stream_parts": PARTS, "stream_pairs": PARTS * BLOCK, "valid_pairs": VALID} | options)


def parts() -> list[list[Pair]]:
    return [[*file_pairs(0), *file_pairs(1)][VALID:], file_pairs(2), file_pairs(3)]


def expected_shards() -> list[list[Pair]]:
    return [[pair for part in parts() for pair in part[start : start + BLOCK]] for start in range(0, 12, BLOCK)]


def shards_of(
    config: DataConfig, corpus: PreparedCorpus, start: int = 0, exchange: Exchange | None = None
) -> list[Shard]:
    assert corpus.beginning is not None
    tokenizers = corpus.source_tokenizer, corpus.target_tokenizer
    stream = TrainingStream(config, tokenizers, corpus.beginning.revision, lambda line: None, exchange)
    return list(stream.shards(start))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_every_part_gives_a_block_to_each_shard_until_it_ends(tmp_path: Path, kind: str) -> None:
    write_files(tmp_path / "data", kind)
    config = in_parts(tmp_path)
    corpus = prepare(config)
    assert corpus.splits["valid"].source_texts() == [source for source, _ in file_pairs(0)[:VALID]]
    shards = shards_of(config, corpus)
    assert [ids_of([shard]) for shard in shards] == [encoded(corpus, pairs) for pairs in expected_shards()]
    assert [(shard.start, shard.report.read, shard.report.kept) for shard in shards] == [
        (0, 9, 9),
        (9, 7, 7),
        (18, 6, 6),
        (27, 2, 2),
    ]
    everything = [pair for part in parts() for pair in part]
    assert sorted(ids_of(shards)) == sorted(encoded(corpus, everything))
    for number in range(1, 4):
        rest = shards_of(config, corpus, number * PARTS * BLOCK)
        assert [shard.start for shard in rest] == [shard.start for shard in shards[number:]]
        assert ids_of(rest) == ids_of(shards[number:])
        assert [shard.report for shard in rest] == [shard.report for shard in shards[number:]]


def test_the_beginning_of_every_part_is_prepared(tmp_path: Path) -> None:
    write_files(tmp_path / "data")
    corpus = prepare(in_parts(tmp_path))
    assert corpus.beginning is not None
    lengths = [[len(ids) for ids in side] for side in zip(*encoded(corpus, expected_shards()[0]), strict=True)]
    assert [some.tolist() for some in corpus.beginning.lengths] == lengths
    assert corpus.report.splits["train"].read == PARTS * BLOCK
    whole = prepare(in_parts(tmp_path, stream_parts=1))
    assert whole.directory != corpus.directory


def test_entries_older_than_parts_are_found() -> None:
    """A run resumes only with the entry it began with, so its name stays."""
    config = DataConfig(train=("a.tsv",), valid=("b.tsv",))
    name = "bc116d1ca276bdd97cb465517d6a4536a62aba9c9339c72439d4f1de3f3391d3"
    assert _entry_name(config, fingerprint(config, {"a.tsv": "0", "b.tsv": "1"}), None) == name


def test_counts_cover_all_parts(tmp_path: Path) -> None:
    write_files(tmp_path / "data")
    pairs: list[Any] = file_pairs(2)
    pairs[1], pairs[3] = ("", "empty"), ("long " * 16, "too long")
    write(tmp_path / "data" / "train-2.jsonl", pairs)
    write(tmp_path / "data" / "train-3.jsonl", [(None, "missing"), *file_pairs(3)[1:]])
    config = in_parts(tmp_path)
    reports = [shard.report for shard in shards_of(config, prepare(config))]
    assert [(r.read, r.empty, r.too_long, r.kept) for r in reports] == [
        (9, 2, 0, 7),
        (7, 0, 1, 6),
        (6, 0, 0, 6),
        (2, 0, 0, 2),
    ]
    assert [sum(r.source_length_counts) for r in reports] == [9, 7, 6, 2]


def test_a_lost_connection_is_tried_again_for_its_part_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path / "data")
    config = in_parts(tmp_path)
    corpus = prepare(config)
    whole = shards_of(config, corpus)
    after = [4, 2, 100, 3, 100, 100, 100]  # the first and the last part break off in their second block
    breaking(monkeypatch, after)
    again = shards_of(config, corpus)
    assert ids_of(again) == ids_of(whole)
    assert [shard.report for shard in again] == [shard.report for shard in whole]
    assert len(after) == 1, "each part was opened twice"


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_a_process_reads_its_own_files_alone(tmp_path: Path, processes: int, kind: str) -> None:
    """Every process has a dataset in which the files of others can't be read."""
    write_files(tmp_path / "data", kind)
    config = in_parts(tmp_path)
    corpus = prepare(config)
    owners = {0: 0, 1: 0, 2: 1 % processes, 3: 2 % processes}
    for process in range(processes):
        shutil.copytree(tmp_path / "data", tmp_path / str(process))
        for file, owner in owners.items():
            if owner != process:
                break_rows(tmp_path / str(process) / f"train-{file}.{kind}")

    def read(process: int, exchange: Exchange) -> list[Shard]:
        return shards_of(in_parts(tmp_path, dataset=str(tmp_path / str(process))), corpus, 9, exchange)

    expected = shards_of(config, corpus, 9)
    for shards in in_processes(processes, tmp_path / "exchange", read):
        assert ids_of(shards) == ids_of(expected)
        assert [shard.report for shard in shards] == [shard.report for shard in expected]
    with pytest.raises(CorpusError):
        read(0, OnlyProcess())


def test_a_failure_in_one_process_ends_all_with_the_same_line(tmp_path: Path) -> None:
    """The first failing part is reported, even if another one failed long before."""
    write_files(tmp_path / "data")
    config = in_parts(tmp_path)
    corpus = prepare(config)
    with (tmp_path / "data" / "train-2.jsonl").open("a") as file:
        file.write('{"en": "half of\n')

    def read(process: int, exchange: Exchange) -> str:
        with pytest.raises(CorpusError) as error:
            shards_of(config, corpus, 0, exchange)
        return str(error.value)

    alone = read(0, OnlyProcess())
    assert f"{tmp_path / 'data'} (train), part 2 of 3: expected the pairs after the first 0; received " in alone
    assert in_processes(3, tmp_path / "exchange", read) == [alone] * 3
    break_rows(tmp_path / "data" / "train-3.jsonl")
    assert in_processes(3, tmp_path / "again", read) == [alone] * 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"stream_parts": 5, "stream_pairs": 10},
            r"stream_parts: expected at most 4, the number of files of dataset .*/data \(train\), since a part has "
            r"whole files; received 5\. Set data\.stream_parts to 4 or less, or divide the text into more files\.",
        ),
        (
            {"valid_pairs": 8, "test_pairs": 4},
            r"\(train\): expected valid_pairs=8 and test_pairs=4 in the first of 3 parts; received 11 pairs in it\. "
            r"Take fewer, or set stream_parts lower\.",
        ),
    ],
)
def test_too_few_files_or_pairs_are_refused(tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    write_files(tmp_path / "data")
    with pytest.raises(CorpusError, match=expected):
        prepare(in_parts(tmp_path, **options))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stream_parts": 0}, "stream_parts must be at least 1; received 0"),
        (
            {"stream_parts": 4, "stream_pairs": 10},
            "stream_pairs must be a multiple of stream_parts=4, since each part gives as many; received 10",
        ),
    ],
)
def test_parts_that_do_not_divide_a_shard_are_refused(tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        in_parts(tmp_path, **options)
