"""Reads the corpora of a config, and assigns their pairs to splits.

No corpus is held in memory: iterating over a split reads its source from the beginning and selects the split's pairs.

Repeated pairs and overlaps between splits are found by 64-bit hashes of the texts, eight bytes per pair. Two different
pairs share a hash with a probability of 5e-20: among ten million pairs, a false match occurs once in 400,000 corpora.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, compress, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jax_transformer.config.data import CorpusConfig, DataConfig
from jax_transformer.data.cache import sampled_digest
from jax_transformer.data.tables import READERS, Pair, read_table, table_suffix
from jax_transformer.data.text_files import CorpusError, hash_file, iterate_lines, read_lines, split_lines

__all__ = [
    "CorpusError",
    "FilePairs",
    "Part",
    "Split",
    "SplitCorpora",
    "check_unchanged",
    "fingerprint",
    "hash_files",
    "read_lines",
    "read_pairs",
    "read_splits",
    "split_lines",
]

PHRASEBOOK_PAIRS = 500
"""Default number of validation, test and combinations pairs drawn from the phrasebook."""
ROLES = ("train", "valid", "test")
DIGEST_BYTES = 8

Keys = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FilePairs:
    """Iterates over the pairs of one table or two parallel text files, reading a few lines at a time."""

    paths: tuple[str, ...]
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    """Selects the columns of a table."""
    is_text: bool = False
    """Whether one file that is no table is plain text, of which both sides of a pair are a line."""

    def __iter__(self) -> Iterator[Pair]:
        """Yields the pairs. Raises CorpusError as `read_pairs` does, when the iteration reaches the mistake."""
        pairs: Iterator[Pair]
        if self.is_text and len(self.paths) == 1 and table_suffix(self.paths[0]) not in READERS:
            pairs = ((line, line) for line in iterate_lines(self.paths[0]))
        elif len(self.paths) == 1:
            pairs = read_table(self.paths[0], self.corpus)
        elif len(self.paths) == 2:
            pairs = _read_parallel(*self.paths)
        else:
            raise CorpusError(
                f"expected one table or two parallel files; received {len(self.paths)} paths {list(self.paths)}"
            )
        first = next(pairs, None)
        if first is None:
            names = " and ".join(self.paths)
            raise CorpusError(f"{names}: expected at least one sentence pair; received none. Check the path.")
        yield first
        yield from pairs


def read_pairs(paths: tuple[str, ...]) -> list[Pair]:
    """Reads all (source, target) pairs of one table or two parallel files.

    Args:
      paths: one table (.tsv, .csv, .jsonl, .parquet), or the source and the target file.

    Raises:
      CorpusError: not one or two paths; parallel files with different numbers of lines; no pairs; see also
        `read_table` and `iterate_lines`.

    Example:
      >>> import tempfile
      >>> from pathlib import Path
      >>> from jax_transformer.data import read_pairs
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = Path(folder, "pairs.tsv")
      ...     _ = path.write_text("A dog.\\tEin Hund.\\n")
      ...     read_pairs((str(path),))
      [('A dog.', 'Ein Hund.')]
    """
    return list(FilePairs(paths))


@dataclass(frozen=True, eq=False)
class Part:
    """Iterates over the pairs of one corpus in one split, in the corpus's order; each iteration reads them again."""

    corpus: int
    """Number of the corpus in DataConfig.corpora, counted from 0."""
    source: Iterable[Pair]
    keys: Keys
    """Hash of each pair: see `_hash_pairs`."""
    chosen: Flags | None = None
    """Mask of the source's pairs that belong to the split. None: all."""

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.source) if self.chosen is None else compress(self.source, self.chosen)


@dataclass(frozen=True, eq=False)
class Split:
    """Iterates over the pairs of one split, corpus by corpus; each iteration reads them again."""

    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[Pair]:
        return chain.from_iterable(self.parts)

    @property
    def keys(self) -> Keys:
        """Returns the hash of each pair."""
        return np.concatenate([part.keys for part in self.parts])


@dataclass(frozen=True, eq=False)
class SplitCorpora:
    """Holds the splits of a config."""

    splits: dict[str, Split]
    """Splits by name: "train", "valid" and, if the config has them, "test" and "combinations"."""
    text_bytes: int
    """Bytes of UTF-8 text on both sides of all splits."""
    datasets: tuple[str, ...]
    """Version of each Hugging Face dataset."""
    revision: str = ""
    """With streaming, the version of the dataset; see `open_stream`."""

    def copies(self, source_tags: Sequence[str]) -> tuple[Flags, Flags]:
        """Finds the training pairs that are also in another split, and those that repeat an earlier training pair with
        the same source tag.

        Args:
          source_tags: the tag of each corpus; at least one.
        """
        train = self.splits["train"]
        held_out = np.concatenate([split.keys for name, split in self.splits.items() if name != "train"])
        tags = [_hash_tag(tag) for tag in source_tags]
        tagged = np.concatenate([part.keys ^ np.uint64(tags[part.corpus]) for part in train.parts])
        return _overlaps(train.keys, held_out), _repeats(tagged)


def read_splits(config: DataConfig) -> SplitCorpora:
    """Reads every pair once to count and hash it, and assigns it to a split.

    Without corpora, draws all splits from the phrasebook. Otherwise valid and test are a corpus's files or dataset
    splits; a corpus without them holds out valid_pairs and test_pairs of its training pairs. The same seed draws from
    each corpus, so that corpora with the same text line by line, such as both directions, hold out the same lines. A
    split concatenates the corpora. For streaming see `_read_beginning`.

    Raises:
      CorpusError: valid or test files without train; no validation pairs; more pairs to hold out than a corpus has; a
        dataset that can't be reached, or has no such split; see also `read_pairs`.
    """
    _check_sources(config)
    if not config.corpora:
        return _draw_phrasebook(config)
    if config.streaming:
        return _read_stream(config)
    parts: dict[str, list[Part]] = {role: [] for role in ROLES}
    versions = []
    text_bytes = 0
    for number, corpus in enumerate(config.corpora):
        sources, version = _open(corpus, is_text=config.is_pretraining)
        versions += [version] if version else []
        hashed = {}
        for role, source in sources.items():
            hashed[role], size = _hash_pairs(source)
            text_bytes += size
        wanted = held_out_counts(corpus, sources)
        if sum(wanted.values()) >= len(hashed["train"]):
            raise _too_few_pairs(corpus, len(hashed["train"]), wanted)
        taken = _draw_held_out(len(hashed["train"]), wanted, config.split_seed)
        for role, source in sources.items():
            if role != "train":
                parts[role].append(Part(number, source, hashed[role]))
        for role, chosen in taken.items():
            keys = hashed["train"] if chosen is None else hashed["train"][chosen]
            parts[role].append(Part(number, sources["train"], keys, chosen))
    if not parts["valid"]:
        raise _no_validation_pairs()
    return SplitCorpora({role: Split(tuple(some)) for role, some in parts.items() if some}, text_bytes, tuple(versions))


def hash_files(config: DataConfig) -> dict[str, str]:
    """Returns the SHA-256 of every file that `read_splits` reads, by path; for streamed files, their `sampled_digest`.
    Raises CorpusError as `read_splits` does.
    """
    _check_sources(config)
    digest = sampled_digest if config.streaming else hash_file
    return {path: digest(path) for files in _files(config) for paths in files.values() for path in paths}


def fingerprint(config: DataConfig, hashes: dict[str, str]) -> list[dict[str, Any]]:
    """Identifies the text by the hashes of each corpus's files, by role, and the formats of its tables.

    File names count only inside a dataset directory. A dataset on the Hub is identified by its name, so that a run
    resumes without the network, with the version that it began with.

    Args:
      hashes: from `hash_files`.
    """
    contents: list[dict[str, Any]] = [
        {role: [hashes[path] for path in paths] for role, paths in files.items()} for files in _files(config)
    ]
    for content, files in zip(contents, _files(config), strict=True):
        content["formats"] = [
            table_suffix(path) for paths in files.values() for path in paths if table_suffix(path) in READERS
        ]
    for corpus, content, files in zip(config.corpora, contents, _files(config), strict=False):
        if corpus.used_dataset:
            from jax_transformer.data.hub import local_directory

            folder = local_directory(corpus) or ""
            content["names"] = [Path(path).relative_to(folder).as_posix() for path in files["dataset"]]
            content["dataset"] = content["dataset"] or corpus.used_dataset
    return contents


def check_unchanged(config: DataConfig, hashes: dict[str, str]) -> None:
    """Raises CorpusError if a file has changed since `hash_files` returned `hashes`."""
    for path, digest in hash_files(config).items():
        if hashes.get(path) != digest:
            raise changed(path)


def changed(name: str) -> CorpusError:
    """Returns the error for a file that changed."""
    return CorpusError(
        f"{name}: expected the same text from beginning to end; it changed while it was read. Run again once it is "
        "written."
    )


def _files(config: DataConfig) -> list[dict[str, list[str]]]:
    """Returns the files of each corpus by role; files of a local dataset have the role "dataset"."""
    if not config.corpora:
        from jax_transformer.data import phrasebook

        folder = Path(str(phrasebook.__file__)).parent
        return [{"phrasebook": sorted(str(path) for path in folder.glob("*.py"))}]
    return [
        {"dataset": _dataset_files(corpus)}
        if corpus.used_dataset
        else {role: list(getattr(corpus, role)) for role in ROLES}
        for corpus in config.corpora
    ]


def _dataset_files(corpus: CorpusConfig) -> list[str]:
    """Returns the files of a local dataset, without hidden ones; none for a dataset on the Hub."""
    from jax_transformer.data.hub import local_directory

    directory = local_directory(corpus)
    if directory is None:
        return []
    found = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return [str(path) for path in found if not any(name.startswith(".") for name in path.relative_to(directory).parts)]


def _check_sources(config: DataConfig) -> None:
    if config.is_pretraining and not config.corpora:
        raise CorpusError(
            f"train: expected a file of plain text for objective={config.objective!r}; received none. Set train or "
            "dataset."
        )
    if not config.corpora and (config.valid or config.test):
        raise CorpusError(
            "train: expected training files along with valid or test files; received none. Set train, or leave all "
            "three empty."
        )
    if config.corpora and not any(
        corpus.valid or corpus.valid_pairs or corpus.used_dataset for corpus in config.corpora
    ):
        raise _no_validation_pairs()


def _no_validation_pairs() -> CorpusError:
    return CorpusError(
        "valid: expected validation pairs; received neither valid files nor valid_pairs, nor a dataset with a split "
        "of that name. "
        "Set valid to a file, valid_split, or valid_pairs to how many pairs to take out of train."
    )


def _open(corpus: CorpusConfig, *, is_text: bool) -> tuple[dict[str, Iterable[Pair]], str]:
    """Opens the sources of a corpus; returns them by role, and the version of a dataset."""
    if corpus.used_dataset:
        from jax_transformer.data.hub import open_dataset

        dataset = open_dataset(corpus)
        return dict(dataset.splits), dataset.version
    return {role: FilePairs(getattr(corpus, role), corpus, is_text) for role in ROLES if getattr(corpus, role)}, ""


def _read_stream(config: DataConfig) -> SplitCorpora:
    pairs, version, revision = _read_beginning(config)
    if "valid" not in pairs:
        raise _no_validation_pairs()
    splits, text_bytes = {}, 0
    for role, some in pairs.items():
        keys, size = _hash_pairs(some)
        splits[role] = Split((Part(0, some, keys),))
        text_bytes += size
    return SplitCorpora(splits, text_bytes, (version,), revision)


def _read_beginning(config: DataConfig) -> tuple[dict[str, list[Pair]], str, str]:
    """Reads valid, test and the first shard of the stream as "train"; returns them with the dataset's name and version,
    and with the revision.

    Raises:
      CorpusError: no training pairs left after valid and test; too few pairs for valid and test in the first part; see
        also `open_stream`, `StreamedPairs.part` and `StreamedPairs.pairs_from`.
    """
    from jax_transformer.data.hub import open_stream

    stream = open_stream(config)
    splits = {role: list(pairs.pairs_from(0)) for role, pairs in stream.splits.items() if role != "train"}
    taken = held_out_counts(config, stream.splits)
    train: list[Pair] = []
    for part in range(config.stream_parts):
        pairs = stream.splits["train"].part(part, config.stream_parts).pairs_from(0)
        if part == 0:
            for role, count in taken.items():
                splits[role] = list(islice(pairs, count))
        train += islice(pairs, config.stream_pairs // config.stream_parts)
    _check_enough(config, stream.splits["train"].name, splits, taken, train)
    splits["train"] = train
    return (
        {role: splits[role] for role in ("train", "valid", "test") if role in splits},
        stream.version,
        stream.revision,
    )


def _check_enough(
    config: DataConfig, name: str, splits: dict[str, list[Pair]], taken: dict[str, int], train: list[Pair]
) -> None:
    """Raises CorpusError if no pair is left for training, or the first part is too short for valid and test."""
    counts = " and ".join(f"{role}_pairs={count}" for role, count in taken.items()) or "none to take out"
    if not train:
        raise CorpusError(
            f"{name}: expected training pairs, {counts}; received {sum(map(len, splits.values()))} pairs in all. "
            "Take fewer, or check the dataset."
        )
    received = sum(len(splits[role]) for role in taken)
    if received < sum(taken.values()):
        raise CorpusError(
            f"{name}: expected {counts} in the first of {config.stream_parts} parts; received {received} pairs in it. "
            "Take fewer, or set stream_parts lower."
        )


def _draw_phrasebook(config: DataConfig) -> SplitCorpora:
    from jax_transformer.data.phrasebook.pairs import sample_pairs

    test_pairs = config.test_pairs or PHRASEBOOK_PAIRS
    counts = {
        "train": config.phrasebook_pairs,
        "valid": config.valid_pairs or PHRASEBOOK_PAIRS,
        "test": test_pairs,
        "combinations": test_pairs,
    }
    splits = {}
    text_bytes = 0
    for name, count in counts.items():
        pairs = sample_pairs(name, count, config.split_seed)
        keys, size = _hash_pairs(pairs)
        splits[name] = Split((Part(0, pairs, keys),))
        text_bytes += size
    return SplitCorpora(splits, text_bytes, ())


def _read_parallel(source_path: str, target_path: str) -> Iterator[Pair]:
    for path in (source_path, target_path):
        if table_suffix(path) in READERS and table_suffix(path) != ".tsv":
            raise CorpusError(
                f"{path}: expected parallel files to be text, one sentence a line; received a table. Name one table "
                "alone."
            )
    source_lines, target_lines = iterate_lines(source_path), iterate_lines(target_path)
    for number, (source, target) in enumerate(zip_longest(source_lines, target_lines), start=1):
        if source is None or target is None:
            longer, rest = (target_path, target_lines) if source is None else (source_path, source_lines)
            counts = {source_path: number - 1, target_path: number - 1} | {longer: number + sum(1 for _ in rest)}
            received = f"{counts[source_path]} lines in {source_path} and {counts[target_path]} lines in {target_path}"
            raise CorpusError(
                f"{longer}:{number}: expected parallel files with as many lines each; received {received}. "
                "Line n of one must be the translation of line n of the other."
            )
        yield source, target


# --- pairs to hold out


def held_out_counts(corpus: CorpusConfig, there: Iterable[str]) -> dict[str, int]:
    """Returns the number of training pairs to hold out, by role.

    Raises:
      CorpusError: the config holds out pairs for a role that is already `there`.
    """
    counts = {role: getattr(corpus, f"{role}_pairs") for role in ("valid", "test")}
    counts = {role: count for role, count in counts.items() if count}
    for role in counts.keys() & set(there):
        has = f"the split {role}" if corpus.used_dataset else f"{role} files"
        raise CorpusError(
            f"{role}_pairs: expected 0, for the corpus has {has}; received {counts[role]}. Set {role}_pairs to 0, or "
            "name no such pairs."
        )
    return counts


def _too_few_pairs(corpus: CorpusConfig, total: int, wanted: dict[str, int]) -> CorpusError:
    """Returns the error for a corpus that has too few training pairs to hold out."""
    names = " + ".join(f"{name}_pairs" for name in wanted)
    counts = " + ".join(map(str, wanted.values()))
    train = corpus.used_dataset or " and ".join(corpus.train)
    return CorpusError(
        f"{names}: expected fewer than the {total} pairs of train ({train}), out of which they are taken; received "
        f"{counts}. "
        "Take fewer, or name files."
    )


def _draw_held_out(total: int, wanted: dict[str, int], seed: int) -> dict[str, Flags | None]:
    """Draws `wanted` of `total` pairs for each split; returns masks by split, with the rest as "train" (None: all)."""
    if not wanted:
        return {"train": None}
    order = np.random.default_rng(seed).permutation(total)
    chosen: dict[str, Flags | None] = {}
    for name, part in zip((*wanted, "train"), np.split(order, np.cumsum(list(wanted.values()))), strict=True):
        flags = np.zeros(total, np.bool_)
        flags[part] = True
        chosen[name] = flags
    return chosen


# --- copies


def _hash_pairs(pairs: Iterable[Pair]) -> tuple[Keys, int]:
    """Returns the hash of each pair's two texts, the same on every machine, and their total size in bytes of UTF-8."""
    keys = bytearray()
    size = 0
    for source, target in pairs:
        text = f"{len(source)} {source}{target}".encode()  # the length separates source and target unambiguously
        keys += blake2b(text, digest_size=DIGEST_BYTES).digest()
        size += len(text)
    return np.frombuffer(keys, "<u8"), size


def _hash_tag(tag: str) -> int:
    """Returns a number that distinguishes pairs with this tag; 0 without a tag."""
    return int.from_bytes(blake2b(tag.encode(), digest_size=DIGEST_BYTES).digest(), "little") if tag else 0


def _repeats(keys: Keys) -> Flags:
    """Returns a mask of the keys that repeat an earlier key."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    flags = np.zeros(len(keys), np.bool_)
    flags[order[1:]] = ordered[1:] == ordered[:-1]
    return flags


def _overlaps(keys: Keys, held_out: Keys) -> Flags:
    """Returns a mask of the keys that are held out."""
    if not len(held_out):
        return np.zeros(len(keys), np.bool_)
    held_out = np.unique(held_out)
    return held_out[np.minimum(np.searchsorted(held_out, keys), len(held_out) - 1)] == keys
