"""Whether pretraining on plain text helps a tiny T5 that learns to translate from few pairs.

    python benchmarks/pretraining.py [--pairs 1000] [--json benchmarks/results/pretraining.json]

For each of three seeds, a model of the preset `pretrain` (64 wide, 2+2 layers) is pretrained by span corruption on the
lines of Multi30k's training text, English and German, without their pairing. Then it is fine-tuned on the first pairs
of the same text; so is a model with the same tokenizer, steps and batches that begins with random weights. Reported are
the validation loss (nats per token), and chrF and BLEU on 200 sentences of
test_2016_flickr, greedily, with the mean gain and its 95 %
interval over the seeds (paired, Student's t). JAX_TRANSFORMER_SHARED names the folder of the text.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from jax_transformer.cli import main as run_command
from jax_transformer.storage.model_directory import load_model

SEEDS = (0, 1, 2)
T_95 = {2: 4.303}
"""Student's t of a two-sided 95 % interval, by degrees of freedom."""
MODEL = ["--model.d-model", "64", "--model.d-ff", "128"]


def text_of(name: str, most: int | None = None) -> list[str]:
    """Returns the lines of one of Multi30k's files."""
    path = Path(os.environ["JAX_TRANSFORMER_SHARED"], "data", "multi30k", f"{name}.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()[:most]


def write(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def trained(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """Trains by the command; returns the last record of the run's model."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run_command(["train", "pretrain", *MODEL, *options, "--run-dir", str(folder / name)])
    if code:
        raise SystemExit(f"{name}: exit code {code}\n{printed.getvalue()[-2000:]}")
    return load_model(folder / name).training or {}


def gain(with_it: list[float], without: list[float]) -> dict[str, float]:
    """Returns the mean difference with half the width of its interval."""
    differences = [a - b for a, b in zip(with_it, without, strict=True)]
    half = T_95[len(differences) - 1] * statistics.stdev(differences) / len(differences) ** 0.5
    return {"mean": statistics.mean(differences), "half_width_95": half}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--pretraining-steps", type=int, default=100)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    started = time.process_time()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common = ["--data.cache-dir", str(folder / "cache"), "--data.max-length", "64"]
        sides = {side: text_of(f"train.{side}") for side in ("en", "de")}
        plain = write(folder / "plain", [line for lines in sides.values() for line in lines])
        held_out = write(folder / "held_out", [line for side in sides for line in text_of(f"val.{side}", 500)])
        pairs = [write(folder / f"train.{side}", lines[: options.pairs]) for side, lines in sides.items()]
        valid = [write(folder / f"valid.{side}", text_of(f"val.{side}")) for side in sides]
        test = [write(folder / f"test.{side}", text_of(f"test_2016_flickr.{side}", 200)) for side in sides]
        for seed in SEEDS:
            trained(
                folder, f"pretrained{seed}", *common, "--data.train", plain, "--data.valid", held_out,
                "--data.vocab-size", "2000", "--data.batch-tokens", "2048", "--train.seed", str(seed),
                "--train.max-steps", str(options.pretraining_steps), "--train.evaluate-every",
                str(options.pretraining_steps),
            )  # fmt: skip
            first = folder / f"pretrained{seed}" / "model"
            tuning = [
                *common, "--data.objective", "translation", "--data.no-join-lines",
                "--data.train", *pairs, "--data.valid", *valid,
                "--data.test", *test, "--data.batch-tokens", "1024", "--train.seed", str(seed), "--train.max-steps",
                str(options.steps), "--train.evaluate-every", str(options.steps),
            ]  # fmt: skip
            tokenizers = [f"--data.{side}-tokenizer={first / side}_tokenizer.json" for side in ("source", "target")]
            record = {"seed": seed}
            for kind, more in (
                ("pretrained", ["--init-from", str(first)]),
                ("random", [*tokenizers, "--data.tokenizers-as-stored"]),
            ):
                found = trained(folder, f"{kind}_tuned{seed}", *tuning, *more)
                scores = found["scores"]["test"]
                record |= {
                    f"{kind}_loss": found["valid_loss"], f"{kind}_chrf": scores["chrf"], f"{kind}_bleu": scores["bleu"]
                }  # fmt: skip
            results.append(record)
            print(record, flush=True)
    gains = {
        what: gain(*([one[f"{kind}_{what}"] for one in results] for kind in ("pretrained", "random")))
        for what in ("loss", "chrf", "bleu")
    }
    seconds = time.process_time() - started
    for what, found in gains.items():
        print(f"{what}: {found['mean']:+.3f} ± {found['half_width_95']:.3f} with pretraining")
    print(f"{seconds:.0f} processor seconds")
    if options.json:
        content = {
            "pairs": options.pairs, "pretraining_steps": options.pretraining_steps, "steps": options.steps,
            "runs": results, "gains": gains, "processor_seconds": seconds, "machine": platform.processor(),
        }  # fmt: skip
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
