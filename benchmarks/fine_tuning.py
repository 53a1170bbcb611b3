"""A step of fine-tuning here beside transformers' Trainer, eager and compiled, for models of Marian's and T5's sizes.

    python benchmarks/fine_tuning.py [--rounds 7] [--threads 2] [--rows 16] [--json benchmarks/results/fine_tuning.json]

Random weights of transformers, ported; the same batch of random tokens without padding; AdamW, gradients clipped to
norm 1, a linear schedule, each model's own dropout, float32. Trainer runs as users run it, with its data loader and its
default optimizer. Each contestant is a process of its own; in every round each takes the same number of steps, one
after the other, in turns. The ratio of a round is the tokens/s here over those of the better Trainer.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from train_step import machine, quartiles, say

from jax_transformer.runtime.allocator import keep_freed_memory

CONTESTANTS = ("here", "Trainer", "Trainer compiled")
LENGTH, MOST_STEPS = 32, 100_000
KINDS = {
    "Marian (opus-mt)": ("MarianMTModel", "MarianConfig", {"vocab_size": 58101, "d_model": 512, "encoder_layers": 6,
        "decoder_layers": 6, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "encoder_attention_heads": 8,
        "decoder_attention_heads": 8, "pad_token_id": 58100, "decoder_start_token_id": 58100, "eos_token_id": 0,
        "forced_eos_token_id": 0, "scale_embedding": True}),
    "T5 small": ("T5ForConditionalGeneration", "T5Config", {"decoder_start_token_id": 0}),
}  # fmt: skip
"""Name → class, config class, and what its config says beside the defaults."""


def make_module(kind: str) -> Any:
    import transformers

    class_name, config_name, options = KINDS[kind]
    transformers.set_seed(0)
    return getattr(transformers, class_name)(getattr(transformers, config_name)(**options))


def token_ids(kind: str, rows: int) -> tuple[Any, Any]:
    """Returns source ids and labels [rows, LENGTH], none of them special."""
    import numpy as np

    generator = np.random.default_rng(0)
    size = KINDS[kind][2].get("vocab_size", 32128)
    return generator.integers(4, size - 200, (rows, LENGTH)), generator.integers(4, size - 200, (rows, LENGTH))


# --- the two sides: each calls `next_steps` for the number of steps to take, again and again


def run_here(kind: str, rows: int, directory: Path) -> None:
    import jax
    import numpy as np

    from jax_transformer.config.presets import get_preset
    from jax_transformer.data.batching import Batch
    from jax_transformer.porting import import_checkpoint
    from jax_transformer.training.state import init_state
    from jax_transformer.training.step import make_train_step

    model = import_checkpoint(directory)
    config = get_preset("finetune").train
    source, labels = token_ids(kind, rows)
    first = np.full((rows, 1), model.generation.decoder_start_id)
    ids = (source, np.concatenate([first, labels[:, :-1]], axis=1), labels)
    batch = jax.device_put(Batch(*(np.asarray(array, np.int32) for array in ids)))
    state = init_state(model.config, config, model.params)
    step = make_train_step(model.config, config)
    state, metrics = step(state, batch)
    loss = float(metrics["loss"])
    while count := next_steps(loss):
        for _ in range(count):
            state, metrics = step(state, batch)
        loss = float(metrics["loss"])


def run_trainer(kind: str, rows: int, directory: Path, *, compiled: bool) -> None:
    import torch
    import transformers

    source, labels = (torch.from_numpy(ids) for ids in token_ids(kind, rows))
    data = [{"input_ids": source[row], "attention_mask": torch.ones(LENGTH, dtype=torch.long), "labels": labels[row]}
            for row in range(rows)]  # fmt: skip

    class Turns(transformers.TrainerCallback):
        left = 1

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.left -= 1
            if not self.left:
                self.left = next_steps(0.0)
                if not self.left:
                    os._exit(0)

    arguments = transformers.TrainingArguments(
        str(directory / "trainer"), max_steps=MOST_STEPS, per_device_train_batch_size=rows, learning_rate=5e-5,
        report_to=[], use_cpu=True, disable_tqdm=True, torch_compile=compiled, save_strategy="no",
        logging_strategy="no",
    )  # fmt: skip
    module = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory)
    transformers.Trainer(model=module, args=arguments, train_dataset=data, callbacks=[Turns()]).train()


STARTED: list[float] = []


def next_steps(loss: float) -> int:
    """Tells how long the last steps took; returns how many to take next, 0 at the end."""
    if STARTED:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        say(seconds=time.perf_counter() - STARTED[-1], loss=loss, peak_mib=peak)
    line = sys.stdin.readline()
    STARTED.append(time.perf_counter())
    return int(line) if line else 0


def worker(options: argparse.Namespace) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    keep_freed_memory()
    STARTED.append(time.perf_counter())  # the first figure is the start, with all that it compiles
    directory = Path(options.directory)
    if options.worker == "here":
        run_here(options.kind, options.rows, directory)
    else:
        import torch

        torch.set_num_threads(options.threads)
        run_trainer(options.kind, options.rows, directory, compiled=options.worker != "Trainer")


class Contestant:
    """Runs one side in a process."""

    def __init__(self, name: str, kind: str, directory: Path, options: argparse.Namespace) -> None:
        numbers = ["--threads", str(options.threads), "--rows", str(options.rows)]
        command = [sys.executable, "-W", "ignore", __file__, "--worker", name, "--kind", kind, *numbers]
        self.name, pipe = name, subprocess.PIPE
        self.process = subprocess.Popen([*command, "--directory", str(directory)], stdin=pipe, stdout=pipe, text=True)
        self.start = self._answer()

    def run(self, steps: int) -> dict[str, float]:
        assert self.process.stdin is not None
        print(steps, file=self.process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("RESULT "):
                found: dict[str, float] = json.loads(line.removeprefix("RESULT "))
                return found
        raise RuntimeError(f"{self.name} ended with exit code {self.process.wait()}")


def measure(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        make_module(kind).save_pretrained(directory)
        contestants = [Contestant(name, kind, Path(directory), options) for name in CONTESTANTS]
        for contestant in contestants:
            contestant.run(2)
        steps = max(1, round(3.0 / min(contestant.run(1)["seconds"] for contestant in contestants)))
        results: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
        for number in range(options.rounds):
            for k in range(len(contestants)):
                contestant = contestants[(number + k) % len(contestants)]
                time.sleep(0.3)  # until the other's threads have stopped spinning
                results[contestant.name].append(contestant.run(steps))
        for contestant in contestants:
            contestant.close()
    tokens = options.rows * LENGTH * steps
    speed = {name: [tokens / one["seconds"] for one in found] for name, found in results.items()}
    better = max(CONTESTANTS[1:], key=lambda name: statistics.median(speed[name]))
    return {
        "model": kind,
        "rows": options.rows,
        "steps_per_round": steps,
        "tokens_per_second": speed,
        "peak_mib": {name: found[-1]["peak_mib"] for name, found in results.items()},
        "start_seconds": {contestant.name: contestant.start["seconds"] for contestant in contestants},
        "better_trainer": better,
        "ratios": [here / other for here, other in zip(speed["here"], speed[better], strict=True)],
    }


def report(result: dict[str, Any]) -> None:
    print(f"{result['model']}, {result['rows']} rows of {LENGTH} tokens on each side")
    for name in CONTESTANTS:
        low, median, high = quartiles(result["tokens_per_second"][name])
        start, peak = result["start_seconds"][name], result["peak_mib"][name]
        print(
            f"  {name:17} {median:6,.0f} tokens/s ({low:,.0f} to {high:,.0f})  {peak:6,.0f} MiB  "
            f"first step {start:.1f} s"
        )
    low, median, high = quartiles(result["ratios"])
    print(f"  ratio to {result['better_trainer']}: {median:.2f} ({low:.2f} to {high:.2f})\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--json", type=Path)
    for name in ("worker", "kind", "directory"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    results = []
    for kind in options.kinds:
        results.append(measure(kind, options))
        report(results[-1])
    if options.json:
        content = {"machine": machine(options.threads), "results": results}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
