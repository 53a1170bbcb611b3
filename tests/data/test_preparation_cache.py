"""The cache of prepared corpora: an entry is either whole or not there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from small_corpora import PAIRS, config_in, contents, fail_if_called

from jax_transformer.config.run import DataConfig
from jax_transformer.data.preparation import CorpusError, prepare

# --- the cache


def test_a_prepared_corpus_is_not_prepared_again(tmp_path: Path) -> None:
    first = prepare(config_in(tmp_path))
    again = prepare(config_in(tmp_path, batch_tokens=512, num_shapes=2), fail_if_called)
    assert again.directory == first.directory
    assert contents(again) == contents(first)
    (tmp_path / "other").mkdir()
    moved = config_in(tmp_path / "other")
    renamed = DataConfig(train=moved.train, valid=moved.valid, cache_dir=str(tmp_path / "cache"))
    assert prepare(renamed, fail_if_called).directory == first.directory, "files count by content"


@pytest.mark.parametrize(
    "options",
    [
        {"tokenizer": "characters"},
        {"joint_vocabulary": True},
        {"vocab_size": 9},
        {"min_frequency": 4},
        {"lowercase": True},
        {"pad_id": 5},
        {"source_eos": False},
        {"source_bos": True},
        {"max_length": 6},
        {"pairs": PAIRS[1:]},
    ],
)
def test_every_relevant_option_makes_another_entry(tmp_path: Path, options: dict[str, Any]) -> None:
    first = prepare(config_in(tmp_path))
    other = prepare(config_in(tmp_path, **options))
    assert other.directory != first.directory
    assert other.directory.parent == first.directory.parent
    assert contents(other) != contents(first)


@pytest.mark.parametrize("harm", ["truncate", "extend", "delete", "flip"])
@pytest.mark.parametrize(
    "name",
    [
        "digests.json",
        "report.json",
        "source_tokenizer.json",
        "train.source.ids",
        "train.target.offsets",
        "train.corpus",
        "valid.target.txt",
        "valid.source.text_offsets",
    ],
)
def test_a_damaged_entry_is_built_again(tmp_path: Path, name: str, harm: str) -> None:
    config = config_in(tmp_path)
    first = prepare(config)
    expected = contents(first)
    victim = first.directory / name
    data = victim.read_bytes()
    victim.unlink()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    if harm != "delete":
        victim.write_bytes({"truncate": data[:-1], "extend": data + b"x", "flip": flipped}[harm])
    lines: list[str] = []
    again = prepare(config, lines.append)
    assert lines, "it was built again"
    assert contents(again) == expected
    assert list((tmp_path / "cache").iterdir()) == [first.directory]


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_every_part_of_a_large_file_is_under_a_digest(tmp_path: Path, place: float) -> None:
    config = config_in(tmp_path, pairs=[(f"{'word ' * 30}{k}", f"{'Wort ' * 30}{k}") for k in range(9_000)])
    first = prepare(config)
    victim = first.directory / "train.source.txt"
    data = bytearray(victim.read_bytes())
    assert len(data) > 1 << 20
    data[int(place * len(data))] ^= 1
    victim.write_bytes(data)
    lines: list[str] = []
    prepare(config, lines.append)
    assert lines[0].startswith(f"{first.directory}: damaged (train.source.txt: altered (sha256 expected ")


@pytest.mark.parametrize("harm", ["cut", "overwritten", "emptied"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, harm: str) -> None:
    corpus = prepare(config_in(tmp_path))
    pairs = corpus.splits["train"]
    assert len(pairs.source(0))
    file = corpus.directory / "train.source.ids"
    with open(file, "r+b") as opened:
        if harm == "overwritten":
            opened.write(bytes(4))
        opened.truncate({"cut": 8, "overwritten": file.stat().st_size, "emptied": 0}[harm])
    os.utime(file, ns=(0, 0))
    with pytest.raises(
        CorpusError, match=r"train\.source\.ids: expected the prepared corpus as it was opened; received"
    ):
        pairs.source(3)
    assert len(prepare(config_in(tmp_path)).splits["train"].source(3))


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    config = config_in(tmp_path)

    def fail(line: str) -> None:
        if line.startswith("encoding valid"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(config, fail)
    assert list((tmp_path / "cache").iterdir()) == []


def test_losing_a_race_gives_the_winners_entry(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    winners = []

    def overtake(line: str) -> None:
        if line.startswith("encoding valid"):
            winners.append(prepare(config))
            inodes.append(winners[0].directory.stat().st_ino)

    inodes: list[int] = []
    mine = prepare(config, overtake)
    assert contents(mine) == contents(winners[0])
    assert mine.directory.stat().st_ino == inodes[0], "the winner's entry stayed where it was"
    assert list((tmp_path / "cache").iterdir()) == [mine.directory]


def test_an_entry_appears_whole(tmp_path: Path) -> None:
    inodes: list[int] = []

    def look(line: str) -> None:
        if line.startswith("encoding valid"):
            inodes.extend(path.stat().st_ino for path in (tmp_path / "cache").iterdir())

    corpus = prepare(config_in(tmp_path), look)
    assert inodes == [corpus.directory.stat().st_ino], "it was built under another name, and renamed"


CHILD = """
import sys, time
from jax_transformer.data import encoding, preparation
from jax_transformer.config.run import DataConfig

def wait(line):
    if line.startswith(sys.argv[1]):
        print("waiting", flush=True)
        sys.stdin.readline()

def publish(building, entry):
    wait("publishing")
    original(building, entry)

encoding.CHUNK = 5
original, preparation.publish = preparation.publish, publish
corpus = preparation.prepare(DataConfig(train=(sys.argv[2],), valid=(sys.argv[3],), cache_dir=sys.argv[4]), wait)
print(corpus.directory)
"""


def start_child(stage: str, config: DataConfig) -> subprocess.Popen[str]:
    """A process preparing `config`, once it waits at `stage`."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, stage, config.train[0], config.valid[0], config.cache_dir],
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    return child


@pytest.mark.parametrize("stage", ["training", "encoding train: 10", "encoding valid: 23", "publishing"])
def test_a_kill_leaves_no_entry(tmp_path: Path, stage: str) -> None:
    config = config_in(tmp_path)
    with start_child(stage, config) as child:
        child.send_signal(signal.SIGKILL)
        assert child.wait(timeout=30) == -signal.SIGKILL
    leftovers = [path.name for path in (tmp_path / "cache").iterdir()]
    assert len(leftovers) == 1
    assert leftovers[0].startswith("building-")

    corpus = prepare(config)
    (tmp_path / "whole").mkdir()
    assert contents(corpus) == contents(prepare(config_in(tmp_path / "whole")))


def test_two_processes_may_prepare_the_same_corpus(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    children = [start_child("publishing", config) for _ in range(2)]
    outputs = [child.communicate("\n", timeout=30)[0].strip() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    corpus = prepare(config, fail_if_called)
    assert outputs == [str(corpus.directory)] * 2
    assert list((tmp_path / "cache").iterdir()) == [corpus.directory]


def test_leftovers_of_a_killed_preparation_are_removed(tmp_path: Path) -> None:
    cache, config = tmp_path / "cache", config_in(tmp_path)
    with start_child("training", config) as child:
        (running,) = cache.iterdir()
        (cache / "building-killed").mkdir()
        (cache / "building-new").mkdir()
        for path in (running, cache / "building-killed"):
            os.utime(path, (time.time() - 100,) * 2)
        corpus = prepare(config)
        assert set(cache.iterdir()) == {running, cache / "building-new", corpus.directory}
        child.kill()
    os.utime(running, (time.time() - 100,) * 2)
    prepare(config, fail_if_called)
    assert set(cache.iterdir()) == {cache / "building-new", corpus.directory}


def test_an_open_corpus_outlives_its_entry(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    first = prepare(config)
    expected = contents(first)
    shutil.rmtree(first.directory)
    prepare(config)
    assert contents(first) == expected


def test_the_same_bytes_in_another_format_are_another_corpus(tmp_path: Path) -> None:
    rows = "".join(f"w{k},x{k}\ty{k}\n" for k in range(6))
    for name in ("pairs.tsv", "pairs.csv"):
        (tmp_path / name).write_text(rows, encoding="utf-8")
    options: dict[str, Any] = {"valid_pairs": 1, "cache_dir": str(tmp_path / "cache")}
    as_tsv, as_csv = (
        prepare(DataConfig(train=(str(tmp_path / f"pairs.{suffix}"),), **options)) for suffix in ("tsv", "csv")
    )
    assert as_tsv.splits["train"].source_texts([0])[0].count(",") == 1
    assert as_csv.splits["train"].source_texts([0])[0].count(",") == 0
