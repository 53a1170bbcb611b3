"""What preparation read, counted, dropped and kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from jax_transformer.config.data import DataConfig

USUAL_RATIO = 9.0
"""Pairs whose sides differ in length by more than this factor are counted where max_length_ratio sets none."""


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """What became of the pairs of one split.

    A pair that is dropped is counted under the first reason for it, in the order of the fields; one that is kept, under
    all that apply.
    """

    read: int
    empty: int
    """Pairs with a side that has no token; never counted as too long."""
    too_long: int
    """Pairs with a side longer than max_length, specials included."""
    unequal: int
    """Of train: pairs whose longer side has more than max_length_ratio times the tokens of the shorter, specials aside;
    without a max_length_ratio more than 9 times. Dropped with one."""
    overlapping: int
    """Of train: pairs whose two texts are also a pair of another split. Dropped with drop_overlap."""
    duplicated: int
    """Of train: pairs whose two texts occurred as a pair of train before, with the same source tag. Dropped with
    drop_duplicates."""
    kept: int
    """All, except in train: there those read less those dropped, which the empty and the too long are always."""
    source_tokens: int
    """Of the kept pairs, as are the next three."""
    target_tokens: int
    source_unknown: int
    target_unknown: int
    source_length_counts: tuple[int, ...]
    """Entry n: how many of the pairs read have a source of n tokens, specials included. The last entry counts the
    longer ones too."""
    target_length_counts: tuple[int, ...]
    """The same of targets, with the <eos> that each gets in a batch."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was read, dropped and kept."""

    max_length: int
    max_length_ratio: float
    drop_duplicates: bool
    drop_overlap: bool
    source_vocab_size: int
    target_vocab_size: int
    datasets: tuple[str, ...]
    """The version of each Hugging Face dataset that was read."""
    streaming: bool = False
    """Whether "train" is only the beginning of a stream."""
    splits: dict[str, SplitReport]

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Report:
        """The report that `to_dict` gave, read back from JSON."""
        splits = {
            name: SplitReport(**{key: _frozen(value) for key, value in split.items()})
            for name, split in record["splits"].items()
        }
        return cls(**{key: _frozen(value) for key, value in record.items()} | {"splits": splits})

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The report for people, a line per fact."""
        lines = list(self.datasets)
        lines.append(f"vocabulary: {self.source_vocab_size:,} source and {self.target_vocab_size:,} target tokens")
        if self.streaming:
            train = self.splits["train"]
            lines.append(
                f"train is a stream: what is said of it holds for its first {train.read:,} pairs; its length is unknown"
            )
        for name, split in self.splits.items():
            lines += self.split_lines(name, split)
        return lines

    def split_lines(self, name: str, split: SplitReport) -> list[str]:
        """What became of the pairs of one split, a line per fact."""
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
            (split.duplicated, "seen before in train", fate(self.drop_duplicates, " (drop_duplicates drops them)")),
        ]


def drops(config: DataConfig) -> dict[str, bool]:
    """Which reasons, named as the fields of SplitReport, drop a pair from train, in order."""
    return {
        "empty": True, "too_long": True, "unequal": config.max_length_ratio > 0, "overlapping": config.drop_overlap,
        "duplicated": config.drop_duplicates,
    }  # fmt: skip


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
