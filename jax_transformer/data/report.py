"""The report of data preparation: pairs read, counted, dropped and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from jax_transformer.config.data import DataConfig

MUCH_UNKNOWN = 0.1
"""Share of unknown tokens above which a split other than train gets a warning, if train has less than half of it."""
USUAL_RATIO = 9.0
"""Length ratio above which pairs are counted if max_length_ratio sets none."""


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
    """Source tokens of the kept pairs; the next three also count kept pairs only."""
    target_tokens: int
    source_unknown: int
    target_unknown: int
    source_length_counts: tuple[int, ...]
    """Entry n: number of pairs read with a source of n tokens, specials included. The last entry adds longer ones."""
    target_length_counts: tuple[int, ...]
    """The same for targets, including the <eos> that a batch adds."""
    mostly_unknown: int = 0
    """Pairs kept with a side more than half of whose tokens are unknown, specials and tags excluded."""

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> SplitReport:
        """Returns the report whose fields `record` holds, read back from JSON."""
        return cls(**{name: _frozen(value) for name, value in record.items()})


def add_reports(reports: Sequence[SplitReport]) -> SplitReport:
    """Returns the counts of all reports together; they must have the same max_length."""

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
                f"train is a stream: what is said of it holds for the {train.read:,} pairs of its first shard; its "
                "length is unknown"
            )
        for name, split in self.splits.items():
            lines += self.split_lines(name, split)
        return lines + self._warnings()

    def _warnings(self) -> list[str]:
        """Returns a line for each thing that a run can do, and that nobody means."""
        lines = [
            f"warning: {name}: the sources look like train's targets, and the targets like train's sources: are the "
            "files in each other's places?"
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
    """Returns whether each reason, a field of SplitReport, drops a training pair, in order."""
    return {
        "empty": True, "too_long": True, "unequal": config.max_length_ratio > 0, "overlapping": config.drop_overlap,
        "duplicated": config.drop_duplicates,
    }  # fmt: skip


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
