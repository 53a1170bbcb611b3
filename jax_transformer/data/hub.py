"""Datasets of Hugging Face, from the Hub or a directory of files. Nothing else imports their library, and this only where it reads one."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_transformer.data.tables import ROWS, Pair, arrow_pairs
from jax_transformer.data.text_files import CorpusError
from jax_transformer.data_config import CorpusConfig

USUAL_SPLITS = {"valid": ("validation", "valid", "dev"), "test": ("test",)}
"""Which of a dataset's splits serve as valid and test unless the config says."""


@dataclass(frozen=True)
class DatasetPairs:
    """The pairs of one split of a dataset; each iteration reads it from the beginning."""

    name: str
    """How messages call it."""
    rows: Any
    """The datasets.Dataset: mapped from disk, not in memory."""
    corpus: CorpusConfig

    def __iter__(self) -> Iterator[Pair]:
        """Raises CorpusError as `arrow_pairs` does."""
        tables = self.rows.with_format("arrow")
        return arrow_pairs(tables.iter(ROWS), tables.data.schema, self.corpus, self.name)


@dataclass(frozen=True)
class OpenedDataset:
    """A dataset that has been fetched."""

    splits: dict[str, DatasetPairs]
    """By role: "train", "valid" and "test", the last two where the dataset has them."""
    version: str
    """Its name with the version that was read."""


def open_dataset(corpus: CorpusConfig) -> OpenedDataset:
    """Fetches `corpus.used_dataset` (once: the library keeps it) and opens its splits.

    Raises:
      CorpusError: there is no such dataset or configuration, or it can't be reached; there is no such split.
    """
    import datasets

    name = " ".join(filter(None, ["dataset", corpus.used_dataset, corpus.dataset_config]))
    directory = local_directory(corpus)
    try:
        builder = datasets.load_dataset_builder(str(directory or corpus.used_dataset), corpus.dataset_config or None)
        builder.download_and_prepare()
    except Exception as error:  # the library and those below it raise dozens of classes
        raise CorpusError(_describe_failure(name, error)) from None
    there = list(builder.info.splits)
    splits = {}
    for role, split in _chosen_splits(corpus, there).items():
        try:
            rows = builder.as_dataset(split=split)
        except ValueError as error:
            raise CorpusError(_describe_split(name, role, split, there, error)) from None
        splits[role] = DatasetPairs(f"{name} ({split})", rows, corpus)
    return OpenedDataset(splits, f"{name}, version {builder.info.version or '?'}, {builder.hash or 'without a hash'}")


def local_directory(corpus: CorpusConfig) -> Path | None:
    """The directory that `corpus.used_dataset` is; None where it is a name on the Hub.

    Raises:
      CorpusError: it is written as a path, and there is no such directory.
    """
    path = Path(corpus.used_dataset).expanduser()
    if path.is_dir():
        return path
    if corpus.used_dataset.startswith(("/", ".", "~")):
        raise CorpusError(f"dataset {corpus.used_dataset}: expected a directory; received a path at which there is none. Check the path.")
    return None


def _chosen_splits(corpus: CorpusConfig, there: list[str]) -> dict[str, str]:
    """Role → split as the library's slicing syntax has it."""
    chosen = {"train": corpus.train_split, "valid": corpus.valid_split, "test": corpus.test_split}
    for role, names in USUAL_SPLITS.items():
        usual = (name for name in names if name in there and name != corpus.train_split.split("[")[0])
        chosen[role] = chosen[role] or next(usual, "")
    return {role: split for role, split in chosen.items() if split}


def _describe_failure(name: str, error: Exception) -> str:
    reason = " ".join(str(error).split())
    advice = "Check the name (OWNER/NAME), and the network; or download the dataset, and give its directory."
    if "BuilderConfig" in reason or "Config name" in reason:
        advice = "Set dataset_config to one of those it has."
    return f"{name}: expected a dataset of the Hugging Face Hub, or a directory of one; received {type(error).__name__}: {reason}. {advice}"


def _describe_split(name: str, role: str, split: str, there: list[str], error: ValueError) -> str:
    wanted = split.split("[")[0]
    near = difflib.get_close_matches(wanted, there, n=1)
    if wanted in there:
        advice = f"{str(error).splitlines()[0]}. Write slices as {wanted}[:1000] or {wanted}[:10%]."
    else:
        advice = f"Did you mean {near[0]!r}?" if near else f"Set {role}_split to one of them."
    return f"{name}: expected {role}_split to be one of {', '.join(there)}, or a slice of one; received {split!r}. {advice}"
