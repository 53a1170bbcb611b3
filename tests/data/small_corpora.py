"""What tests of preparation share: a corpus of 23 pairs, a config that reads it, and everything of it that a user
sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jax_transformer.config.run import DataConfig
from jax_transformer.data.preparation import PreparedCorpus

Pairs = list[tuple[str, str]]
PAIRS = [(" ".join("abcdefG"[: k % 7 + 1]), " ".join("tuvwxyz"[k % 7 :])) for k in range(23)]


def write(path: Path, pairs: Pairs) -> str:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return str(path)


def config_in(folder: Path, pairs: Pairs = PAIRS, **options: Any) -> DataConfig:
    options = {"valid": (write(folder / "valid.tsv", pairs),)} | options
    return DataConfig(train=(write(folder / "train.tsv", pairs),), cache_dir=str(folder / "cache"), **options)


def contents(corpus: PreparedCorpus) -> list[Any]:
    """Everything in a prepared corpus that a user sees."""
    splits = [
        (
            name,
            [ids.tolist() for k in range(len(split)) for ids in (split.source(k), split.target(k))],
            split.source_texts(),
            split.target_texts(),
        )
        for name, split in corpus.splits.items()
    ]
    return [*splits, corpus.report, corpus.source_tokenizer.to_json(), corpus.target_tokenizer.to_json()]


def fail_if_called(line: str) -> None:
    raise AssertionError(f"prepared again: {line}")
