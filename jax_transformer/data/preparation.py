"""Prepares text once: turns files of text into files of token ids, cached under the hash of the text and the options.

Preparation reads the text several times without holding it: to hash the files, to hash the pairs, to train each
tokenizer, to encode, and to check that no file has changed meanwhile. For each pair, memory holds its hash, its split,
and whether it is a duplicate.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jax_transformer.buckets import local_file
from jax_transformer.config.data import MODES, DataConfig
from jax_transformer.data.cache import BUILDING, building_directory, publish
from jax_transformer.data.corpus import (
    CorpusError,
    Flags,
    Split,
    SplitCorpora,
    check_unchanged,
    fingerprint,
    hash_files,
    read_splits,
)
from jax_transformer.data.denoising import fixed_examples
from jax_transformer.data.encoding import (
    Log,
    Report,
    SplitEncoder,
    SplitReport,
    TargetFrame,
    check_unknown,
    encode_split,
    target_frames,
)
from jax_transformer.data.given_tokenizers import GivenPair, take_tokenizers
from jax_transformer.data.sides import swapped_splits
from jax_transformer.data.text_files import hash_file
from jax_transformer.data.token_pairs import SIDES, PairsInMemory, PairsWriter, Sentences, TokenPairs, open_pairs
from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, load_tokenizer, train_tokenizer
from jax_transformer.data.tokenizers.objects import AnyTokenizer
from jax_transformer.runtime.digests import changes, write_digests
from jax_transformer.runtime.files import naming_errors, remove_abandoned
from jax_transformer.runtime.standard_output import NAME as STANDARD_OUTPUT

__all__ = ["CorpusError", "PreparedCorpus", "Report", "Sentences", "SplitReport", "TokenPairs", "prepare"]

FORMAT_VERSION = 2
"""Part of the hash. Raise it with any change to the stored files, or to how text becomes ids."""
UNHASHED = (
    "train",
    "valid",
    "test",
    "dataset",
    "weight",
    "batch_tokens",
    "packing",
    "num_shapes",
    "max_unknown",
    "noise_density",
    "mean_span_length",
    "mixture_temperature",
    "join_lines",
    "cache_dir",
    "source_tokenizer",
    "target_tokenizer",
)
"""Fields that don't change the prepared corpus. (Files count by their content, not by their names.)"""
ADDED_LATER = (
    "stream_parts", "target_tag", "tokenizers_as_stored", "decoder_start_id", "target_bos", "objective", "sentinels",
)  # fmt: skip
"""Fields that are hashed only if they differ from the default."""
REPORT, LENGTHS, STREAM = "report.json", "train.lengths", "stream.json"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, eq=False)
class Beginning:
    """Holds the facts about the first shard of a stream that a prepared corpus stores."""

    lengths: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]
    """Numbers of source and target tokens of each kept pair."""
    revision: str
    """Version of the dataset: see `open_stream`."""

    @classmethod
    def load(cls, entry: Path) -> Beginning:
        """Loads the files that `save` wrote."""
        lengths = np.fromfile(entry / LENGTHS, "<i4").reshape(2, -1)
        revision: str = json.loads((entry / STREAM).read_text(encoding="utf-8"))["revision"]
        return cls((lengths[0], lengths[1]), revision)

    @staticmethod
    def save(directory: Path, pairs: TokenPairs, revision: str) -> None:
        """Writes the lengths and the revision to a cache entry."""
        np.stack([pairs.source_lengths, pairs.target_lengths]).astype("<i4").tofile(directory / LENGTHS)
        (directory / STREAM).write_text(json.dumps({"revision": revision}), encoding="utf-8")


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedCorpus:
    """Holds the tokenizers and the splits of a corpus: "train", "valid" and, if there are any, "test" and
    "combinations"; see `prepare`.

    Example:
      >>> import tempfile
      >>> from jax_transformer import DataConfig
      >>> from jax_transformer.data import prepare
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     corpus = prepare(DataConfig(phrasebook_pairs=50, valid_pairs=5, test_pairs=5, cache_dir=folder))
      ...     pairs = corpus.splits["train"]
      ...     corpus.target_tokenizer.decode([pairs.target(0)]) == pairs.target_texts([0])
      True
    """

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    splits: dict[str, TokenPairs]
    """Pairs by split; without "train" if it is streamed."""
    report: Report
    directory: Path
    frames: Sequence[TargetFrame]
    """The tokens around the targets of each corpus."""
    beginning: Beginning | None = None
    """The first shard of a stream."""

    @property
    def frame(self) -> TargetFrame:
        """Returns the tokens around the first corpus's targets; only `before` may differ in other corpora."""
        return self.frames[0]


def prepare(
    config: DataConfig,
    log: Log = lambda line: None,
    *,
    source_tokenizer: AnyTokenizer | None = None,
    target_tokenizer: AnyTokenizer | None = None,
) -> PreparedCorpus:
    """Reads, tokenizes and caches the corpora of `config`; returns them from the cache if possible.

    Without a corpus, all splits come from the phrasebook (by default 500 pairs each of valid, test and combinations).
    Otherwise each split is the union over the corpora (see `read_splits`). Tokenizers train on the training pairs
    without dropped duplicates and overlaps, each pair once whatever its corpus's weight.

    In train, pairs with an empty side, or a side longer than max_length tokens (specials included), are dropped and
    counted, and so are those that max_length_ratio, drop_duplicates and drop_overlap exclude. The other splits keep
    every pair, since a score must cover every sentence; pairs too long for the loss are counted, and left out of
    `usable_indices`. Nothing is truncated.

    With streaming, the cached training split consists only of the lengths of the first shard.

    Several processes may prepare the same corpus at once, and any may be killed: each finds a complete entry or builds
    one.

    Args:
      config: the corpora and how to tokenize them.
      log: called with a line at each step of the work, but not for a cached corpus.
      source_tokenizer, target_tokenizer: objects to use instead of files or trained ones; see `as_tokenizer`.

    Raises:
      CorpusError: see `read_splits` and `take_tokenizers`; a file that changes meanwhile; no training pairs left; a
        larger share of unknown tokens than max_unknown; a cache_dir that can't be written, or a full disk.
      ValueError: see `train_tokenizer` and `as_tokenizer`.

    Example:
      >>> import tempfile
      >>> from jax_transformer import DataConfig
      >>> from jax_transformer.data import prepare
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     corpus = prepare(DataConfig(phrasebook_pairs=50, valid_pairs=5, test_pairs=5, cache_dir=folder))
      >>> {name: len(pairs) for name, pairs in corpus.splits.items()}
      {'train': 50, 'valid': 5, 'test': 5, 'combinations': 5}
    """
    return prepare_with(*take_tokenizers(config, source_tokenizer, target_tokenizer), log)


def prepare_with(config: DataConfig, given: GivenPair | None, log: Log) -> PreparedCorpus:
    """Prepares the corpora of a config that `take_tokenizers` returned. See `prepare`."""
    cache = Path(config.cache_dir).expanduser()
    hashes = hash_files(config)
    text = fingerprint(config, hashes)
    entry = cache / _entry_name(config, text, given)
    remove_abandoned(cache.glob(f"{BUILDING}*"))
    found = changes(entry) if entry.exists() else []
    if found:
        log(f"{entry}: damaged ({found[0]}); it is prepared again")
    prepared = None if found else _load_entry(entry, config)
    if prepared is None:
        with building_directory(cache) as building:
            _build_entry(building, config, hashes, given, log)
            publish(building, entry)
        prepared = None if changes(entry) else _load_entry(entry, config)
    if prepared is None:
        raise CorpusError(
            f"{entry}: expected the corpus just prepared; received a directory that was changed meanwhile. Run again."
        )
    check_unknown(prepared.report.splits["train"], config)  # max_unknown isn't part of the entry's hash
    return prepared


def _entry_name(config: DataConfig, text: list[dict[str, Any]], given: GivenPair | None) -> str:
    """Returns the hash of everything that the prepared corpus depends on: the options and, by its `fingerprint`, the
    text."""

    def hashed(options: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if name not in UNHASHED}

    options = hashed(dataclasses.asdict(config))
    options["more"] = [hashed(corpus) for corpus in options["more"]]
    usual = dataclasses.asdict(DataConfig())
    for name in ADDED_LATER:
        if options.get(name) == usual[name]:
            del options[name]  # keeps the names of entries that are older than this option
            for corpus in options["more"]:
                corpus.pop(name, None)
    files = (config.source_tokenizer, config.target_tokenizer)
    tokenizers = (
        [hash_file(path) for path in files if path]
        if given is None
        else [hashlib.sha256(content.encode()).hexdigest() for content in given.texts().values()]
    )
    contents = {"text": text, "tokenizers": tokenizers}
    whole = json.dumps({"version": FORMAT_VERSION, "options": options, "contents": contents}, sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()


def _load_entry(entry: Path, config: DataConfig) -> PreparedCorpus | None:
    """Returns the corpus of an undamaged cache entry; None if there is no entry."""
    if not entry.exists():
        return None
    with naming_errors(entry):
        return _read_entry(entry, config)


def _read_entry(entry: Path, config: DataConfig) -> PreparedCorpus:
    report = Report.from_dict(json.loads((entry / REPORT).read_text(encoding="utf-8")))
    source, target = (
        Tokenizer.from_json((entry / f"{side}_tokenizer.json").read_text(encoding="utf-8")) for side in SIDES
    )
    splits = {
        name: open_pairs(entry, name, config.max_length)
        for name in report.splits
        if name != "train" or not config.streaming
    }
    if config.is_pretraining:
        splits = {
            name: pairs if name == "train" else fixed_examples(pairs, source, config) for name, pairs in splits.items()
        }
    return PreparedCorpus(
        source_tokenizer=source,
        target_tokenizer=target,
        splits=splits,
        report=report,
        directory=entry,
        frames=target_frames(config, target),
        beginning=Beginning.load(entry) if config.streaming else None,
    )


# --- building


def _build_entry(
    directory: Path, config: DataConfig, hashes: dict[str, str], given: GivenPair | None, log: Log
) -> None:
    """Writes the files of a whole cache entry into an empty directory, and seals it."""
    log("reading " + (" and ".join(_names(config)) or "the phrasebook"))
    corpora = read_splits(config)
    train = corpora.splits["train"]
    overlapping, duplicated = corpora.copies([corpus.source_tag for corpus in config.corpora] or [""])
    left = ~((overlapping & config.drop_overlap) | (duplicated & config.drop_duplicates))
    if not config.source_tokenizer:
        log(f"training {config.tokenizer} tokenizers on {int(left.sum()):,} pairs")
    tokenizers = _train_tokenizers(config, train, left, given)
    with _room_for(corpora, directory):
        for side, tokenizer in zip(SIDES, tokenizers, strict=True):
            (directory / f"{side}_tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        reports = {}
        for name, split in corpora.splits.items():
            streamed = PairsInMemory() if name == "train" and config.streaming else None
            encoder = SplitEncoder(streamed or PairsWriter(directory, name), name, tokenizers, config)
            nothing = np.zeros(len(split), np.bool_)
            flags = (overlapping, duplicated) if name == "train" else (nothing, nothing)
            reports[name] = encode_split(encoder, name, split, flags, config, log)
            if streamed:
                Beginning.save(directory, streamed.pairs(config.max_length), corpora.revision)
        check_unchanged(config, hashes)
        report = Report(
            max_length=config.max_length,
            max_length_ratio=config.max_length_ratio,
            drop_duplicates=config.drop_duplicates,
            drop_overlap=config.drop_overlap,
            source_vocab_size=tokenizers[0].vocab_size,
            target_vocab_size=tokenizers[1].vocab_size,
            datasets=corpora.datasets,
            streaming=config.streaming,
            splits=reports,
            swapped=swapped_splits(corpora.splits),
        )
        (directory / REPORT).write_text(json.dumps(report.to_dict()), encoding="utf-8")
        write_digests(directory)


def _names(config: DataConfig) -> Iterator[str]:
    for corpus in config.corpora:
        yield from [corpus.used_dataset] if corpus.used_dataset else corpus.train


class _Texts:
    """Iterates over the sentences of a split for training tokenizers: one side of the remaining pairs, or both. Each
    iteration reads them again."""

    def __init__(self, split: Split, left: Flags, side: int | None) -> None:
        self._split, self._left, self._side = split, left, side

    def __iter__(self) -> Iterator[str]:
        pairs = compress(self._split, self._left)
        return chain.from_iterable(pairs) if self._side is None else (pair[self._side] for pair in pairs)


def _train_tokenizers(
    config: DataConfig, train: Split, left: Flags, given: GivenPair | None
) -> tuple[Tokenizer, Tokenizer]:
    """Returns the source's tokenizer, which adds special tokens and tags, and the target's, which adds none: those
    given as objects, loaded or trained."""
    options: dict[str, Any] = {
        "specials": SpecialIds(pad=config.pad_id, unk=config.unk_id, bos=config.bos_id, eos=config.eos_id),
        "lowercase": config.lowercase,
        "normalization": config.normalization,
    }
    source_options: dict[str, Any] = {
        "kind": config.tokenizer,
        "add_bos": config.source_bos,
        "add_eos": config.source_eos,
        "tags": config.source_tags,
    }
    target_options: dict[str, Any] = {"kind": config.target_kind or config.tokenizer}
    languages = (
        (config.source_language, config.target_language) if config.is_given else ("en", "de")
    )  # the phrasebook's
    if config.tokenizers_as_stored:
        files = (config.source_tokenizer, config.target_tokenizer)
        source, target = given or (_stored_tokenizer(path) for path in files)
        for tag in config.source_tags:
            source.encode([], tag)  # raises an error if the vocabulary lacks it
        return source, target.adding(bos=False, eos=False)
    if config.source_tokenizer:
        source = load_tokenizer(config.source_tokenizer, language=languages[0], **source_options, **options)
        target = load_tokenizer(config.target_tokenizer, language=languages[1], **target_options, **options)
        if config.joint_vocabulary and not source.has_vocabulary_of(target):
            raise CorpusError(
                "joint_vocabulary: expected source_tokenizer and target_tokenizer with the same tokens under the "
                "same ids; received "
                f"{config.source_tokenizer} ({source.vocab_size:,} tokens) and {config.target_tokenizer} "
                f"({target.vocab_size:,}). "
                "Give one file for both, or set joint_vocabulary to false."
            )
        if config.subword_sampling:
            for tokenizer in (source, target):
                tokenizer.sample_encode([], seed=0, strength=config.subword_sampling)  # raises an error if it can't
        return source, target
    options |= {"vocab_size": config.vocab_size, "min_frequency": config.min_frequency}
    if config.joint_vocabulary:
        if config.is_pretraining:
            modes = MODES if config.objective == "ul2" else ()
            extra = {"tags": (*config.source_tags, *modes), "sentinels": config.sentinels}
            joint = train_tokenizer(_Texts(train, left, 0), **source_options | extra, **options)
            return joint, joint.adding(bos=False, eos=False)
        joint = train_tokenizer(_Texts(train, left, None), **source_options, **options)
        return joint, joint.adding(bos=False, eos=False)
    source = train_tokenizer(_Texts(train, left, 0), language=languages[0], **source_options, **options)
    return source, train_tokenizer(_Texts(train, left, 1), language=languages[1], **target_options, **options)


def _stored_tokenizer(path: str) -> Tokenizer:
    try:
        return Tokenizer.from_json(local_file(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CorpusError(f"{path}: expected a tokenizer of a model directory; received {error.strerror}") from None


@contextlib.contextmanager
def _room_for(corpora: SplitCorpora, directory: Path) -> Iterator[None]:
    """Turns the error of a full disk into one that names the room needed."""
    try:
        yield
    except OSError as error:
        if error.filename == STANDARD_OUTPUT:  # a line of the log can't be written
            raise
        cache = directory.parent
        if error.errno not in NO_ROOM:
            raise CorpusError(
                f"cache_dir: expected a directory that can be written; received {cache} ({error.strerror})."
            ) from None
        # The text, about as much again for the ids, and the four offsets and the corpus of each pair.
        needed = 2 * corpora.text_bytes + 34 * sum(map(len, corpora.splits.values()))
        raise CorpusError(
            f"cache_dir: expected room for about {needed / 1e6:,.1f} MB in {cache}; received {error.strerror!r} with "
            f"{shutil.disk_usage(directory).free / 1e6:,.1f} MB left. Free space, or set cache_dir to another disk."
        ) from None
