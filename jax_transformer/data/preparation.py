"""From text files to memory-mapped token ids, once: a prepared corpus is kept under the hash of its text and options.

A cache entry is a directory. It is built under another name and renamed when it is whole, so that an entry is complete or isn't there; its
manifest records the size of each file, so that one damaged afterwards is found and built again. For each split and side an entry holds the
ids of all sentences end to end (`train.source.ids`, int32), where each begins (`.offsets`, int64), the text, one sentence a line (`.txt`),
and where each line begins (`.text_offsets`, int64), all little-endian.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jax_transformer.data.corpus import CorpusError, Pairs, fingerprint, read_splits
from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, load_tokenizer, train_tokenizer
from jax_transformer.run_config import DataConfig

FORMAT_VERSION = 1
"""Part of the hash: raise it with any change to what is stored, or to how text becomes ids."""
UNHASHED = ("train", "valid", "test", "batch_tokens", "num_shapes", "cache_dir")
"""Fields of DataConfig that leave the prepared corpus as it is. (Files count by their content, not by their names.)"""
SIDES = ("source", "target")
MANIFEST = "manifest.json"
BUILDING = "building-"
CHUNK = 10_000
PUBLISH_ATTEMPTS = 3
STALE_SECONDS = 24 * 3600

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Log = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Sentences:
    """One side of a split, in flat arrays: sentence i has the ids ids[offsets[i]:offsets[i + 1]]."""

    ids: Int32s
    offsets: Int64s
    text: npt.NDArray[np.uint8]
    """The sentences in UTF-8, each with a line end: sentence i is text[text_offsets[i]:text_offsets[i + 1] - 1]."""
    text_offsets: Int64s

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Int32s:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @classmethod
    def pack(cls, ids: Sequence[Sequence[int]], texts: Sequence[str]) -> Sentences:
        """The same in memory, from lists."""
        lines = [f"{text}\n".encode() for text in texts]
        offsets, text_offsets = (np.cumsum([0, *map(len, parts)], dtype=np.int64) for parts in (ids, lines))
        flat = np.fromiter(chain.from_iterable(ids), np.int32, int(offsets[-1]))
        return cls(flat, offsets, np.frombuffer(b"".join(lines), np.uint8), text_offsets)

    def texts(self, indices: Sequence[int] | npt.NDArray[np.integer] | None = None) -> list[str]:
        """The text of the sentences `indices`, or of all."""
        wanted = range(len(self)) if indices is None else indices
        return [self.text[self.text_offsets[i] : self.text_offsets[i + 1] - 1].tobytes().decode("utf-8") for i in wanted]


@dataclass(frozen=True, eq=False)
class TokenPairs:
    """The pairs of one split. Source ids are as the source tokenizer encodes; target ids are without <bos> and <eos>."""

    source_sentences: Sentences
    target_sentences: Sentences
    max_length: int

    def __len__(self) -> int:
        return len(self.source_sentences)

    @property
    def source_lengths(self) -> Int64s:
        """Tokens of each source, its specials included."""
        return np.diff(self.source_sentences.offsets)

    @property
    def target_lengths(self) -> Int64s:
        """Tokens of each target, without specials."""
        return np.diff(self.target_sentences.offsets)

    @property
    def usable_indices(self) -> Int64s:
        """The pairs that fit max_length, in order: of a training split all, of another what the loss is computed on."""
        return np.flatnonzero((self.source_lengths <= self.max_length) & (self.target_lengths + 1 <= self.max_length))

    def source(self, index: int) -> Int32s:
        """The ids of source `index`."""
        return self.source_sentences[index]

    def target(self, index: int) -> Int32s:
        """The ids of target `index`."""
        return self.target_sentences[index]

    def source_texts(self, indices: Sequence[int] | npt.NDArray[np.integer] | None = None) -> list[str]:
        """The sources `indices` (None: all) as they were read."""
        return self.source_sentences.texts(indices)

    def target_texts(self, indices: Sequence[int] | npt.NDArray[np.integer] | None = None) -> list[str]:
        """The targets `indices` (None: all) as they were read."""
        return self.target_sentences.texts(indices)


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """What became of the pairs of one split."""

    read: int
    empty: int
    """Pairs with a side that has no token; never counted as too long."""
    too_long: int
    """Pairs with a side longer than max_length, specials included."""
    kept: int
    """All, except in train: there read - empty - too_long."""
    source_tokens: int
    """Of the kept pairs, as are the next three."""
    target_tokens: int
    source_unknown: int
    target_unknown: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was read, dropped and kept."""

    max_length: int
    source_vocab_size: int
    target_vocab_size: int
    splits: dict[str, SplitReport]

    def lines(self) -> list[str]:
        """The report for people, a line per fact."""
        lines = [f"vocabulary: {self.source_vocab_size:,} source and {self.target_vocab_size:,} target tokens"]
        for name, split in self.splits.items():
            sides = ("source", split.source_tokens, split.source_unknown), ("target", split.target_tokens, split.target_unknown)
            tokens = ", ".join(f"{count:,} {side} tokens ({unknown / max(1, count):.2%} unknown)" for side, count, unknown in sides)
            lines.append(f"{name}: {split.read:,} pairs read, {split.kept:,} kept; {tokens}")
            fate = "dropped" if name == "train" else "kept"
            if split.empty:
                lines.append(f"{name}: {split.empty:,} pairs with an empty side {fate}")
            if split.too_long:
                fate += "" if name == "train" else ", left out of the loss"
                lines.append(f"{name}: {split.too_long:,} pairs with a side over max_length={self.max_length} tokens {fate}")
        return lines


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedCorpus:
    """Everything that training needs of the text: splits "train", "valid", and where there are such "test" and "combinations"."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    splits: dict[str, TokenPairs]
    report: Report
    directory: Path


def prepare(config: DataConfig, log: Log = lambda line: None) -> PreparedCorpus:
    """The corpus of `config`, from the cache or prepared now.

    Without `config.train` all splits are drawn from the phrasebook (500 pairs of valid, test and combinations unless set). With it, valid
    and test are files, or `valid_pairs` and `test_pairs` pairs taken out of train at random. Tokenizers are trained on what is then train.

    Of train, pairs with an empty side or one longer than max_length tokens (specials included) are dropped and counted. Of the other
    splits every pair is kept, since a score must cover every sentence; those too long for the loss are counted, and absent from
    `usable_indices`. Nothing is ever cut off.

    Several processes may prepare the same corpus at once, and one may be killed: each finds a complete entry or builds one.

    Args:
      log: called with a line at each step of the work; on a corpus from the cache, never.

    Raises:
      CorpusError: files that can't be read or aren't parallel (with file and line); no validation pairs; more pairs to be taken out of
        train than it has; no training pair left; a cache_dir that can't be written.
      ValueError: see `train_tokenizer`.
    """
    cache = Path(config.cache_dir).expanduser()
    entry = cache / _entry_name(config)
    prepared = _load_entry(entry, config)
    if prepared is not None:
        return prepared
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _remove_stale(cache)
        building = cache / f"{BUILDING}{uuid.uuid4().hex}"
        building.mkdir()
    except OSError as error:
        raise CorpusError(f"cache_dir: expected a directory that can be written; received {cache} ({error.strerror}).") from None
    try:
        _build_entry(building, config, log)
        _publish(building, entry)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    prepared = _load_entry(entry, config)
    if prepared is None:
        raise CorpusError(f"{entry}: expected the corpus just prepared; received a directory that was changed meanwhile. Run again.")
    return prepared


def _entry_name(config: DataConfig) -> str:
    """The hash of everything that the prepared corpus depends on."""
    options = {name: value for name, value in dataclasses.asdict(config).items() if name not in UNHASHED}
    text = json.dumps({"version": FORMAT_VERSION, "options": options, "contents": fingerprint(config)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


# --- building


def _build_entry(directory: Path, config: DataConfig, log: Log) -> None:
    """Writes the files of a whole cache entry into an empty directory, the manifest last."""
    log("reading " + (" and ".join(config.train) or "the phrasebook"))
    splits = read_splits(config)
    log(f"training {config.tokenizer} tokenizers on {len(splits['train']):,} pairs")
    tokenizers = _train_tokenizers(config, splits["train"])
    for side, tokenizer in zip(SIDES, tokenizers, strict=True):
        (directory / f"{side}_tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    reports = {}
    for name, pairs in splits.items():
        reports[name] = _encode_split(directory, name, pairs, tokenizers, config.max_length, log)
        splits[name] = []  # its memory is free while the next is encoded
    train = reports["train"]
    if not train.kept:
        raise CorpusError(
            f"train: expected pairs of non-empty sentences of at most max_length={config.max_length} tokens; received {train.read} pairs, "
            f"{train.empty} with an empty side and {train.too_long} too long. Raise max_length, or check the files."
        )
    report = Report(
        max_length=config.max_length,
        source_vocab_size=tokenizers[0].vocab_size,
        target_vocab_size=tokenizers[1].vocab_size,
        splits=reports,
    )
    sizes = {path.name: path.stat().st_size for path in sorted(directory.iterdir())}
    manifest = {"format_version": FORMAT_VERSION, "sizes": sizes, "report": dataclasses.asdict(report)}
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _train_tokenizers(config: DataConfig, pairs: Pairs) -> tuple[Tokenizer, Tokenizer]:
    """The source's, which adds its specials and has the tags, and the target's, which adds none."""
    options: dict[str, Any] = {
        "kind": config.tokenizer,
        "specials": SpecialIds(pad=config.pad_id, unk=config.unk_id, bos=config.bos_id, eos=config.eos_id),
        "lowercase": config.lowercase,
        "normalization": config.normalization,
    }
    size: dict[str, Any] = {"vocab_size": config.vocab_size, "min_frequency": config.min_frequency}
    added: dict[str, Any] = {"add_bos": config.source_bos, "add_eos": config.source_eos, "tags": config.source_tags}
    languages = (config.source_language, config.target_language) if config.is_given else ("en", "de")  # the phrasebook's
    if config.source_tokenizer:
        source = load_tokenizer(config.source_tokenizer, language=languages[0], **added, **options)
        return source, load_tokenizer(config.target_tokenizer, language=languages[1], **options)
    if config.joint_vocabulary:
        joint = train_tokenizer(chain.from_iterable(pairs), **added, **size, **options)
        return joint, joint.adding(bos=False, eos=False)
    source = train_tokenizer((source for source, _ in pairs), language=languages[0], **added, **size, **options)
    return source, train_tokenizer((target for _, target in pairs), language=languages[1], **size, **options)


class _SideWriter:
    """Appends sentences to the files of one side of a split."""

    def __init__(self, directory: Path, name: str, unk_id: int) -> None:
        self._base = str(directory / name)
        self._unk_id = unk_id
        self._lengths: list[Int64s] = [np.zeros(1, np.int64)]
        self._text_lengths: list[Int64s] = [np.zeros(1, np.int64)]
        self.tokens = 0
        self.unknown = 0
        self.append([], [])  # a split without pairs has its files too

    def append(self, ids: list[list[int]], texts: list[str]) -> None:
        packed = Sentences.pack(ids, texts)
        for suffix, data in (("ids", packed.ids.astype("<i4")), ("txt", packed.text)):
            with open(f"{self._base}.{suffix}", "ab") as file:
                file.write(data.tobytes())
        self._lengths.append(np.diff(packed.offsets))
        self._text_lengths.append(np.diff(packed.text_offsets))
        self.tokens += len(packed.ids)
        self.unknown += int((packed.ids == self._unk_id).sum())

    def finish(self) -> None:
        for suffix, lengths in (("offsets", self._lengths), ("text_offsets", self._text_lengths)):
            np.cumsum(np.concatenate(lengths)).astype("<i8").tofile(f"{self._base}.{suffix}")


def _encode_split(
    directory: Path, name: str, pairs: Pairs, tokenizers: tuple[Tokenizer, Tokenizer], max_length: int, log: Log
) -> SplitReport:  # fmt: skip
    """Encodes in chunks, so that the ids of a large corpus are never all in memory, and writes the pairs that are kept."""
    writers = [_SideWriter(directory, f"{name}.{side}", tokenizer.unk_id) for side, tokenizer in zip(SIDES, tokenizers, strict=True)]
    specials = len(tokenizers[0].encode([""])[0])
    empty = too_long = kept = 0
    for start in range(0, len(pairs), CHUNK):
        chunk = pairs[start : start + CHUNK]
        texts = [[pair[side] for pair in chunk] for side in (0, 1)]
        ids = [tokenizer.encode(sentences) for tokenizer, sentences in zip(tokenizers, texts, strict=True)]
        source_lengths, target_lengths = (np.fromiter(map(len, sentences), np.int64, len(chunk)) for sentences in ids)
        blank = np.array([not source.strip() or not target.strip() for source, target in chunk])
        is_empty = blank | (source_lengths == specials) | (target_lengths == 0)
        is_long = ~is_empty & ((source_lengths > max_length) | (target_lengths + 1 > max_length))
        dropped = (is_empty | is_long) if name == "train" else np.zeros(len(chunk), bool)
        keep = np.flatnonzero(~dropped).tolist()
        for side, writer in enumerate(writers):
            writer.append([ids[side][i] for i in keep], [texts[side][i] for i in keep])
        empty, too_long, kept = empty + int(is_empty.sum()), too_long + int(is_long.sum()), kept + len(keep)
        log(f"encoding {name}: {start + len(chunk):,} of {len(pairs):,} pairs")
    for writer in writers:
        writer.finish()
    return SplitReport(
        read=len(pairs), empty=empty, too_long=too_long, kept=kept, source_tokens=writers[0].tokens, target_tokens=writers[1].tokens,
        source_unknown=writers[0].unknown, target_unknown=writers[1].unknown,
    )  # fmt: skip


# --- the cache


def _publish(building: Path, entry: Path) -> None:
    """Gives a finished entry its name. An entry that is there stays if it is complete, and is replaced if it isn't."""
    for attempt in range(PUBLISH_ATTEMPTS):
        try:
            os.rename(building, entry)
            return
        except OSError:  # the name is taken
            if _read_manifest(entry) is not None:
                return
            damaged = building.with_name(f"{building.name}.damaged-{attempt}")
            with contextlib.suppress(FileNotFoundError):  # another process has moved it
                os.rename(entry, damaged)
            shutil.rmtree(damaged, ignore_errors=True)
    raise CorpusError(
        f"{entry}: expected to name a prepared corpus so; it could not be renamed from {building}. Clear the cache directory."
    )


def _read_manifest(entry: Path) -> dict[str, Any] | None:
    """The manifest of a complete entry; None where there is no entry, or one that lacks a file or has one of another size."""
    try:
        manifest: dict[str, Any] = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
        whole = all((entry / name).stat().st_size == size for name, size in manifest["sizes"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if whole else None


def _load_entry(entry: Path, config: DataConfig) -> PreparedCorpus | None:
    manifest = _read_manifest(entry)
    if manifest is None:
        return None
    report = Report(**manifest["report"] | {"splits": {name: SplitReport(**split) for name, split in manifest["report"]["splits"].items()}})
    splits = {
        name: TokenPairs(_map_side(entry, f"{name}.source"), _map_side(entry, f"{name}.target"), config.max_length)
        for name in report.splits
    }
    source, target = (Tokenizer.from_json((entry / f"{side}_tokenizer.json").read_text(encoding="utf-8")) for side in SIDES)
    return PreparedCorpus(source_tokenizer=source, target_tokenizer=target, splits=splits, report=report, directory=entry)


def _map_side(entry: Path, name: str) -> Sentences:
    def mapped(suffix: str, dtype: str) -> Any:
        path = entry / f"{name}.{suffix}"
        if not path.stat().st_size:  # an empty file can't be mapped
            return np.zeros(0, dtype)
        return np.asarray(np.memmap(path, dtype, mode="r"))  # asarray: indexing a memmap object is slow

    return Sentences(mapped("ids", "<i4"), mapped("offsets", "<i8"), mapped("txt", "u1"), mapped("text_offsets", "<i8"))


def _remove_stale(cache: Path) -> None:
    """Removes what builds killed long ago have left behind."""
    for path in cache.glob(f"{BUILDING}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
