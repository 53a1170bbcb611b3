"""Datasets of Hugging Face: local directories of every kind of file, splits and slices, and what is said where there is
none."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from jax_transformer.config.data import CorpusConfig
from jax_transformer.data.corpus import CorpusError
from jax_transformer.data.hub import open_dataset, open_stream

ROWS = {"train": 20, "validation": 5, "test": 4}


@pytest.fixture(autouse=True)
def library_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library keeps what it reads under tmp_path, and asks no one."""
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "library")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def rows_of(split: str) -> list[dict[str, Any]]:
    return [{"id": k, "translation": {"en": f"{split} {k}", "de": f"{split.upper()} {k}"}} for k in range(ROWS[split])]


def directory(
    folder: Path, kind: str = "jsonl", splits: tuple[str, ...] = tuple(ROWS), names: dict[str, str] | None = None
) -> str:
    folder.mkdir()
    for split in splits:
        path = folder / f"{(names or {}).get(split, split)}.{kind}"
        if kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(split)))
        elif kind == "csv":
            path.write_text(
                "en,de\n"
                + "".join(f"{row['translation']['en']},{row['translation']['de']}\n" for row in rows_of(split))
            )
        else:
            import pyarrow
            from pyarrow import parquet

            parquet.write_table(pyarrow.Table.from_pylist(rows_of(split)), path)
    return str(folder)


def corpus(dataset: str, **options: str) -> CorpusConfig:
    return CorpusConfig(dataset=dataset, **{"source_language": "en", "target_language": "de"} | options)


def pairs(split: str, count: int = 100) -> list[tuple[str, str]]:
    return [(row["translation"]["en"], row["translation"]["de"]) for row in rows_of(split)[:count]]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
def test_a_directory_of_files_is_a_dataset(tmp_path: Path, kind: str) -> None:
    opened = open_dataset(corpus(directory(tmp_path / "data", kind)))
    assert {role: list(split) for role, split in opened.splits.items()} == {
        "train": pairs("train"),
        "valid": pairs("validation"),
        "test": pairs("test"),
    }
    assert list(opened.splits["train"]) == pairs("train"), "it can be read again"


def test_splits_are_chosen_and_sliced(tmp_path: Path) -> None:
    name = directory(tmp_path / "data")
    opened = open_dataset(corpus(name, train_split="train[5:]", valid_split="train[:5]", test_split="validation"))
    assert list(opened.splits["train"]) == pairs("train")[5:]
    assert list(opened.splits["valid"]) == pairs("train")[:5]
    assert list(opened.splits["test"]) == pairs("validation")


def test_a_revision_is_asked_of_the_hub_and_of_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    builder = datasets.load_dataset_builder(directory(tmp_path / "data"))
    asked: list[str | None] = []

    def load(name: str, config: str | None, revision: str | None = None) -> Any:
        asked.append(revision)
        return builder

    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    for revision in ("", "v1"):
        open_dataset(corpus("somebody/something", dataset_revision=revision))
    open_stream(corpus("somebody/something", dataset_revision="v1"))
    open_stream(corpus("somebody/something", dataset_revision="v1"), "0123abc")
    assert asked == [None, "v1", "v1", "0123abc"]
    with pytest.raises(CorpusError, match="dataset_revision: expected none with the directory"):
        open_dataset(corpus(str(tmp_path / "data"), dataset_revision="v1"))


def test_a_split_is_not_its_own_test(tmp_path: Path) -> None:
    name = directory(tmp_path / "data", splits=("train", "test"))
    opened = open_dataset(corpus(name, train_split="test"))
    assert list(opened.splits) == ["train"]


def test_columns_may_be_named(tmp_path: Path) -> None:
    opened = open_dataset(
        corpus(directory(tmp_path / "data"), source_column="translation.de", target_column="translation.en")
    )
    assert next(iter(opened.splits["train"])) == ("TRAIN 0", "train 0")
    wrong = open_dataset(corpus(str(tmp_path / "data"), source_column="translation.dee"))
    with pytest.raises(CorpusError) as error:
        list(wrong.splits["train"])
    assert (
        "(train): expected the column 'translation.dee' (source_column); received the columns id, translation"
        in str(error.value)
    )
    assert "Did you mean 'translation.de'?" in str(error.value)
    numbers = open_dataset(corpus(str(tmp_path / "data"), source_column="id"))
    with pytest.raises(CorpusError, match="expected text in the column 'id'; received values of type int64"):
        list(numbers.splits["train"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"train_split": "trian"},
            r"expected train_split to be one of train, validation, test, .* received 'trian'\. Did you mean 'train'\?",
        ),
        ({"valid_split": "zz"}, r"expected valid_split to be one of .* received 'zz'\. Set valid_split to one of them"),
        ({"train_split": "train[:x]"}, r"received 'train\[:x\]'\. .*Write slices as train\[:1000\]"),
        (
            {"dataset_config": "de-en"},
            r"received ValueError: BuilderConfig 'de-en' not found.*Set dataset_config to one of those it has",
        ),
    ],
)
def test_missing_parts_of_a_dataset_are_refused(tmp_path: Path, options: dict[str, str], expected: str) -> None:
    with pytest.raises(CorpusError, match=expected):
        open_dataset(corpus(directory(tmp_path / "data"), **options))


def test_a_dataset_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError) as error:
        open_dataset(corpus("nobody/nothing"))
    message = str(error.value)
    assert message.startswith(
        "dataset nobody/nothing: expected a dataset of the Hugging Face Hub, or a directory of one; received "
    )
    assert "Check the name (OWNER/NAME), and the network" in message
    assert "\n" not in message
    with pytest.raises(CorpusError, match="expected a directory; received a path at which there is none"):
        open_dataset(corpus(str(tmp_path / "absent")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="doesn't contain any data files"):
        open_dataset(corpus(str(tmp_path / "empty")))


def csv_directory(folder: Path, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "train.csv").write_text(text, encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("streamed", [False, True])
def test_words_that_look_like_missing_values_are_sentences(tmp_path: Path, streamed: bool) -> None:
    opened = corpus(csv_directory(tmp_path / "set", "en,de\nNone,Keine\nNA,null\n"))
    train = open_stream(opened).splits["train"].pairs_from(0) if streamed else open_dataset(opened).splits["train"]
    assert list(train) == [("None", "Keine"), ("NA", "null")]


def test_a_file_that_was_changed_under_its_time_is_read_anew(tmp_path: Path) -> None:
    name = csv_directory(tmp_path / "set", "en,de\naaa,bbb\n")
    file = tmp_path / "set" / "train.csv"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    assert list(open_dataset(corpus(name)).splits["train"]) == [("aaa", "bbb")]
    file.write_text("en,de\nccc,ddd\n", encoding="utf-8")
    os.utime(file, ns=times)
    assert list(open_dataset(corpus(name)).splits["train"]) == [("ccc", "ddd")]


def test_no_split_serves_twice(tmp_path: Path) -> None:
    name = directory(tmp_path / "set")
    assert "valid" not in open_dataset(corpus(name, train_split="train+validation")).splits
    assert "test" not in open_dataset(corpus(name, valid_split="test")).splits


def test_a_full_disk_is_named_in_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    name = directory(tmp_path / "set")
    monkeypatch.setattr(datasets, "load_dataset_builder", fail)
    with pytest.raises(CorpusError, match=r"No space left on device\. Make room on the disk"):
        open_dataset(corpus(name))
