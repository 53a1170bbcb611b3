"""Preparation of several corpora, with their tags, and of datasets."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_corpora import PAIRS, config_in, fail_if_called, write

from jax_transformer.config.run import CorpusConfig, DataConfig
from jax_transformer.data.corpus import CorpusError, fingerprint, hash_files
from jax_transformer.data.preparation import prepare

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
    assert {
        name: np.bincount(split.corpus, minlength=3).tolist()
        for name, split in corpus.splits.items()
        if split.corpus is not None
    } == {"train": [len(PAIRS), 21, 21], "valid": [len(PAIRS), 5, 5], "test": [0, 4, 4]}
    for split in corpus.splits.values():
        assert split.corpus is not None
        assert split.corpus.dtype == np.uint16
        there, back = (np.flatnonzero(split.corpus == number) for number in (1, 2))
        assert split.source_texts(there) == split.target_texts(back), (
            "of one text in both directions the same lines are drawn"
        )
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
    weighted = dataclasses.replace(
        config, weight=0.5, more=tuple(dataclasses.replace(corpus, weight=3.0) for corpus in config.more)
    )
    assert prepare(weighted, fail_if_called).directory == first.directory
    assert prepare(dataclasses.replace(config, more=config.more[::-1])).directory != first.directory


def tagged_in(folder: Path, **options: Any) -> DataConfig:
    """German, and French after a tag, of the same English."""
    german = config_in(folder, [("a b", "c d"), ("e", "f"), ("OK", "OK")], **options)
    french = write(folder / "french.tsv", [("a b", "g h"), ("e", "i"), ("OK", "OK")])
    return dataclasses.replace(german, source_tag="<2de>", more=(CorpusConfig(train=(french,), source_tag="<2fr>"),))


@pytest.mark.parametrize(
    "options", [{}, {"joint_vocabulary": True}, {"source_bos": True}, {"tokenizer": "bpe", "vocab_size": 30}]
)
def test_tags_come_before_each_source_of_their_corpus(tmp_path: Path, options: dict[str, Any]) -> None:
    corpus = prepare(tagged_in(tmp_path, **options))
    tokenizer, train = corpus.source_tokenizer, corpus.splits["train"]
    assert tokenizer.tags == ("<2de>", "<2fr>")
    assert train.corpus is not None
    place = 1 if options.get("source_bos") else 0
    tags = [tokenizer.tokens(train.source(k))[place] for k in range(len(train))]
    assert tags == ["<2de>"] * 3 + ["<2fr>"] * 3
    assert not any(
        "<2" in token for k in range(len(train)) for token in corpus.target_tokenizer.tokens(train.target(k))
    )
    assert train.source_texts([0, 3]) == ["a b", "a b"], "the text is as it was read"


def test_pairs_with_other_tags_are_no_duplicates(tmp_path: Path) -> None:
    assert prepare(tagged_in(tmp_path, drop_duplicates=True)).report.splits["train"].duplicated == 0


def test_a_tag_alone_is_an_empty_source(tmp_path: Path) -> None:
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


def test_a_dataset_is_prepared_and_identified_by_its_version(tmp_path: Path, dataset: Path) -> None:
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
    with pytest.raises(
        CorpusError, match="received neither valid files nor valid_pairs, nor a dataset with a split of that name"
    ):
        prepare(config)
    assert len(prepare(dataclasses.replace(config, valid_pairs=2)).splits["valid"]) == 2
