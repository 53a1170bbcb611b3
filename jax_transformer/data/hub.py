"""Reads Hugging Face datasets, from the Hub or a directory. Only this module imports their library, on demand."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from jax_transformer import buckets
from jax_transformer.config.data import CorpusConfig
from jax_transformer.data.tables import ROWS, Pair, arrow_pairs
from jax_transformer.data.text_files import CorpusError
from jax_transformer.runtime.extras import require

USUAL_SPLITS = {"valid": ("validation", "valid", "dev"), "test": ("test",)}
"""Names of the splits that serve as valid and test by default."""


@dataclass(frozen=True)
class DatasetPairs:
    """Iterates over the pairs of one split of a dataset."""

    name: str
    """Name used in messages."""
    rows: Any
    """The datasets.Dataset, memory-mapped."""
    corpus: CorpusConfig

    def __iter__(self) -> Iterator[Pair]:
        """Yields the pairs. Raises CorpusError as `arrow_pairs` does."""
        tables = self.rows.with_format("arrow")
        return arrow_pairs(tables.iter(ROWS), tables.data.schema, self.corpus, self.name)


class Unreachable(CorpusError):
    """Raised when a dataset can't be reached; another attempt may succeed."""


@dataclass(frozen=True)
class StreamedPairs:
    """Reads the pairs of one split of a streamed dataset."""

    name: str
    """Name used in messages."""
    rows: Any
    """The datasets.IterableDataset."""
    corpus: CorpusConfig

    def part(self, index: int, count: int) -> StreamedPairs:
        """Returns part `index` of `count`. Parts read disjoint sets of files, and concatenate to the whole.

        Raises:
          CorpusError: the split has fewer files.
        """
        if count == 1:
            return self
        files = self.rows.num_shards
        if files < count:
            raise CorpusError(
                f"stream_parts: expected at most {files}, the number of files of {self.name}, since a part has whole "
                f"files; received {count}. Set data.stream_parts to {files} or less, or divide the text into more "
                "files."
            )
        name = f"{self.name}, part {index + 1} of {count}"
        return StreamedPairs(name, self.rows.shard(count, index, contiguous=True), self.corpus)

    def pairs_from(self, start: int) -> Iterator[Pair]:
        """Yields the pairs after the first `start`; a missing side (null) becomes "", since users can't fix the rows of
        a stream.

        Raises:
          Unreachable: the remaining pairs can't be read at present.
          CorpusError: see `arrow_pairs`.
        """
        try:
            tables = self.rows.with_format("arrow").skip(start).iter(ROWS)
            first = next(tables, None)
            if first is not None:
                whole = chain([first], tables)
                yield from arrow_pairs(whole, first.schema, self.corpus, self.name, rows_before=start, null_text="")
        except CorpusError:
            raise
        except Exception as error:  # the library and its dependencies raise dozens of classes
            reason = " ".join(str(error).split())
            raise Unreachable(
                f"{self.name}: expected the pairs after the first {start:,}; received {type(error).__name__}: "
                f"{reason}. Check the network, "
                "or the file."
            ) from error


@dataclass(frozen=True)
class OpenedStream:
    """Holds the splits of a streamed dataset."""

    splits: dict[str, StreamedPairs]
    """Splits by role, as in OpenedDataset."""
    version: str
    """Name and version of the dataset."""
    revision: str
    """Version of a dataset on the Hub, for reading the same pairs again."""


@dataclass(frozen=True)
class OpenedDataset:
    """Holds the splits of a downloaded dataset."""

    splits: dict[str, DatasetPairs]
    """Splits by role: "train" and, if the dataset has them, "valid" and "test"."""
    version: str
    """Name and version of the dataset."""


def open_dataset(corpus: CorpusConfig) -> OpenedDataset:
    """Downloads `corpus.used_dataset`, which the library caches, and opens its splits.

    Raises:
      CorpusError: there is no such dataset or configuration, or it can't be reached; there is no such split.
      MissingPackage: the library isn't installed.
    """
    name = _name(corpus)
    require("datasets", name)
    import datasets

    directory = local_directory(corpus)
    try:
        builder = _builder(
            str(directory or corpus.used_dataset), corpus.dataset_config, revision=corpus.dataset_revision or None
        )
        # the library recognises changed files of a directory only by their times, so its cache may be stale
        builder.download_and_prepare(download_mode=datasets.DownloadMode.FORCE_REDOWNLOAD if directory else None)
    except Exception as error:  # the library and its dependencies raise dozens of classes
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


def open_stream(corpus: CorpusConfig, revision: str = "") -> OpenedStream:
    """Opens the splits of `corpus.used_dataset` without downloading them.

    Args:
      revision: version of a dataset on the Hub, in place of the configured one.

    Raises:
      Unreachable: there is no such dataset or configuration, or it can't be reached.
      CorpusError: there is no such split.
      MissingPackage: the library isn't installed.
    """
    name = _name(corpus)
    require("datasets", name)
    directory = local_directory(corpus)
    revision = revision or corpus.dataset_revision
    try:
        wanted = str(directory or corpus.used_dataset)
        builder = _builder(wanted, corpus.dataset_config, revision=revision or None)
        rows = builder.as_streaming_dataset()
    except Exception as error:  # the library and its dependencies raise dozens of classes
        raise Unreachable(_describe_failure(name, error)) from None
    splits = {}
    for role, split in _chosen_splits(corpus, list(rows)).items():
        if split not in rows:
            raise CorpusError(_describe_split(name, role, split, list(rows)))
        splits[role] = StreamedPairs(f"{name} ({split})", rows[split], corpus)
    read = "" if directory else revision or builder.hash or ""
    return OpenedStream(splits, f"{name}, streamed, {f'version {read}' if read else 'without a version'}", read)


def local_directory(corpus: CorpusConfig) -> Path | None:
    """Returns the directory `corpus.used_dataset`, of which one in a bucket is downloaded, or None if it is a name on
    the Hub.

    Raises:
      BucketError: the bucket can't be read.
      CorpusError: a path that isn't a directory; a dataset_revision with a directory.
    """
    try:
        path = buckets.local_directory(corpus.used_dataset).expanduser()
    except FileNotFoundError:
        raise CorpusError(
            f"dataset {corpus.used_dataset}: expected a directory of files; received a path in a bucket at which there "
            "is none. Check the path."
        ) from None
    if path.is_dir():
        if corpus.dataset_revision:
            raise CorpusError(
                f"dataset_revision: expected none with the directory {corpus.used_dataset}, for only datasets on the "
                "Hub have versions; "
                f"received {corpus.dataset_revision!r}. Leave it out."
            )
        return path
    if corpus.used_dataset.startswith(("/", ".", "~")):
        raise CorpusError(
            f"dataset {corpus.used_dataset}: expected a directory; received a path at which there is none. Check the "
            "path."
        )
    return None


def _name(corpus: CorpusConfig) -> str:
    return " ".join(filter(None, ["dataset", corpus.used_dataset, corpus.dataset_config]))


def _builder(path: str, config: str, **options: Any) -> Any:
    """Returns the library's builder, which reads "None", "NA" and "null" in CSV as text, not as missing values."""
    import datasets

    builder = datasets.load_dataset_builder(path, config or None, **options)
    if getattr(builder.config, "keep_default_na", False):
        builder = datasets.load_dataset_builder(path, config or None, keep_default_na=False, **options)
    return builder


def _chosen_splits(corpus: CorpusConfig, there: list[str]) -> dict[str, str]:
    """Returns the split of each role, in the library's slicing syntax."""
    chosen = {"train": corpus.train_split, "valid": corpus.valid_split, "test": corpus.test_split}
    for role, names in USUAL_SPLITS.items():
        taken = {part.split("[")[0].strip() for split in chosen.values() for part in split.split("+")}
        usual = (name for name in names if name in there and name not in taken)
        chosen[role] = chosen[role] or next(usual, "")
    return {role: split for role, split in chosen.items() if split}


def _describe_failure(name: str, error: Exception) -> str:
    reason = " ".join(str(error).split())
    advice = "Check the name (OWNER/NAME), and the network; or download the dataset, and give its directory."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "Make room on the disk, or let HF_HOME name a folder where there is some."
    elif "BuilderConfig" in reason or "Config name" in reason:
        advice = "Set dataset_config to one of those it has."
    return (
        f"{name}: expected a dataset of the Hugging Face Hub, or a directory of one; received "
        f"{type(error).__name__}: {reason}. {advice}"
    )


def _describe_split(name: str, role: str, split: str, there: list[str], error: ValueError | None = None) -> str:
    wanted = split.split("[")[0]
    near = difflib.get_close_matches(wanted, there, n=1)
    if error and wanted in there:
        advice = f"{str(error).splitlines()[0]}. Write slices as {wanted}[:1000] or {wanted}[:10%]."
    else:
        advice = f"Did you mean {near[0]!r}?" if near else f"Set {role}_split to one of them."
    slices = ", or a slice of one" if error else ""
    return f"{name}: expected {role}_split to be one of {', '.join(there)}{slices}; received {split!r}. {advice}"
