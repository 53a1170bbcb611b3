"""Training steps per second: this project's jitted step beside torch.nn.Transformer, eager and compiled.

    python benchmarks/train_step.py [--rounds 9] [--threads 2] [--json benchmarks/results/train_step.json]

Same arithmetic on both sides (pre-norm with final norms, dropout 0.1 on embeddings, attention weights, hidden layers
and sublayer outputs, masks from the ids, label smoothing 0.1, Adam, float32), same threads, same batches. Each
contestant is a process of its own; in every round each runs the same number of steps, one after the other, in turns.
All processes tell glibc to keep freed memory, which is what `jax-transformer train` does and helps PyTorch as well. The
ratio of a round is JAX's tokens/s over those of the better PyTorch setting, the one with the higher median.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from jax_transformer.runtime.allocator import keep_freed_memory


class Size(NamedTuple):
    layers: int
    d_model: int
    d_ff: int
    heads: int
    vocab: int
    batch: int
    length: int


SIZES = (Size(4, 128, 256, 4, 10000, 64, 20), Size(6, 256, 1024, 8, 8000, 64, 16), Size(6, 512, 2048, 8, 16000, 32, 32))
CONTESTANTS = ("jax", "torch eager", "torch compile")
LEARNING_RATE, DROPOUT, SMOOTHING = 1e-4, 0.1, 0.1


# --- the two sides: each returns a function that runs a number of steps and waits for them


def jax_steps(size: Size) -> Callable[[int], float]:
    import jax
    import numpy as np

    from jax_transformer.config.model import TransformerConfig
    from jax_transformer.config.run import TrainConfig
    from jax_transformer.data.batching import Batch
    from jax_transformer.training.state import init_state
    from jax_transformer.training.step import make_train_step

    model = TransformerConfig(
        source_vocab_size=size.vocab,
        target_vocab_size=size.vocab,
        d_model=size.d_model,
        num_heads=size.heads,
        d_ff=size.d_ff,
        num_encoder_layers=size.layers,
        num_decoder_layers=size.layers,
        max_length=size.length,
        norm_placement="pre",
        final_norm=True,
        dropout_rate=DROPOUT,
    )
    config = TrainConfig(schedule="constant", warmup_steps=0, learning_rate=LEARNING_RATE, label_smoothing=SMOOTHING)
    jitted = make_train_step(model, config)
    batch = jax.device_put(Batch(*(np.asarray(ids, np.int32) for ids in token_ids(size))))
    state = init_state(model, config)
    jax.block_until_ready(state)
    start = time.perf_counter()
    step = jitted.lower(state, batch).compile()
    say(compile_seconds=time.perf_counter() - start)

    def run(count: int) -> float:
        nonlocal state
        for _ in range(count):
            state, metrics = step(state, batch)
        return float(metrics["loss"])

    return run


def torch_steps(size: Size, compiled: bool, threads: int) -> Callable[[int], float]:
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source_embedding = nn.Embedding(size.vocab, size.d_model)
            self.target_embedding = nn.Embedding(size.vocab, size.d_model)
            self.register_buffer("positions", torch.randn(size.length, size.d_model))
            self.transformer = nn.Transformer(
                size.d_model,
                size.heads,
                size.layers,
                size.layers,
                size.d_ff,
                DROPOUT,
                batch_first=True,
                norm_first=True,
            )
            self.head = nn.Linear(size.d_model, size.vocab)
            self.dropout = nn.Dropout(DROPOUT)

        def embed(self, embedding: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
            return self.dropout(embedding(ids) * math.sqrt(size.d_model) + self.positions[: ids.shape[1]])

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            future = torch.ones(size.length, size.length, dtype=torch.bool).triu(1)
            hidden = self.transformer(
                self.embed(self.source_embedding, source),
                self.embed(self.target_embedding, target),
                tgt_mask=future,
                tgt_is_causal=True,
                src_key_padding_mask=source == 0,
                tgt_key_padding_mask=target == 0,
                memory_key_padding_mask=source == 0,
            )
            return self.head(hidden)

    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9, fused=True)
    source, target, labels = (torch.tensor(ids) for ids in token_ids(size))

    def loss_of() -> torch.Tensor:
        logits = model(source, target)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=SMOOTHING
        )

    compute_loss = torch.compile(loss_of) if compiled else loss_of

    def run(count: int) -> float:
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            loss = compute_loss()
            loss.backward()
            optimizer.step()
        return float(loss)

    return run


def token_ids(size: Size) -> list[Any]:
    """Returns source, decoder input and labels [batch, length] without pads."""
    import numpy as np

    generator = np.random.default_rng(0)
    return [generator.integers(4, size.vocab, (size.batch, size.length)) for _ in range(3)]


# --- a contestant's process: reads a number of steps from each line, writes the seconds they took


def worker(contestant: str, size: Size, threads: int) -> None:
    start = time.perf_counter()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    keep_freed_memory()
    run = jax_steps(size) if contestant == "jax" else torch_steps(size, contestant == "torch compile", threads)
    run(1)
    say(start_seconds=time.perf_counter() - start)
    for line in sys.stdin:
        start = time.perf_counter()
        loss = run(int(line))
        say(
            seconds=time.perf_counter() - start,
            loss=loss,
            peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )


def say(**figures: float) -> None:
    print("RESULT " + json.dumps(figures), flush=True)


class Contestant:
    def __init__(self, name: str, size: Size, threads: int, environment: dict[str, str] | None = None) -> None:
        self.name = name
        command = [
            sys.executable,
            "-W",
            "ignore",
            __file__,
            "--worker",
            name,
            "--size",
            json.dumps(size),
            "--threads",
            str(threads),
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
        )
        self.compile_seconds = self.answer()["compile_seconds"] if name == "jax" else None
        self.start_seconds = self.answer()["start_seconds"]

    def answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("RESULT "):
                return json.loads(line.removeprefix("RESULT "))
        raise RuntimeError(f"{self.name} ended with exit code {self.process.wait()}")

    def run(self, steps: int) -> dict[str, float]:
        assert self.process.stdin is not None
        print(steps, file=self.process.stdin, flush=True)
        return self.answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# --- the measurement


def measure(size: Size, rounds: int, threads: int) -> dict[str, Any]:
    compile_seconds = measure_compilation(size, threads)
    contestants = [Contestant(name, size, threads) for name in CONTESTANTS]
    for contestant in contestants:  # past what the first steps allocate and compile
        contestant.run(2)
    one = min(contestant.run(2)["seconds"] / 2 for contestant in contestants)
    steps = max(1, round(1.0 / one))
    results: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for number in range(rounds):
        for k in range(len(contestants)):
            contestant = contestants[(number + k) % len(contestants)]
            time.sleep(0.3)  # until the other's threads have stopped spinning
            results[contestant.name].append(contestant.run(steps))
    for contestant in contestants:
        contestant.close()

    tokens = size.batch * size.length * steps
    speed = {name: [tokens / result["seconds"] for result in results[name]] for name in CONTESTANTS}
    best_torch = max(CONTESTANTS[1:], key=lambda name: statistics.median(speed[name]))
    ratios = [jax / torch for jax, torch in zip(speed["jax"], speed[best_torch], strict=True)]
    return {
        "size": size._asdict(),
        "steps_per_round": steps,
        "tokens_per_second": speed,
        "peak_mib": {name: results[name][-1]["peak_mib"] for name in CONTESTANTS},
        "last_loss": {name: results[name][-1]["loss"] for name in CONTESTANTS},
        "start_seconds": {contestant.name: contestant.start_seconds for contestant in contestants},
        "jax_compile_seconds": compile_seconds,
        "better_torch": best_torch,
        "ratios": ratios,
    }


def measure_compilation(size: Size, threads: int) -> dict[str, float]:
    """Returns the seconds to trace and compile the step, without a cache and with one that the run before filled."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        seconds = {}
        for name in ("cold", "cached"):
            contestant = Contestant("jax", size, threads, environment)
            seconds[name] = contestant.compile_seconds
            contestant.close()
    return seconds


def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def report(result: dict[str, Any]) -> None:
    print(tuple(result["size"].values()), "layers, d_model, d_ff, heads, vocabulary, batch, length")
    for name in CONTESTANTS:
        low, median, high = quartiles(result["tokens_per_second"][name])
        print(f"  {name:14} {median:8,.0f} ({low:,.0f} to {high:,.0f})   {result['peak_mib'][name]:6,.0f} MiB")
    low, median, high = quartiles(result["ratios"])
    print(f"  ratio to {result['better_torch']}: {median:.2f} ({low:.2f} to {high:.2f})")
    compile_seconds = result["jax_compile_seconds"]
    print(
        f"  JAX compiles for {compile_seconds['cold']:.1f} s, with the persistent cache "
        f"{compile_seconds['cached']:.1f} s\n",
        flush=True,
    )


def machine(threads: int) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return {
        "cpu": cpu,
        "threads": threads,
        "python": platform.python_version(),
        "jax": version("jax"),
        "torch": version("torch"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(range(len(SIZES))), help="which of the sizes, from 0"
    )
    parser.add_argument("--json", default="benchmarks/results/train_step.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--size", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, Size(*json.loads(options.size)), options.threads)
        return
    print("target tokens/s: median (quartiles); peak memory of the process\n", flush=True)
    results = []
    for number in options.sizes:
        results.append(measure(SIZES[number], options.rounds, options.threads))
        report(results[-1])
    medians = [statistics.median(result["ratios"]) for result in results]
    print(f"ratios {', '.join(f'{ratio:.2f}' for ratio in medians)}; median {statistics.median(medians):.2f}")
    path = Path(options.json)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(options.threads), "results": results}, indent=1), encoding="utf-8")
    print(f"every round: {path}")


if __name__ == "__main__":
    main()
