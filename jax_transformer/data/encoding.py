"""Encodes pairs to token ids, drops unsuitable ones, and counts the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from jax_transformer.config.data import DataConfig
from jax_transformer.data.duplicates import Flags
from jax_transformer.data.framing import target_frames
from jax_transformer.data.report import USUAL_RATIO, SplitReport, drops
from jax_transformer.data.tables import Pair
from jax_transformer.data.token_pairs import SIDES
from jax_transformer.data.tokenizers import Tokenizer


class Writer(Protocol):
    """Receives the pairs that are kept."""

    def append(self, ids: Sequence[Sequence[Sequence[int]]], texts: Sequence[Sequence[str]], corpus: int) -> None:
        """Appends pairs of one corpus: (source ids, target ids) and (source texts, target texts)."""


class SplitEncoder:
    """Encodes and counts the pairs of a split, and writes the ones that are kept."""

    def __init__(self, writer: Writer, name: str, tokenizers: tuple[Tokenizer, Tokenizer], config: DataConfig) -> None:
        self._writer, self._is_train, self._tokenizers, self._config = writer, name == "train", tokenizers, config
        self._frames = target_frames(config, tokenizers[1])
        self._counts = dict.fromkeys(("read", *drops(config), "kept"), 0)
        self._tokens, self._unknown, self._mostly_unknown = [0, 0], [0, 0], 0
        self._lengths = [np.zeros(2 * config.max_length + 1, np.int64) for _ in SIDES]

    def add(self, pairs: Sequence[Pair], corpus: int, overlapping: Flags, duplicated: Flags) -> None:
        """Adds pairs of one corpus, with masks of those in another split and of repeated ones."""
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
            self._tokens[side] += int(lengths[keep].sum()) - len(keep) * side  # without the <eos> that is added
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
        """Counts each reason among the pairs that earlier reasons have not dropped; returns the dropped pairs."""
        dropped = np.zeros(len(reasons["empty"]), np.bool_)
        for name, is_dropping in drops(self._config).items():
            counted = reasons[name] & ~dropped
            self._counts[name] += int(counted.sum())
            if is_dropping and self._is_train:
                dropped |= counted
        return dropped
