"""Preparation: what is kept and counted, and a cache that is either whole or not there."""

from __future__ import annotations

import dataclasses
import errno
import inspect
import json
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
from jax_transformer.data.corpus import CorpusError, fingerprint, hash_files
from jax_transformer.data.preparation import PreparedCorpus, Sentences, SplitReport, TokenPairs, prepare
from jax_transformer.data.token_pairs import PairsWriter
from jax_transformer.data.tokenizers import Tokenizer
from jax_transformer.run_config import CorpusConfig, DataConfig

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


# --- what is counted


def reported(folder: Path, pairs: Pairs, valid: Pairs, **options: Any) -> tuple[SplitReport, Pairs]:
    """The report of train, and its pairs."""
    folder.mkdir(exist_ok=True)
    corpus = prepare(config_in(folder, pairs, valid=(write(folder / "other.tsv", valid),), tokenizer="whitespace", **options))
    train = corpus.splits["train"]
    return corpus.report.splits["train"], list(zip(train.source_texts(), train.target_texts(), strict=True))


few = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=8).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(st.tuples(few, few), min_size=1, max_size=12), valid=st.lists(st.tuples(few, few), min_size=1, max_size=4),
    ratio=st.sampled_from([0.0, 1.0, 2.5]), duplicates=st.booleans(), overlap=st.booleans(),
)  # fmt: skip
def test_filters_drop_what_they_name_and_count_the_rest(
    tmp_path_factory: pytest.TempPathFactory, pairs: Pairs, valid: Pairs, ratio: float, duplicates: bool, overlap: bool
) -> None:  # fmt: skip
    pairs = [("a b", "b a"), *pairs]
    valid = [pair for pair in valid if pair != pairs[0]] or [("b", "b")]
    options = {"max_length_ratio": ratio, "drop_duplicates": duplicates, "drop_overlap": overlap}
    report, kept = reported(tmp_path_factory.mktemp("filters"), pairs, valid, max_length=7, **options)

    counts = dict.fromkeys(("too_long", "unequal", "overlapping", "duplicated"), 0)
    expected = []
    for k, (source, target) in enumerate(pairs):
        lengths = len(source.split()), len(target.split())
        for name, applies, is_dropping in (
            ("too_long", max(lengths) + 1 > 7, True),
            ("unequal", max(lengths) > (ratio or 9) * min(lengths), bool(ratio)),
            ("overlapping", (source, target) in valid, overlap),
            ("duplicated", (source, target) in pairs[:k], duplicates),
        ):
            counts[name] += applies
            if applies and is_dropping:
                break
        else:
            expected.append((source, target))
    assert kept == expected
    assert {name: getattr(report, name) for name in counts} == counts
    assert (report.read, report.kept) == (len(pairs), len(kept))


def test_a_ratio_over_nine_is_counted_without_a_filter(tmp_path: Path) -> None:
    pairs = [("a", " ".join("b" * 9)), ("a", " ".join("b" * 10)), (" ".join("a" * 10), "b")]
    report, kept = reported(tmp_path / "one", pairs, pairs[:1])
    assert (report.unequal, kept) == (2, pairs)


def test_texts_are_the_same_only_where_both_sides_are(tmp_path: Path) -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("a b", "c"), ("a", "b c"), ("a b c", "c"), ("c", "a b"), ("A b", "c"), ("a b ", "c")]
    report, _ = reported(tmp_path / "one", pairs, [("b", "a c")])
    assert (report.duplicated, report.overlapping) == (0, 0)


def test_what_is_dropped_as_a_copy_trains_no_tokenizer(tmp_path: Path) -> None:
    pairs = [("a", "a"), ("b", "b"), ("leak", "leak"), ("a", "a")]
    config = config_in(tmp_path, pairs, valid=(write(tmp_path / "other.tsv", [("leak", "leak")]),), drop_overlap=True, min_frequency=1)
    corpus = prepare(config)
    assert corpus.report.splits["valid"].source_unknown == 1
    assert corpus.report.source_vocab_size == 4 + 2


def test_lengths_are_counted_with_specials(tmp_path: Path) -> None:
    pairs = [("a", "b b"), ("a a", ""), ("a a", "b"), (" ".join("a" * 30), "b")]
    report, _ = reported(tmp_path / "one", pairs, pairs[:1], max_length=4, source_bos=True)
    assert report.source_length_counts == (0, 0, 0, 1, 2, 0, 0, 0, 1)
    assert report.target_length_counts == (0, 1, 2, 1, 0, 0, 0, 0, 0)
    assert sum(report.source_length_counts) == report.read


def test_the_report_tells_each_count(tmp_path: Path) -> None:
    pairs = [("a", "b"), ("a", "b"), ("a", " ".join("b" * 10)), ("c", "c")]
    config = config_in(tmp_path, pairs, valid=(write(tmp_path / "other.tsv", [("c", "c")]),))
    assert prepare(config).report.lines()[2:5] == [
        "train: 1 pairs with a side over 9 times as long as the other kept (max_length_ratio drops them)",
        "train: 1 pairs also in another split kept (drop_overlap drops them)",
        "train: 1 pairs seen before in train kept (drop_duplicates drops them)",
    ]
    dropping = dataclasses.replace(config, max_length_ratio=4.0, drop_duplicates=True, drop_overlap=True)
    assert prepare(dropping).report.lines()[1:5] == [
        "train: 4 pairs read, 1 kept; 2 source tokens (0.00% unknown), 1 target tokens (0.00% unknown)",
        "train: 1 pairs with a side over 4 times as long as the other dropped",
        "train: 1 pairs also in another split dropped",
        "train: 1 pairs seen before in train dropped",
    ]


# --- several corpora


def corpora_in(folder: Path, **options: Any) -> DataConfig:
    """A corpus of 23 pairs, with a validation file, and two of 30 which are one text in both directions."""
    there = [(f"s{k}", f"t{k}") for k in range(30)]
    back = [(target, source) for source, target in there]
    more = tuple(
        CorpusConfig(train=(write(folder / f"{name}.tsv", pairs),), valid_pairs=5, test_pairs=4)
        for name, pairs in (("there", there), ("back", back))
    )
    return dataclasses.replace(config_in(folder, **options), more=more)


def test_a_split_is_the_union_over_the_corpora(tmp_path: Path) -> None:
    corpus = prepare(corpora_in(tmp_path))
    assert {name: np.bincount(split.corpus, minlength=3).tolist() for name, split in corpus.splits.items() if split.corpus is not None} == {
        "train": [len(PAIRS), 21, 21], "valid": [len(PAIRS), 5, 5], "test": [0, 4, 4]
    }  # fmt: skip
    for split in corpus.splits.values():
        assert split.corpus is not None
        assert split.corpus.dtype == np.uint16
        there, back = (np.flatnonzero(split.corpus == number) for number in (1, 2))
        assert split.source_texts(there) == split.target_texts(back), "of one text in both directions the same lines are drawn"
        assert all(text.startswith("s") for text in split.source_texts(there))
    first = prepare(config_in(tmp_path)).splits["train"]
    assert corpus.splits["train"].source_texts(range(len(PAIRS))) == first.source_texts()


def test_copies_are_found_across_corpora(tmp_path: Path) -> None:
    config = config_in(tmp_path, [("a", "b"), ("c", "d")], valid=(write(tmp_path / "other.tsv", [("x", "y")]),))
    second = write(tmp_path / "second.tsv", [("a", "b"), ("x", "y"), ("e", "f")])
    train = prepare(dataclasses.replace(config, more=(CorpusConfig(train=(second,)),))).report.splits["train"]
    assert (train.read, train.duplicated, train.overlapping) == (5, 1, 1)


def test_weights_are_not_part_of_what_is_prepared(tmp_path: Path) -> None:
    config = corpora_in(tmp_path)
    first = prepare(config)
    weighted = dataclasses.replace(config, weight=0.5, more=tuple(dataclasses.replace(corpus, weight=3.0) for corpus in config.more))
    assert prepare(weighted, fail_if_called).directory == first.directory
    assert prepare(dataclasses.replace(config, more=config.more[::-1])).directory != first.directory


def needs_tags() -> None:
    if "tag" not in inspect.signature(Tokenizer.encode).parameters:
        pytest.skip("the tokenizers have no tags yet")


def tagged_in(folder: Path, **options: Any) -> DataConfig:
    """German, and French after a tag, of the same English."""
    german = config_in(folder, [("a b", "c d"), ("e", "f"), ("OK", "OK")], **options)
    french = write(folder / "french.tsv", [("a b", "g h"), ("e", "i"), ("OK", "OK")])
    return dataclasses.replace(german, source_tag="<2de>", more=(CorpusConfig(train=(french,), source_tag="<2fr>"),))


@pytest.mark.parametrize("options", [{}, {"joint_vocabulary": True}, {"source_bos": True}, {"tokenizer": "bpe", "vocab_size": 30}])
def test_tags_come_before_each_source_of_their_corpus(tmp_path: Path, options: dict[str, Any]) -> None:
    needs_tags()
    corpus = prepare(tagged_in(tmp_path, **options))
    tokenizer, train = corpus.source_tokenizer, corpus.splits["train"]
    assert tokenizer.tags == ("<2de>", "<2fr>")
    assert train.corpus is not None
    place = 1 if options.get("source_bos") else 0
    tags = [tokenizer.tokens(train.source(k))[place] for k in range(len(train))]
    assert tags == ["<2de>"] * 3 + ["<2fr>"] * 3
    assert not any("<2" in token for k in range(len(train)) for token in corpus.target_tokenizer.tokens(train.target(k)))
    assert train.source_texts([0, 3]) == ["a b", "a b"], "the text is as it was read"


def test_pairs_with_other_tags_are_no_duplicates(tmp_path: Path) -> None:
    needs_tags()
    assert prepare(tagged_in(tmp_path, drop_duplicates=True)).report.splits["train"].duplicated == 0


def test_a_tag_alone_is_an_empty_source(tmp_path: Path) -> None:
    needs_tags()
    config = dataclasses.replace(config_in(tmp_path, [("a", "b"), ("  ", "b")]), source_tag="<2de>")
    assert prepare(config).report.splits["train"].empty == 1


# --- datasets


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is a dataset of Hugging Face."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "library")
    folder = tmp_path / "dataset"
    folder.mkdir()
    for name, count in (("train", 12), ("validation", 3)):
        lines = (json.dumps({"source": f"{name} {k}", "target": f"{k} {name}"}) + "\n" for k in range(count))
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def test_a_dataset_is_prepared_and_told_by_its_version(tmp_path: Path, dataset: Path) -> None:
    corpus = prepare(DataConfig(dataset=str(dataset), test_pairs=2, cache_dir=str(tmp_path / "cache")))
    assert {name: len(split) for name, split in corpus.splits.items()} == {"train": 10, "valid": 3, "test": 2}
    assert corpus.splits["valid"].target_texts() == [f"{k} validation" for k in range(3)]
    assert corpus.report.lines()[0].startswith(f"dataset {dataset}, version 0.0.0, ")


def test_a_dataset_counts_by_its_files(tmp_path: Path, dataset: Path) -> None:
    config = DataConfig(dataset=str(dataset), cache_dir=str(tmp_path / "cache"))
    first = prepare(config).directory
    moved = dataset.rename(tmp_path / "moved")
    assert prepare(dataclasses.replace(config, dataset=str(moved)), fail_if_called).directory == first
    assert prepare(dataclasses.replace(config, dataset=str(moved), train_split="train[:5]")).directory != first
    with open(moved / "train.jsonl", "a") as file:
        file.write('{"source": "one", "target": "more"}\n')
    longer = dataclasses.replace(config, dataset=str(moved))
    assert len(prepare(longer).splits["train"]) == 13
    before = fingerprint(longer, hash_files(longer))
    (moved / "validation.jsonl").rename(moved / "unnamed.jsonl")
    assert fingerprint(longer, hash_files(longer)) != before, "the name of a file in it may say the split"


def test_a_dataset_without_validation_pairs_is_refused(tmp_path: Path, dataset: Path) -> None:
    (dataset / "validation.jsonl").unlink()
    config = DataConfig(dataset=str(dataset), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(CorpusError, match="received neither valid files nor valid_pairs, nor a dataset with a split of that name"):
        prepare(config)
    assert len(prepare(dataclasses.replace(config, valid_pairs=2)).splits["valid"]) == 2


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


@pytest.mark.parametrize("lines", [23, 9, 40, None])
@pytest.mark.parametrize("stage", ["reading", "training", "encoding train", "encoding valid"])
@pytest.mark.parametrize("name", ["train.tsv", "valid.tsv"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, name: str, stage: str, lines: int | None) -> None:
    config = config_in(tmp_path)

    def interfere(line: str) -> None:
        if line.startswith(stage):
            if lines is None:
                (tmp_path / name).touch()
            else:
                (tmp_path / name).write_text("x\ty\n" * lines)

    if lines is None:  # the content is the same
        prepare(config, interfere)
        return
    with pytest.raises(CorpusError, match=r"expected the same text from beginning to end; it changed while it was read") as error:
        prepare(config, interfere)
    assert name.removesuffix(".tsv") in str(error.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_too_many_unknown_tokens_are_refused(tmp_path: Path) -> None:
    pairs = [("a a b c", "x"), ("a d e f", "x")]
    config = config_in(tmp_path, pairs, min_frequency=2, source_eos=False)
    with pytest.raises(CorpusError) as error:
        prepare(config)
    assert "expected at most max_unknown=0.5 of the source tokens to be unknown; received 62.5% of 8" in str(error.value)
    assert "Raise vocab_size, lower min_frequency" in str(error.value)
    assert list((tmp_path / "cache").iterdir()) == [], "it is refused before the rest is encoded"
    prepared = prepare(dataclasses.replace(config, max_unknown=0.625))
    assert prepare(dataclasses.replace(config, max_unknown=0.7), fail_if_called).directory == prepared.directory
    with pytest.raises(CorpusError, match=r"max_unknown=0\.6 of the source"):
        prepare(dataclasses.replace(config, max_unknown=0.6), fail_if_called)


FULL = """
import resource, sys
from jax_transformer.data.preparation import prepare
from jax_transformer.run_config import DataConfig
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
try:
    prepare(DataConfig(train=(sys.argv[1],), valid_pairs=1, cache_dir=sys.argv[2]))
except ValueError as error:
    print(error)
"""


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = write(tmp_path / "train.tsv", [(f"s {k % 9}", f"t {k % 9}") for k in range(400)])
    command = [sys.executable, "-c", FULL, train, str(tmp_path / "cache")]
    told = subprocess.run(command, env=os.environ | {"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True).stdout
    assert f"cache_dir: expected room for about 0.0 MB in {tmp_path / 'cache'}; received 'File too large' with " in told
    assert "MB left. Free space, or set cache_dir to another disk." in told
    assert list((tmp_path / "cache").iterdir()) == []

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PairsWriter, "_append", full)
    with pytest.raises(CorpusError, match=r"received 'No space left on device' with [0-9,.]+ MB left"):
        prepare(config_in(tmp_path))
    assert list((tmp_path / "cache").iterdir()) == []


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


@pytest.mark.parametrize("harm", ["truncate", "extend", "delete", "flip"])
@pytest.mark.parametrize(
    "name",
    [
        "manifest.json", "report.json", "source_tokenizer.json", "train.source.ids", "train.target.offsets", "train.corpus",
        "valid.target.txt", "valid.source.text_offsets",
    ],
)  # fmt: skip
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
