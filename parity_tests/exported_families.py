"""Trains small models of transformers' families on Multi30k, for `benchmarks/export.py` to export and decode.

    python parity_tests/exported_families.py FOLDER [--kinds marian t5 bart m2m_100] [--steps 400]

Each family starts in transformers with random weights and a tokenizer of its own, is ported, and is trained here by the
preset finetune: FOLDER/KIND/run is its run. The text is multi30k under data in JAX_TRANSFORMER_SHARED; it, and
sentences of the phrasebook, are left in FOLDER.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers
from fine_tune_on_both_sides import SIZES, make_marian, make_t5, unpacked
from text_families import FAMILIES

from jax_transformer.cli import main as command
from jax_transformer.data.phrasebook.pairs import sample_pairs

TAGS = {"m2m_100": ["--data.source-tag", "__en__", "--data.target-tag", "__de__"]}


def make_fairseq(kind: str) -> Callable[[Path, tuple[Path, Path]], Any]:
    """Returns a function that makes a model of a family with the tokenizer of the text tests."""

    def make(folder: Path, text: tuple[Path, Path]) -> Any:
        family = FAMILIES[kind]
        tokenizer = family.tokenizer(folder)
        tokenizer.save_pretrained(folder)
        config = family.config(**SIZES, **family.ids, vocab_size=len(tokenizer) + family.more_rows)
        config.num_hidden_layers = SIZES["encoder_layers"]
        return family.model(config)

    return make


KINDS: dict[str, Callable[[Path, tuple[Path, Path]], Any]] = {
    "marian": make_marian,
    "t5": make_t5,
    "bart": make_fairseq("bart"),
    "m2m_100": make_fairseq("m2m_100"),
}


def train(kind: str, folder: Path, files: dict[str, tuple[Path, Path]], steps: int) -> None:
    """Writes `hf`, `model` and `run` in a folder."""
    transformers.set_seed(0)
    (folder / "hf").mkdir(parents=True)
    KINDS[kind](folder / "hf", files["train"]).save_pretrained(folder / "hf")
    assert command(["port", str(folder / "hf"), str(folder / "model")]) == 0
    text = [f"--data.{part}" for part in ("train", "valid")]
    train, valid = (list(map(str, files[split])) for split in ("train", "val"))
    options = {
        "init-from": folder / "model",
        "run-dir": folder / "run",
        "data.max-length": 96,
        "data.batch-tokens": 1024,
        "data.num-shapes": 2,
        "data.cache-dir": folder / "cache",
        "train.max-steps": steps,
        "train.learning-rate": 3e-3,
        "train.warmup-steps": 50,
        "train.evaluate-every": steps,
        "train.evaluate-sentences": 0,
    }
    pairs = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    assert command(["train", "finetune", text[0], *train, text[1], *valid, *pairs, *TAGS.get(kind, [])]) == 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    files = unpacked(Path(os.environ["JAX_TRANSFORMER_SHARED"]), options.folder)
    for side, texts in zip(("en", "de"), zip(*sample_pairs("test", 500), strict=True), strict=True):
        (options.folder / f"phrasebook.{side}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    for kind in options.kinds:
        train(kind, options.folder / kind, files, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
