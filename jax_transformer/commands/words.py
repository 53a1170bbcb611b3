"""Words that people know from other programs, for options of `train`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

MEANT = {
    "--lr": "--train.learning-rate",
    "--batch-size": "--data.batch-tokens, which counts tokens of a batch, not sentences",
    "--per-device-train-batch-size": "--data.batch-tokens, which counts tokens of a batch, not sentences",
    "--max-tokens": "--data.batch-tokens",
    "--epochs": "--train.max-epochs",
    "--num-train-epochs": "--train.max-epochs",
    "--max-epoch": "--train.max-epochs",
    "--steps": "--train.max-steps",
    "--max-update": "--train.max-steps",
    "--warmup": "--train.warmup-steps",
    "--warmup-updates": "--train.warmup-steps",
    "--dtype": "--model.compute-dtype",
    "--bf16": "--model.compute-dtype bfloat16",
    "--fp16": "--model.compute-dtype bfloat16",
    "--dropout": "--model.dropout-rate",
    "--layers": "--model.num-encoder-layers and --model.num-decoder-layers",
    "--heads": "--model.num-heads",
    "--arch": "a preset: jax-transformer presets",
    "--update-freq": "--train.accumulate",
    "--gradient-accumulation-steps": "--train.accumulate",
    "--clip-grad": "--train.clip-norm",
    "--max-grad-norm": "--train.clip-norm",
    "--output-dir": "--run-dir",
    "--save-dir": "--run-dir",
    "--model": "--init-from",
    "--model-name-or-path": "--init-from",
    "--train-file": "--data.train",
    "--validation-file": "--data.valid",
    "--source-lang": "--data.source-language",
    "--target-lang": "--data.target-language",
    "--fsdp": "--parallel.fsdp",
    "--devices": "--parallel.data",
    "--early-stopping-patience": "--train.patience",
}
"""A word of transformers' Trainer, fairseq or common use → what to write here."""


def check_words(arguments: Sequence[str], options: Collection[str]) -> None:
    """Raises ValueError for an option that another program has, or that stands in one of the groups here.

    Args:
      options: the options that there are, such as --train.learning-rate.
    """
    for argument in arguments:
        word = argument.partition("=")[0].replace("_", "-")
        if not word.startswith("--") or "." in word or word in options:
            continue
        inside = [option for option in options if option.rpartition(".")[2] == word.removeprefix("--")]
        if word in MEANT or inside:
            raise ValueError(f"{word}: no such option; expected {MEANT.get(word) or ' or '.join(sorted(inside))}")
