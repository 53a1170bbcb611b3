"""Encodes pairs of text as token ids: adds the tokens around targets, drops pairs, and counts them for the report.

The decoder's input is [start, *before, *sentence, *after without the last]; its labels are [*before, *sentence,
*after]. The frames of common models:

| model | start | before | after |
|---|---|---|---|
| trained here, Marian, PEGASUS, Blenderbot, FSMT, T5 | decoder_start_id | | <eos> |
| BART, MVP, CodeT5 | decoder_start_id | <bos> | <eos> |
| M2M-100, NLLB, mBART-50 | decoder_start_id | tag | <eos> |
| mBART, PLBART | tag | | <eos> tag |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import Any, Protocol

import numpy as np

from jax_transformer.config.data import DataConfig
from jax_transformer.data.corpus import Flags, Split, changed
from jax_transformer.data.tables import Pair
from jax_transformer.data.text_files import CorpusError
from jax_transformer.data.token_pairs import SIDES
from jax_transformer.data.tokenizers import Tokenizer

CHUNK = 10_000
"""Number of pairs whose text and ids are in memory at once."""
LOG_LINES = 20
"""Approximate number of log lines per split, however large it is."""
MUCH_UNKNOWN = 0.1
"""Share of unknown tokens above which a split other than train gets a warning, if train has less than half of it."""
USUAL_RATIO = 9.0
"""Length ratio above which pairs are counted if max_length_ratio sets none."""

Log = Callable[[str], None]


# --- the tokens around targets


@dataclass(frozen=True)
class TargetFrame:
    """Holds the ids around the tokens of each target of a corpus."""

    start_id: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    """At least one id."""

    @property
    def end_id(self) -> int:
        """Returns the last label."""
        return self.after[-1]

    @property
    def size(self) -> int:
        """Returns the number of ids that `stored` adds to a sentence."""
        return len(self.before) + len(self.after) - 1

    def stored(self, sentences: Iterable[Sequence[int]]) -> list[list[int]]:
        """Adds the ids that follow `start_id` in the decoder's input and precede `end_id` in the labels."""
        return [[*self.before, *ids, *self.after[:-1]] for ids in sentences]


def target_frame(config: DataConfig, target: Tokenizer, corpus: int = 0) -> TargetFrame:
    """Returns the frame of the targets of one corpus, by its number in `config.corpora`.

    Raises:
      ValueError: the vocabulary lacks the corpus's target_tag, or an id to start or end with.
    """
    tag = config.corpora[corpus].target_tag if config.corpora else ""
    tags = (target.tag_id(tag, "data.target_tag"),) if tag else ()
    start_id = target.bos_id if config.decoder_start_id is None else config.decoder_start_id
    if tags and target.tag_is_last:
        (start_id,) = tags
    if not 0 <= start_id < target.vocab_size:
        hint = f", without <bos>; set it, such as to {target.pad_id}, <pad>, as T5 and Marian do"
        raise ValueError(
            f"data.decoder_start_id: expected an id of the target's vocabulary; received {start_id}"
            + hint * (start_id < 0)
        )
    if target.eos_id < 0:
        raise ValueError("data.target_tokenizer: expected a vocabulary with <eos>; received one without")
    before = () if target.tag_is_last else tags
    if config.target_bos and not before:
        before = (target.bos_id,)
    is_tag = target.tag_is_last and start_id in target.tag_ids.values()
    return TargetFrame(start_id, before, (target.eos_id, start_id) if is_tag else (target.eos_id,))


def target_frames(config: DataConfig, target: Tokenizer) -> list[TargetFrame]:
    """Returns the frame of each corpus.

    Raises:
      ValueError: see `target_frame`; corpora whose decoders start, or whose labels end, with different ids.
    """
    frames = [target_frame(config, target, number) for number in range(max(len(config.corpora), 1))]
    if len({(frame.start_id, frame.end_id) for frame in frames}) > 1:
        tags = ", ".join(corpus.target_tag or "none" for corpus in config.corpora)
        raise ValueError(
            f"data.target_tag: expected one for all corpora, since it starts this model's decoder; received {tags}"
        )
    return frames


# --- the report


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """Counts the pairs of one split.

    A dropped pair counts under its first reason, in the order of the fields; a kept pair counts under all that apply.
    """

    read: int
    empty: int
    """Pairs with a side that has no token; never counted as too long."""
    too_long: int
    """Pairs with a side longer than max_length, specials included."""
    unequal: int
    """Training pairs whose longer side has more than max_length_ratio times the tokens of the shorter, specials
    excluded; more than 9 times if max_length_ratio is 0. Dropped if max_length_ratio is set."""
    overlapping: int
    """Training pairs that are also in another split. Dropped with drop_overlap."""
    duplicated: int
    """Training pairs that occurred before with the same source tag. Dropped with drop_duplicates."""
    kept: int
    """Pairs kept: all, except in train, which drops empty and too long pairs and those that the config excludes."""
    source_tokens: int
    """Source tokens of the kept pairs; the next three fields also count only kept pairs."""
    target_tokens: int
    source_unknown: int
    target_unknown: int
    source_length_counts: tuple[int, ...]
    """Entry n: number of pairs read with a source of n tokens, specials included. The last entry includes longer
    sources."""
    target_length_counts: tuple[int, ...]
    """The same for targets, including the <eos> that a batch adds."""
    mostly_unknown: int = 0
    """Pairs kept with a side more than half of whose tokens are unknown, specials and tags excluded."""

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> SplitReport:
        """Returns the report with the fields `record`, read back from JSON."""
        return cls(**{name: _frozen(value) for name, value in record.items()})


def add_reports(reports: Sequence[SplitReport]) -> SplitReport:
    """Adds the counts of reports with the same max_length."""

    def add(name: str) -> Any:
        values = [getattr(report, name) for report in reports]
        return tuple(map(sum, zip(*values, strict=True))) if isinstance(values[0], tuple) else sum(values)

    return SplitReport(**{field.name: add(field.name) for field in fields(SplitReport)})


@dataclass(frozen=True, kw_only=True)
class Report:
    """Holds the counts of every split, and the options they depend on."""

    max_length: int
    max_length_ratio: float
    drop_duplicates: bool
    drop_overlap: bool
    source_vocab_size: int
    target_vocab_size: int
    datasets: tuple[str, ...]
    """Version of each Hugging Face dataset."""
    streaming: bool = False
    """Whether "train" covers only the beginning of a stream."""
    splits: dict[str, SplitReport]
    swapped: tuple[str, ...] = ()
    """Splits whose sources look like train's targets, and the reverse."""

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Report:
        """Returns the report of `to_dict`, read back from JSON."""
        splits = {name: SplitReport.from_dict(split) for name, split in record["splits"].items()}
        return cls(**{key: _frozen(value) for key, value in record.items()} | {"splits": splits})

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Returns the report as text, one fact per line."""
        lines = list(self.datasets)
        lines.append(f"vocabulary: {self.source_vocab_size:,} source and {self.target_vocab_size:,} target tokens")
        if self.streaming:
            train = self.splits["train"]
            lines.append(
                f"train is a stream: its counts cover only the {train.read:,} pairs of its first shard; its length is "
                "unknown"
            )
        for name, split in self.splits.items():
            lines += self.split_lines(name, split)
        return lines + self._warnings()

    def _warnings(self) -> list[str]:
        """Returns a line for each probable mistake in the data: swapped sides and unknown tokens."""
        lines = [
            f"warning: {name}: the sources look like train's targets, and the targets like train's sources: are the "
            "files swapped?"
            for name in self.swapped
        ]
        train = self.splits["train"]
        for name, split in self.splits.items():
            for side in ("source", "target"):
                share, usual = (
                    getattr(one, f"{side}_unknown") / max(1, getattr(one, f"{side}_tokens")) for one in (split, train)
                )
                if name != "train" and share > max(MUCH_UNKNOWN, 2 * usual):
                    lines.append(
                        f"warning: {name}: {share:.1%} of the {side} tokens are unknown, {usual:.1%} in train: is it "
                        "the same language, written and tokenized alike?"
                    )
        return lines

    def split_lines(self, name: str, split: SplitReport) -> list[str]:
        """Describes the pairs of one split, one line per fact."""
        sides = (
            ("source", split.source_tokens, split.source_unknown),
            ("target", split.target_tokens, split.target_unknown),
        )
        tokens = ", ".join(
            f"{count:,} {side} tokens ({unknown / max(1, count):.2%} unknown)" for side, count, unknown in sides
        )
        lines = [f"{name}: {split.read:,} pairs read, {split.kept:,} kept; {tokens}"]
        return lines + [
            f"{name}: {count:,} pairs {what} {fate}" for count, what, fate in self._fates(name, split) if count
        ]

    def _fates(self, name: str, split: SplitReport) -> list[tuple[int, str, str]]:
        def fate(drops: bool, advice: str = "") -> str:
            return "dropped" if drops else f"kept{advice}"

        train = name == "train"
        left_out = "dropped" if train else "kept, left out of the loss"
        return [
            (split.empty, "with an empty side", fate(train)),
            (split.too_long, f"with a side over max_length={self.max_length} tokens", left_out),
            (
                split.unequal,
                f"with a side over {self.max_length_ratio or USUAL_RATIO:g} times as long as the other",
                fate(self.max_length_ratio > 0, " (max_length_ratio drops them)"),
            ),
            (split.overlapping, "also in another split", fate(self.drop_overlap, " (drop_overlap drops them)")),
            (split.mostly_unknown, "with a side of mostly unknown tokens", "kept"),
            (split.duplicated, "seen before in train", fate(self.drop_duplicates, " (drop_duplicates drops them)")),
        ]


def drops(config: DataConfig) -> dict[str, bool]:
    """Maps each reason, a field of SplitReport, to whether it drops a training pair, in order."""
    return {
        "empty": True, "too_long": True, "unequal": config.max_length_ratio > 0, "overlapping": config.drop_overlap,
        "duplicated": config.drop_duplicates,
    }  # fmt: skip


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# --- encoding


class Writer(Protocol):
    """Receives the pairs that are kept."""

    def append(self, ids: Sequence[Sequence[Sequence[int]]], texts: Sequence[Sequence[str]], corpus: int) -> None:
        """Appends pairs of one corpus: (source ids, target ids) and (source texts, target texts)."""


class SplitEncoder:
    """Encodes and counts the pairs of a split, and writes the kept pairs."""

    def __init__(self, writer: Writer, name: str, tokenizers: tuple[Tokenizer, Tokenizer], config: DataConfig) -> None:
        self._writer, self._is_train, self._tokenizers, self._config = writer, name == "train", tokenizers, config
        self._frames = target_frames(config, tokenizers[1])
        self._counts = dict.fromkeys(("read", *drops(config), "kept"), 0)
        self._tokens, self._unknown, self._mostly_unknown = [0, 0], [0, 0], 0
        self._lengths = [np.zeros(2 * config.max_length + 1, np.int64) for _ in SIDES]

    def add(self, pairs: Sequence[Pair], corpus: int, overlapping: Flags, duplicated: Flags) -> None:
        """Adds pairs of one corpus, with masks of pairs in another split and of repeated pairs."""
        texts = [[pair[side] for pair in pairs] for side in (0, 1)]
        tag = self._config.corpora[corpus].source_tag if self._config.corpora else ""
        source, target = self._tokenizers
        specials, frame = len(source.encode([""], tag)[0]), self._frames[corpus]
        ids = [source.encode(texts[0], tag), frame.stored(target.encode(texts[1]))]
        source_lengths, target_lengths = (np.fromiter(map(len, sentences), np.int64, len(pairs)) for sentences in ids)
        blank = np.array([not one.strip() or not other.strip() for one, other in pairs], np.bool_)
        is_empty = blank | (source_lengths == specials) | (target_lengths == frame.size)
        most = self._config.max_length
        reasons = {
            "empty": is_empty,
            "too_long": ~is_empty & ((source_lengths > most) | (target_lengths + 1 > most)),
            "unequal": ~is_empty & self._is_unequal(source_lengths - specials, target_lengths - frame.size),
            "overlapping": overlapping,
            "duplicated": duplicated,
        }
        keep = np.flatnonzero(~self._dropped(reasons)).tolist()
        unknown = [
            np.fromiter((sentence.count(tokenizer.unk_id) for sentence in sentences), np.int64, len(pairs))
            for sentences, tokenizer in zip(ids, self._tokenizers, strict=True)
        ]
        self._counts["read"] += len(pairs)
        self._counts["kept"] += len(keep)
        for side, lengths in enumerate((source_lengths, target_lengths + 1)):
            self._lengths[side] += np.bincount(np.minimum(lengths, 2 * most), minlength=2 * most + 1)
            self._tokens[side] += int(lengths[keep].sum()) - len(keep) * side  # without the target's <eos>
            self._unknown[side] += int(unknown[side][keep].sum())
        mostly = np.zeros(len(pairs), np.bool_)
        for count, length in zip(unknown, (source_lengths - specials, target_lengths - frame.size), strict=True):
            mostly |= 2 * count > length
        self._mostly_unknown += int(mostly[keep].sum())
        self._writer.append(
            [[side[k] for k in keep] for side in ids], [[side[k] for k in keep] for side in texts], corpus
        )

    def report(self) -> SplitReport:
        source_lengths, target_lengths = (tuple(lengths.tolist()) for lengths in self._lengths)
        return SplitReport(
            **self._counts,
            source_tokens=self._tokens[0],
            target_tokens=self._tokens[1],
            source_unknown=self._unknown[0],
            target_unknown=self._unknown[1],
            source_length_counts=source_lengths,
            target_length_counts=target_lengths,
            mostly_unknown=self._mostly_unknown,
        )

    def _is_unequal(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> Flags:
        if not self._is_train:
            return np.zeros(len(source_lengths), np.bool_)
        most = self._config.max_length_ratio or USUAL_RATIO
        return np.maximum(source_lengths, target_lengths) > most * np.minimum(source_lengths, target_lengths)

    def _dropped(self, reasons: dict[str, Flags]) -> Flags:
        """Counts each reason among the pairs that earlier reasons haven't dropped; returns a mask of dropped pairs."""
        dropped = np.zeros(len(reasons["empty"]), np.bool_)
        for name, is_dropping in drops(self._config).items():
            counted = reasons[name] & ~dropped
            self._counts[name] += int(counted.sum())
            if is_dropping and self._is_train:
                dropped |= counted
        return dropped


def encode_split(
    encoder: SplitEncoder, name: str, split: Split, flags: tuple[Flags, Flags], config: DataConfig, log: Log
) -> SplitReport:
    """Encodes a split in chunks, so that the text and ids of a large corpus are never all in memory.

    Args:
      encoder: the encoder with the split's writer.
      name: name of the split.
      split: its pairs.
      flags: masks of its pairs that are in another split, and of those that repeat an earlier pair.
      config: the options that select the kept pairs of train.
      log: called with a line of progress now and then.

    Raises:
      CorpusError: nothing of train is kept, or too many of its tokens are unknown; the text changed meanwhile.
    """
    done = 0
    every = max(CHUNK, len(split) // LOG_LINES)
    for part in split.parts:
        end = done + len(part)
        pairs = iter(part)
        while chunk := list(islice(pairs, CHUNK)):
            here = slice(done, done + len(chunk))
            done = here.stop
            if done > end:
                break
            encoder.add(chunk, part.corpus, flags[0][here], flags[1][here])
            if done // every > here.start // every or done == len(split):
                log(f"encoding {name}: {done:,} of {len(split):,} pairs")
        if done != end:
            raise changed(f"{name}, corpus {part.corpus + 1}")
    report = encoder.report()
    if name == "train":
        _check_kept(report, config)
        check_unknown(report, config)
    return report


def _check_kept(train: SplitReport, config: DataConfig) -> None:
    if not train.kept:
        words = {
            "empty": "with an empty side",
            "too_long": "too long",
            "unequal": "of unequal lengths",
            "overlapping": "in another split",
            "duplicated": "that occurred before",
        }
        counts = [(name, getattr(train, name)) for name, is_dropping in drops(config).items() if is_dropping]
        raise CorpusError(
            f"train: expected pairs of non-empty sentences of at most max_length={config.max_length} tokens; received "
            f"{train.read} pairs, "
            f"{' and '.join(f'{count} {words[name]}' for name, count in counts)}. Raise max_length, or check the files."
        )


def check_unknown(train: SplitReport, config: DataConfig) -> None:
    """Raises CorpusError if a larger share of a side's tokens is unknown than `max_unknown`."""
    for side in SIDES:
        tokens, unknown = getattr(train, f"{side}_tokens"), getattr(train, f"{side}_unknown")
        if unknown > config.max_unknown * tokens:
            raise CorpusError(
                f"train: expected at most max_unknown={config.max_unknown:g} of the {side} tokens to be unknown; "
                "received "
                f"{unknown / tokens:.1%} of {tokens:,}. Raise vocab_size, lower min_frequency, check that "
                f"{side}_tokenizer, where set, is "
                "of this language, or raise max_unknown."
            )
