"""Preparation: what is kept and counted, and a cache that is either whole or not there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_transformer.data
from jax_transformer.data import preparation
from jax_transformer.data.corpus import CorpusError
from jax_transformer.data.preparation import PreparedCorpus, Sentences, TokenPairs, prepare
from jax_transformer.run_config import DataConfig

Pairs = list[tuple[str, str]]
PAIRS = [(" ".join("abcdefG"[: k % 7 + 1]), " ".join("tuvwxyz"[k % 7 :])) for k in range(23)]


def write(path: Path, pairs: Pairs) -> str:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return str(path)


def config_in(folder: Path, pairs: Pairs = PAIRS, **options: Any) -> DataConfig:
    options = {"valid": (write(folder / "valid.tsv", pairs),)} | options
    return DataConfig(train=(write(folder / "train.tsv", pairs),), cache_dir=str(folder / "cache"), **options)


def contents(corpus: PreparedCorpus) -> list[Any]:
    """Everything in a prepared corpus that a user sees."""
    splits = [
        (
            name,
            [ids.tolist() for k in range(len(split)) for ids in (split.source(k), split.target(k))],
            split.source_texts(),
            split.target_texts(),
        )
        for name, split in corpus.splits.items()
    ]
    return [*splits, corpus.report, corpus.source_tokenizer.to_json(), corpus.target_tokenizer.to_json()]


# --- what is kept

sides = st.lists(st.sampled_from(["a", "b", "ü", "…"]), max_size=6).map(" ".join) | st.just("  ")


@settings(max_examples=40)
@given(pairs=st.lists(st.tuples(sides, sides), min_size=1), eos=st.booleans(), joint=st.booleans())
def test_every_pair_is_kept_or_counted(tmp_path_factory: pytest.TempPathFactory, pairs: Pairs, eos: bool, joint: bool) -> None:
    pairs = [("a", "b"), *pairs]
    config = config_in(
        tmp_path_factory.mktemp("corpus"), pairs, tokenizer="whitespace", max_length=5, source_eos=eos, joint_vocabulary=joint
    )
    corpus = prepare(config)

    empty = [not source.strip() or not target.strip() for source, target in pairs]
    long = [len(source.split()) + eos > 5 or len(target.split()) + 1 > 5 for source, target in pairs]
    kept = [pair for pair, is_empty, is_long in zip(pairs, empty, long, strict=True) if not is_empty and not is_long]
    for name, expected in (("train", kept), ("valid", pairs)):
        report, split = corpus.report.splits[name], corpus.splits[name]
        too_long = sum(is_long and not is_empty for is_long, is_empty in zip(long, empty, strict=True))
        assert (report.read, report.empty, report.too_long, report.kept) == (len(pairs), sum(empty), too_long, len(expected))
        assert list(zip(split.source_texts(), split.target_texts(), strict=True)) == expected
        sources, targets = [source for source, _ in expected], [target for _, target in expected]
        assert [split.source(k).tolist() for k in range(len(split))] == corpus.source_tokenizer.encode(sources)
        assert [split.target(k).tolist() for k in range(len(split))] == corpus.target_tokenizer.encode(targets)
        assert split.source_lengths.tolist() == [len(source.split()) + eos for source in sources]
        assert split.target_lengths.tolist() == [len(target.split()) for target in targets]
    assert corpus.splits["train"].usable_indices.tolist() == list(range(len(kept)))
    assert corpus.splits["valid"].usable_indices.tolist() == [k for k, is_long in enumerate(long) if not is_long]


def test_a_blank_sentence_is_empty_even_where_spaces_are_tokens(tmp_path: Path) -> None:
    for tokenizer in ("characters", "bpe"):
        corpus = prepare(config_in(tmp_path, [("a b", "c"), ("  ", "c"), ("a", " ")], tokenizer=tokenizer, vocab_size=12))
        assert (corpus.report.splits["train"].empty, corpus.report.splits["train"].kept) == (2, 1)


def test_specials_are_the_sources_only_and_a_joint_vocabulary_is_one(tmp_path: Path) -> None:
    corpus = prepare(config_in(tmp_path, [("a b", "b c")], source_bos=True, source_eos=True, joint_vocabulary=True))
    source, target = corpus.splits["train"].source(0).tolist(), corpus.splits["train"].target(0).tolist()
    assert (source[0], source[-1]) == (corpus.source_tokenizer.bos_id, corpus.source_tokenizer.eos_id)
    assert source[2] == target[0], "b"
    assert len(target) == 2
    apart = prepare(config_in(tmp_path, [("a b", "b c")]))
    assert apart.source_tokenizer.tokens(range(4, 6)) == ["a", "b"]
    assert apart.target_tokenizer.tokens(range(4, 6)) == ["b", "c"]


def test_tokenizers_see_nothing_of_the_pairs_taken_out(tmp_path: Path) -> None:
    pairs = [(f"s{k}", f"t{k}") for k in range(20)]
    corpus = prepare(config_in(tmp_path, pairs, valid=(), valid_pairs=5, test_pairs=4))
    assert corpus.report.source_vocab_size == 4 + 11
    assert [corpus.report.splits[name].source_unknown for name in ("train", "valid", "test")] == [0, 5, 4]


def test_chunks_leave_no_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    one = prepare(config_in(tmp_path / "one"))
    monkeypatch.setattr(preparation, "CHUNK", 4)
    many = prepare(config_in(tmp_path / "many"))
    assert contents(one) == contents(many)


def test_texts_are_as_they_were_read(tmp_path: Path) -> None:
    corpus = prepare(config_in(tmp_path, [("The  \u2028CAT", "ß\x85 '"), ("x", "y"), ("Ω", "z")], lowercase=True))
    split = corpus.splits["valid"]
    assert split.source_texts([2, 0]) == ["Ω", "The  \u2028CAT"]
    assert split.target_texts(np.array([0])) == ["ß\x85 '"]
    assert split.target_texts() == ["ß\x85 '", "y", "z"]


def test_the_report_says_what_happened(tmp_path: Path) -> None:
    pairs = [("a a a", "b"), ("a", ""), ("a", "b"), ("a", "b b b")]
    lines = prepare(config_in(tmp_path, pairs, max_length=3)).report.lines()
    assert lines == [
        "vocabulary: 5 source and 5 target tokens",
        "train: 4 pairs read, 1 kept; 2 source tokens (0.00% unknown), 1 target tokens (0.00% unknown)",
        "train: 1 pairs with an empty side dropped",
        "train: 2 pairs with a side over max_length=3 tokens dropped",
        "train: 1 pairs also in another split kept (drop_overlap drops them)",
        "valid: 4 pairs read, 4 kept; 10 source tokens (0.00% unknown), 5 target tokens (0.00% unknown)",
        "valid: 1 pairs with an empty side kept",
        "valid: 2 pairs with a side over max_length=3 tokens kept, left out of the loss",
    ]


def test_packed_sentences_are_what_was_packed() -> None:
    pairs = TokenPairs(Sentences.pack([[5, 6], []], ["a b", ""]), Sentences.pack([[7], [8, 9]], ["c", "ü\nd"]), 10)
    assert [pairs.source(k).tolist() for k in range(len(pairs))] == [[5, 6], []]
    assert pairs.target_lengths.tolist() == [1, 2]
    assert pairs.target_texts() == ["c", "ü\nd"]


def test_the_phrasebook_stands_in_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "phrasebook.py"
    source.write_text("# one", encoding="utf-8")
    module = types.ModuleType("jax_transformer.data.phrasebook")
    module.__file__ = str(source)
    module.sample_pairs = lambda split, count, seed: [(f"{split} {k}", f"{seed} {k}") for k in range(count)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(jax_transformer.data, "phrasebook", module, raising=False)

    config = DataConfig(phrasebook_pairs=7, test_pairs=3, split_seed=5, cache_dir=str(tmp_path / "cache"))
    corpus = prepare(config)
    assert {name: len(split) for name, split in corpus.splits.items()} == {"train": 7, "valid": 500, "test": 3, "combinations": 3}
    assert corpus.splits["combinations"].source_texts() == ["combinations 0", "combinations 1", "combinations 2"]
    assert corpus.splits["train"].target_texts([6]) == ["5 6"]
    source.write_text("# two", encoding="utf-8")
    assert prepare(config).directory != corpus.directory, "another phrasebook is another corpus"


# --- refusals


def test_a_corpus_with_nothing_left_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError) as error:
        prepare(config_in(tmp_path, [("a a a", "b"), ("a", " ")], max_length=2))
    assert "max_length=2" in str(error.value)
    assert "2 pairs, 1 with an empty side and 1 too long" in str(error.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_validation_pairs_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="neither valid files nor valid_pairs"):
        prepare(config_in(tmp_path, valid=()))
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(CorpusError, match="cache_dir: expected a directory that can be written"):
        prepare(config)


# --- the cache


def fail_if_called(line: str) -> None:
    raise AssertionError(f"prepared again: {line}")


def test_what_is_prepared_is_not_prepared_again(tmp_path: Path) -> None:
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
        {"tokenizer": "characters"}, {"joint_vocabulary": True}, {"vocab_size": 9}, {"min_frequency": 4}, {"lowercase": True},
        {"pad_id": 5}, {"source_eos": False}, {"source_bos": True}, {"max_length": 6}, {"pairs": PAIRS[1:]},
    ],
)  # fmt: skip
def test_whatever_matters_makes_another_entry(tmp_path: Path, options: dict[str, Any]) -> None:
    first = prepare(config_in(tmp_path))
    other = prepare(config_in(tmp_path, **options))
    assert other.directory != first.directory
    assert other.directory.parent == first.directory.parent
    assert contents(other) != contents(first)


@pytest.mark.parametrize("harm", ["truncate", "extend", "delete"])
@pytest.mark.parametrize(
    "name",
    [
        "manifest.json", "source_tokenizer.json", "train.source.ids", "train.target.offsets", "valid.target.txt",
        "valid.source.text_offsets",
    ],
)  # fmt: skip
def test_a_damaged_entry_is_built_again(tmp_path: Path, name: str, harm: str) -> None:
    config = config_in(tmp_path)
    first = prepare(config)
    expected = contents(first)
    victim = first.directory / name
    data = victim.read_bytes()
    victim.unlink()
    if harm != "delete":
        victim.write_bytes(data[:-1] if harm == "truncate" else data + b"x")
    lines: list[str] = []
    again = prepare(config, lines.append)
    assert lines, "it was built again"
    assert contents(again) == expected
    assert list((tmp_path / "cache").iterdir()) == [first.directory]


def test_arrays_are_mapped_and_read_only(tmp_path: Path) -> None:
    ids = prepare(config_in(tmp_path)).splits["train"].source_sentences.ids
    assert isinstance(ids.base, np.memmap)
    assert ids.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


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
from jax_transformer.data import preparation
from jax_transformer.run_config import DataConfig

def wait(line):
    if line.startswith(sys.argv[1]):
        print("waiting", flush=True)
        sys.stdin.readline()

def publish(building, entry):
    wait("publishing")
    original(building, entry)

preparation.CHUNK = 5
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


def test_leftovers_are_removed_after_a_day(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name, age in (("building-old", 25 * 3600), ("building-young", 3600)):
        (cache / name).mkdir(parents=True)
        os.utime(cache / name, (time.time() - age,) * 2)
    corpus = prepare(config_in(tmp_path))
    assert {path.name for path in cache.iterdir()} == {"building-young", corpus.directory.name}


def test_an_open_corpus_outlives_its_entry(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    first = prepare(config)
    expected = contents(first)
    shutil.rmtree(first.directory)
    prepare(config)
    assert contents(first) == expected


# --- real text


def test_multi30k(tmp_path: Path) -> None:
    shared = os.environ.get("JAX_TRANSFORMER_SHARED")
    if not shared:
        pytest.skip("JAX_TRANSFORMER_SHARED is not set")
    files = {
        split: tuple(f"{shared}/data/multi30k/{name}.lc.norm.tok.{language}.gz" for language in ("en", "de"))
        for split, name in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr"))
    }
    corpus = prepare(DataConfig(tokenizer="words", min_frequency=2, cache_dir=str(tmp_path), **files))  # type: ignore[arg-type]
    assert {name: report.kept for name, report in corpus.report.splits.items()} == {"train": 29_000, "valid": 1014, "test": 1000}
    assert corpus.splits["test"].target_texts([0]) == ["ein mann mit einem orangefarbenen hut , der etwas anstarrt ."]
    decoded = corpus.target_tokenizer.decode([corpus.splits["test"].target(0)])
    assert decoded == ["ein mann mit einem orangefarbenen hut, der etwas <unk>."]
