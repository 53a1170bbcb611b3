"""A corpus is prepared with given tokenizers, and tokenizers are trained where none are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from given_vocabularies import SPECIALS, TEXTS, write

from jax_transformer.config.run import DataConfig
from jax_transformer.data.preparation import prepare
from jax_transformer.data.resegmentation import Resegmentation
from jax_transformer.data.tokenizers import train_tokenizer


def test_preparation_takes_given_files_and_trains_the_others(tmp_path: Path) -> None:
    pairs = "".join(f"{text}\t{text.upper()}\n" for text in TEXTS)
    options: dict[str, Any] = {
        "train": (str(write(tmp_path / "train.tsv", pairs)),),
        "valid_pairs": 1,
        "cache_dir": str(tmp_path),
    }
    source = write(tmp_path / "source.txt", "<pad>\n<unk>\n<s>\n</s>\n<2up>\nthe\ncat\n")
    target = write(tmp_path / "target.txt", "<pad>\n<unk>\n<s>\n</s>\nthe\ncat\n")
    files = {"source_tokenizer": str(source), "target_tokenizer": str(target)}
    lines: list[str] = []
    config = DataConfig(tokenizer="whitespace", source_tag="<2up>", lowercase=True, max_unknown=1.0, **files, **options)
    given = prepare(config, lines.append)
    assert lines
    assert not any("training" in line for line in lines)
    assert given.source_tokenizer.encode(["the Cat sat"], "<2up>") == [[4, 5, 6, 1, 3]]
    assert given.target_tokenizer.encode(["the Cat sat"]) == [[4, 5, 1]]
    for joint in (False, True):
        trained = prepare(
            DataConfig(
                tokenizer="unigram",
                vocab_size=40,
                joint_vocabulary=joint,
                source_tag="<2up>",
                normalization="nfkc",
                lowercase=joint,
                **options,
            )
        )
        assert trained.source_tokenizer.tags == ("<2up>",)
        assert trained.target_tokenizer.tags == (("<2up>",) if joint else ())
        assert trained.source_tokenizer.encode(["the"], "<2up>")[0][0] == 4
        assert trained.target_tokenizer.decode(trained.target_tokenizer.encode(["ＴＨＥ"])) == [
            "the" if joint else "THE"
        ]


def test_given_files_of_a_joint_vocabulary_are_alike(tmp_path: Path) -> None:
    pairs = write(tmp_path / "train.tsv", "".join(f"{text}\t{text}\n" for text in TEXTS))
    words = {"a": "the", "b": "the", "c": "cat"}
    one, same, other = (
        write(tmp_path / f"{name}.txt", f"<pad>\n<unk>\n<s>\n</s>\n{word}\n") for name, word in words.items()
    )
    options: dict[str, Any] = {"train": (str(pairs),), "valid_pairs": 1, "cache_dir": str(tmp_path), "max_unknown": 1.0}
    for target in (one, same):
        prepare(DataConfig(joint_vocabulary=True, source_tokenizer=str(one), target_tokenizer=str(target), **options))
    with pytest.raises(
        ValueError, match=r"joint_vocabulary: expected .* the same tokens under the same ids; received .*a.txt \(5 tok"
    ):
        prepare(DataConfig(joint_vocabulary=True, source_tokenizer=str(one), target_tokenizer=str(other), **options))


def test_only_given_subwords_are_sampled(tmp_path: Path) -> None:
    """Whatever `tokenizer` says, which a given tokenizer.json doesn't need."""
    pairs = write(tmp_path / "train.tsv", "".join(f"{text}\t{text}\n" for text in TEXTS))
    subwords = train_tokenizer(TEXTS, kind="bpe", vocab_size=40, specials=SPECIALS)
    file, words = (
        write(tmp_path / "subwords.json", subwords.to_json()),
        write(tmp_path / "w.txt", "<pad>\n<unk>\n<s>\n</s>\nthe\n"),
    )
    options: dict[str, Any] = {
        "train": (str(pairs),),
        "valid_pairs": 1,
        "cache_dir": str(tmp_path),
        "subword_sampling": 0.9,
    }
    config = DataConfig(source_tokenizer=str(file), target_tokenizer=str(file), **options)
    corpus = prepare(config)
    train = corpus.splits["train"]
    drawn = Resegmentation(train, corpus.source_tokenizer, corpus.target_tokenizer, corpus.frames, config)
    assert min(drawn.growth) > 1.0
    with pytest.raises(ValueError, match="subword sampling: expected a bpe or unigram tokenizer"):
        prepare(DataConfig(source_tokenizer=str(file), target_tokenizer=str(words), max_unknown=1.0, **options))
