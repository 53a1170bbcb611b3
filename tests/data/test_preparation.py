"""Preparation: what is kept, counted and refused."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_corpora import Pairs, config_in, contents, fail_if_called, write

from jax_transformer.config.run import DataConfig
from jax_transformer.data import encoding
from jax_transformer.data.corpus import CorpusError
from jax_transformer.data.preparation import Sentences, SplitReport, TokenPairs, prepare
from jax_transformer.data.token_pairs import PairsWriter

# --- what is kept

sides = st.lists(st.sampled_from(["a", "b", "ü", "…"]), max_size=6).map(" ".join) | st.just("  ")


@settings(max_examples=40)
@given(pairs=st.lists(st.tuples(sides, sides), min_size=1), eos=st.booleans(), joint=st.booleans())
def test_every_pair_is_kept_or_counted(
    tmp_path_factory: pytest.TempPathFactory, pairs: Pairs, eos: bool, joint: bool
) -> None:
    pairs = [("a", "b"), *pairs]
    config = config_in(
        tmp_path_factory.mktemp("corpus"),
        pairs,
        tokenizer="whitespace",
        max_length=5,
        source_eos=eos,
        joint_vocabulary=joint,
    )
    corpus = prepare(config)

    empty = [not source.strip() or not target.strip() for source, target in pairs]
    long = [len(source.split()) + eos > 5 or len(target.split()) + 1 > 5 for source, target in pairs]
    kept = [pair for pair, is_empty, is_long in zip(pairs, empty, long, strict=True) if not is_empty and not is_long]
    for name, expected in (("train", kept), ("valid", pairs)):
        report, split = corpus.report.splits[name], corpus.splits[name]
        too_long = sum(is_long and not is_empty for is_long, is_empty in zip(long, empty, strict=True))
        assert (report.read, report.empty, report.too_long, report.kept) == (
            len(pairs),
            sum(empty),
            too_long,
            len(expected),
        )
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
        corpus = prepare(
            config_in(tmp_path, [("a b", "c"), ("  ", "c"), ("a", " ")], tokenizer=tokenizer, vocab_size=12)
        )
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
    monkeypatch.setattr(encoding, "CHUNK", 4)
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


def test_the_phrasebook_replaces_missing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "phrasebook.py"
    source.write_text("# one", encoding="utf-8")
    module = types.ModuleType("jax_transformer.data.phrasebook.pairs")
    module.sample_pairs = lambda split, count, seed: [(f"{split} {k}", f"{seed} {k}") for k in range(count)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("jax_transformer.data.phrasebook.__file__", str(tmp_path / "__init__.py"))

    config = DataConfig(phrasebook_pairs=7, test_pairs=3, split_seed=5, cache_dir=str(tmp_path / "cache"))
    corpus = prepare(config)
    assert {name: len(split) for name, split in corpus.splits.items()} == {
        "train": 7,
        "valid": 500,
        "test": 3,
        "combinations": 3,
    }
    assert corpus.splits["combinations"].source_texts() == ["combinations 0", "combinations 1", "combinations 2"]
    assert corpus.splits["train"].target_texts([6]) == ["5 6"]
    source.write_text("# two", encoding="utf-8")
    assert prepare(config).directory != corpus.directory, "another phrasebook is another corpus"


# --- what is counted


def reported(folder: Path, pairs: Pairs, valid: Pairs, **options: Any) -> tuple[SplitReport, Pairs]:
    """The report of train, and its pairs."""
    folder.mkdir(exist_ok=True)
    corpus = prepare(
        config_in(folder, pairs, valid=(write(folder / "other.tsv", valid),), tokenizer="whitespace", **options)
    )
    train = corpus.splits["train"]
    return corpus.report.splits["train"], list(zip(train.source_texts(), train.target_texts(), strict=True))


few = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=8).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(st.tuples(few, few), min_size=1, max_size=12),
    valid=st.lists(st.tuples(few, few), min_size=1, max_size=4),
    ratio=st.sampled_from([0.0, 1.0, 2.5]),
    duplicates=st.booleans(),
    overlap=st.booleans(),
)
def test_filters_drop_what_they_name_and_count_the_rest(
    tmp_path_factory: pytest.TempPathFactory, pairs: Pairs, valid: Pairs, ratio: float, duplicates: bool, overlap: bool
) -> None:
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
    pairs = [
        ("ab", "c"),
        ("a", "bc"),
        ("a b", "c"),
        ("a", "b c"),
        ("a b c", "c"),
        ("c", "a b"),
        ("A b", "c"),
        ("a b ", "c"),
    ]
    report, _ = reported(tmp_path / "one", pairs, [("b", "a c")])
    assert (report.duplicated, report.overlapping) == (0, 0)


def test_dropped_copies_train_no_tokenizer(tmp_path: Path) -> None:
    pairs = [("a", "a"), ("b", "b"), ("leak", "leak"), ("a", "a")]
    config = config_in(
        tmp_path, pairs, valid=(write(tmp_path / "other.tsv", [("leak", "leak")]),), drop_overlap=True, min_frequency=1
    )
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
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, name: str, stage: str, lines: int | None
) -> None:
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
    with pytest.raises(
        CorpusError, match=r"expected the same text from beginning to end; it changed while it was read"
    ) as error:
        prepare(config, interfere)
    assert name.removesuffix(".tsv") in str(error.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_too_many_unknown_tokens_are_refused(tmp_path: Path) -> None:
    pairs = [("a a b c", "x"), ("a d e f", "x")]
    config = config_in(tmp_path, pairs, min_frequency=2, source_eos=False)
    with pytest.raises(CorpusError) as error:
        prepare(config)
    assert "expected at most max_unknown=0.5 of the source tokens to be unknown; received 62.5% of 8" in str(
        error.value
    )
    assert "Raise vocab_size, lower min_frequency" in str(error.value)
    assert list((tmp_path / "cache").iterdir()) == [], "it is refused before the rest is encoded"
    prepared = prepare(dataclasses.replace(config, max_unknown=0.625))
    assert prepare(dataclasses.replace(config, max_unknown=0.7), fail_if_called).directory == prepared.directory
    with pytest.raises(CorpusError, match=r"max_unknown=0\.6 of the source"):
        prepare(dataclasses.replace(config, max_unknown=0.6), fail_if_called)


FULL = """
import resource, sys
from jax_transformer.data.preparation import prepare
from jax_transformer.config.run import DataConfig
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
try:
    prepare(DataConfig(train=(sys.argv[1],), valid_pairs=1, cache_dir=sys.argv[2]))
except ValueError as error:
    print(error)
"""


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = write(tmp_path / "train.tsv", [(f"s {k % 9}", f"t {k % 9}") for k in range(400)])
    command = [sys.executable, "-c", FULL, train, str(tmp_path / "cache")]
    output = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=True
    ).stdout
    assert (
        f"cache_dir: expected room for about 0.0 MB in {tmp_path / 'cache'}; received 'File too large' with " in output
    )
    assert "MB left. Free space, or set cache_dir to another disk." in output
    assert list((tmp_path / "cache").iterdir()) == []

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PairsWriter, "_append", full)
    with pytest.raises(CorpusError, match=r"received 'No space left on device' with [0-9,.]+ MB left"):
        prepare(config_in(tmp_path))
    assert list((tmp_path / "cache").iterdir()) == []


def test_output_that_cannot_be_written_is_not_taken_for_the_cache(tmp_path: Path) -> None:
    def log(line: str) -> None:
        if line.startswith("encoding"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "standard output")

    data = DataConfig(phrasebook_pairs=20, valid_pairs=2, test_pairs=2, cache_dir=str(tmp_path))
    with pytest.raises(OSError, match="No space left on device: 'standard output'"):
        prepare(data, log)
    assert list(tmp_path.iterdir()) == []


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
    assert {name: report.kept for name, report in corpus.report.splits.items()} == {
        "train": 29_000,
        "valid": 1014,
        "test": 1000,
    }
    assert corpus.splits["test"].target_texts([0]) == ["ein mann mit einem orangefarbenen hut , der etwas anstarrt ."]
    decoded = corpus.target_tokenizer.decode([corpus.splits["test"].target(0)])
    assert decoded == ["ein mann mit einem orangefarbenen hut, der etwas <unk>."]
