"""Train one model in transformers' Seq2SeqTrainer and by this project's command, on Multi30k, and compare the runs.

    python parity_tests/same_run_in_trainer.py [--steps 600] [--sentences 500] [--json FILE]

A Marian-like model of 2+2 layers of width 64 starts from the same random weights on both sides. Seq2SeqTrainer trains
it as its users do; `jax-transformer train` trains the ported model with the options that docs/coming_from.md gives for
Trainer's: AdamW, a linear schedule with a warm-up, weight decay on kernels alone, clipping. Both compute in float32
without dropout, on the batches of this project, in its order. The losses are compared, and greedy translations of the
test set, which sacreBLEU scores. Rounding differs, and training amplifies it: Trainer also runs in float64, to show how
far each run in float32 is from it.

The text is multi30k under data in JAX_TRANSFORMER_SHARED. Exit code 1: one of the first 100 losses differs from
Trainer's by more than 2e-6 of its value.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from fine_tune_on_both_sides import (
    bleu_scores,
    lines_of,
    make_marian,
    run_config,
    translations,
    unpacked,
)
from recipes_in_torch import NO_DROPOUT

from jax_transformer.cli import main as command
from jax_transformer.config.files import dump_config
from jax_transformer.config.run import RunConfig
from jax_transformer.data.batching import Batch
from jax_transformer.data.preparation import prepare
from jax_transformer.decoding.translation import translate
from jax_transformer.storage.model_directory import load_model
from jax_transformer.training.batch_schedule import BatchSchedule

RATE, WARMUP, DECAY, CLIP = 3e-3, 100, 0.01, 1.0
EARLY, LARGEST = 100, 2e-6
"""The first losses, before rounding is amplified, and their largest relative difference: both sides compute in
float32."""
VALIDATED = 100
"""Validation pairs; no run is stopped or chosen by them."""


TITLES = {
    "trainer": "`Seq2SeqTrainer`",
    "jax": "`jax-transformer train`",
    "trainer_float64": "`Seq2SeqTrainer` in float64",
}


class Run(NamedTuple):
    """One training: the loss of each step, and translations by its model."""

    losses: list[float]
    texts: list[str]


def trainer_arguments(folder: Path, steps: int) -> dict[str, Any]:
    """Returns the arguments of Seq2SeqTrainingArguments."""
    return {
        "output_dir": str(folder / "trainer"),
        "max_steps": steps,
        "per_device_train_batch_size": 1,  # an item of the data is a whole batch
        "learning_rate": RATE,
        "lr_scheduler_type": "linear",
        "warmup_steps": WARMUP,
        "weight_decay": DECAY,
        "max_grad_norm": CLIP,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "remove_unused_columns": False,
        "use_cpu": True,
        "disable_tqdm": True,
    }


def train_options(folder: Path, steps: int) -> list[str]:
    """Returns Trainer's arguments, and its defaults, as options of the command."""
    return [
        *("--config", str(folder / "run.yaml"), "--init-from", str(folder / "model")),
        *("--run-dir", str(folder / "run"), "--train.max-steps", str(steps)),
        *("--train.learning-rate", str(RATE), "--train.schedule", "linear"),
        *("--train.warmup-steps", str(WARMUP), "--train.warmup-from-zero"),
        *("--train.weight-decay", str(DECAY), "--train.weight-decay-kind", "decoupled"),
        *("--train.no-decay", "*/bias", "*norm/*", "--train.clip-norm", str(CLIP)),
        *("--train.adam-b1", "0.9", "--train.adam-b2", "0.999", "--train.adam-eps", "1e-8"),
        *("--train.label-smoothing", "0", "--train.log-every", "1"),
        *("--train.evaluate-every", str(steps), "--train.evaluate-sentences", "0"),
    ]


def train_there(folder: Path, model: Any, batches: list[Batch], sources: list[str]) -> Run:
    """Trains a model by Seq2SeqTrainer."""
    pad = model.config.pad_token_id

    def collated(items: list[Batch]) -> dict[str, torch.Tensor]:
        source, decoder_input, labels = (torch.from_numpy(ids).long() for ids in items[0][:3])
        return {
            "input_ids": source,
            "attention_mask": (source != pad).long(),
            "decoder_input_ids": decoder_input,
            "labels": labels.masked_fill(labels == pad, -100),
        }

    class InOrder(transformers.Seq2SeqTrainer):
        def _get_train_sampler(self, *_: Any) -> torch.utils.data.Sampler[int]:
            return torch.utils.data.SequentialSampler(batches)

    trainer = InOrder(
        model=model,
        args=transformers.Seq2SeqTrainingArguments(**trainer_arguments(folder, len(batches))),
        train_dataset=batches,
        data_collator=collated,
    )
    trainer.train()
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    return Run(losses, translations(model.eval().float(), folder / "hf", sources))


def train_here(folder: Path, steps: int, sources: list[str]) -> Run:
    """Trains by the command."""
    options = train_options(folder, steps)
    print("jax-transformer train finetune", shlex.join(options), flush=True)
    if code := command(["train", "finetune", *options]):
        raise SystemExit(code)
    records = map(json.loads, lines_of(folder / "run" / "metrics.jsonl"))
    losses = [record["loss"] for record in records if "loss" in record]
    return Run(losses, translate(load_model(folder / "run"), sources))


def make_model_without_dropout(folder: Path, files: dict[str, tuple[Path, Path]]) -> RunConfig:
    """Writes a model with random weights for both sides; returns the config of a run from it."""
    transformers.set_seed(0)
    (folder / "hf").mkdir(parents=True)
    model = make_marian(folder / "hf", files["train"])
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        setattr(model.config, name, 0.0)
    model.save_pretrained(folder / "hf")
    config = run_config(folder, files)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, **NO_DROPOUT))
    (folder / "run.yaml").write_text(dump_config(config), encoding="utf-8")
    return config


def train_all(folder: Path, files: dict[str, tuple[Path, Path]], steps: int, sources: list[str]) -> dict[str, Run]:
    """Returns the runs of Seq2SeqTrainer, in float32 and float64, and of the command here."""
    config = make_model_without_dropout(folder, files)
    planned = dataclasses.replace(config, train=dataclasses.replace(config.train, max_steps=steps))
    batches = list(islice(BatchSchedule(planned, prepare(config.data)).batches_from(0), steps))
    same, exact = (transformers.MarianMTModel.from_pretrained(folder / "hf") for _ in range(2))
    return {
        "trainer": train_there(folder, same, batches, sources),
        "jax": train_here(folder, steps, sources),
        "trainer_float64": train_there(folder, exact.double(), batches, sources),
    }


def shorten(text: tuple[Path, Path], count: int) -> tuple[Path, Path]:
    """Cuts both files after so many lines."""
    for path in text:
        path.write_text("".join(f"{line}\n" for line in lines_of(path)[:count]), encoding="utf-8")
    return text


def compare_runs(runs: dict[str, Run], references: list[str]) -> dict[str, Any]:
    """Returns the losses and scores of all runs, and how far they are from Trainer's, in float32 and float64."""
    expected, exact = runs["trainer"], runs["trainer_float64"]
    errors = {name: relative_errors(run.losses, expected.losses) for name, run in runs.items()}
    return {
        "losses": {name: run.losses for name, run in runs.items()},
        "largest_early_difference": {name: max(error[:EARLY]) for name, error in errors.items()},
        "largest_difference": {name: max(error) for name, error in errors.items()},
        "largest_from_float64": {name: max(relative_errors(run.losses, exact.losses)) for name, run in runs.items()},
        "bleu": bleu_scores({name: run.texts for name, run in runs.items()}, references),
        "equal_translations": {
            name: sum(one == other for one, other in zip(run.texts, expected.texts, strict=True))
            for name, run in runs.items()
        },
        "sentences": len(references),
    }


def relative_errors(losses: list[float], expected: list[float]) -> list[float]:
    return [abs(loss - other) / other for loss, other in zip(losses, expected, strict=True)]


def table(found: dict[str, Any], shown: int = 7) -> str:
    """Returns the losses of some steps, the first and the last among them, and the rest of the result in Markdown."""
    names = list(found["losses"])
    total = len(found["losses"]["trainer"])
    steps = sorted({round(i * (total - 1) / (shown - 1)) for i in range(shown)})
    rows = [("", *(TITLES[name] for name in names)), ("---",) * (len(names) + 1)]
    rows += [(f"loss of step {step + 1}", *(f"{found['losses'][name][step]:.6f}" for name in names)) for step in steps]
    for title, key, pattern in (
        (f"largest relative difference of the first {EARLY} losses", "largest_early_difference", "{:.1e}"),
        ("largest relative difference of a loss", "largest_difference", "{:.1e}"),
        ("the same, from Trainer in float64", "largest_from_float64", "{:.1e}"),
        (f"BLEU, {found['sentences']} sentences", "bleu", "{:.2f}"),
        ("equal translations", "equal_translations", "{}"),
    ):
        rows.append((title, *(pattern.format(found[key][name]) for name in names)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--sentences", type=int, default=500, help="sentences of the test set to translate")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        files = unpacked(Path(os.environ["JAX_TRANSFORMER_SHARED"]), Path(directory))
        files["val"] = shorten(files["val"], VALIDATED)
        sources, references = (lines_of(path)[: options.sentences] for path in files["test_2016_flickr"])
        found = compare_runs(train_all(Path(directory) / "marian", files, options.steps, sources), references)
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(not found["largest_early_difference"]["jax"] <= LARGEST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
