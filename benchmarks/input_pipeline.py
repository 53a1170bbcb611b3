"""From text to batches: the cost of preparing a generated corpus, by its size, and the speed of batching it.

    python benchmarks/input_pipeline.py [--pairs 10000 100000 1000000] [--tokenizer bpe] [--format csv]
        [--json benchmarks/results/input_pipeline.json] [--plot docs/pictures/input_pipeline.png]

Sentences have a Zipfian vocabulary of 60,000 made-up words and a log-normal length, 12 words in the median. Each size
is prepared by a process of its own, whose peak of resident memory includes the interpreter and its libraries. Beside
the seconds on the clock stand those of the processor, which other work on the machine leaves nearly as they are.

Batches are those of the preset `tiny`, made as in training, by a thread that works ahead, and thrown away. How fast
`tiny` takes them is measured in the same run, on the smallest corpus: training steps of the shape that comes most
often.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.config.presets import get_preset
from jax_transformer.config.run import RunConfig

if TYPE_CHECKING:
    from jax_transformer.data.preparation import PreparedCorpus

FORMATS = {
    "parallel": ("pairs.source", "pairs.target"),
    "tsv": ("pairs.tsv",),
    "csv": ("pairs.csv",),
    "jsonl": ("pairs.jsonl",),
}
WORDS = 60_000
CHUNK = 50_000
BATCHES = 2000
WARM_STEPS, TIMED_STEPS = 3, 30


def words(generator: np.random.Generator) -> np.ndarray:
    """Returns distinct words of one to five syllables."""
    syllables = [
        c + v for c in ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "sch", "th") for v in "aeiou"
    ]
    found: dict[str, None] = {}
    while len(found) < WORDS:
        found["".join(generator.choice(syllables, generator.integers(1, 6)))] = None
    return np.array(list(found), object)


def write_pairs(folder: Path, form: str, count: int) -> list[str]:
    """Writes `count` pairs and returns the paths of the files."""
    generator = np.random.default_rng(0)
    vocabularies = words(generator), words(generator)
    shares = 1 / np.arange(1, WORDS + 1)
    shares /= shares.sum()
    paths = [folder / name for name in FORMATS[form]]
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        lengths = np.clip(generator.lognormal(np.log(12), 0.5, size), 1, 100).astype(int)
        sides = []
        for vocabulary in vocabularies:
            drawn = vocabulary[np.searchsorted(np.cumsum(shares), generator.random(lengths.sum()))]
            sides.append([" ".join(some) + " ." for some in np.split(drawn, np.cumsum(lengths)[:-1])])
        pairs = list(zip(*sides, strict=True))
        if form == "parallel":
            lines = [list(side) for side in sides]
        elif form == "jsonl":
            lines = [[json.dumps({"source": source, "target": target}) for source, target in pairs]]
        else:
            lines = [[("," if form == "csv" else "\t").join(pair) for pair in pairs]]
        for path, some in zip(paths, lines, strict=True):
            with open(path, "a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in some)
    return [str(path) for path in paths]


def run_config(files: list[str], tokenizer: str, cache: str) -> RunConfig:
    tiny = get_preset("tiny")
    joint = tokenizer in ("bpe", "unigram")
    data: Any = {"tokenizer": tokenizer, "vocab_size": 8000, "joint_vocabulary": joint}
    return replace(
        tiny,
        model=replace(tiny.model, share_embeddings=joint),
        data=replace(tiny.data, train=tuple(files), valid_pairs=1000, test_pairs=1000, cache_dir=cache, **data),
    )


def measure(files: list[str], tokenizer: str, cache: str) -> dict[str, float]:
    """Prepares the files in this process, and batches them."""
    from jax_transformer.data.preparation import prepare

    run = run_config(files, tokenizer, cache)
    config = run.data
    started = time.perf_counter()
    stages: dict[str, float] = {}
    stage = ""

    def log(line: str) -> None:
        nonlocal stage
        stage = line.split(" ")[0] if not line.startswith("encoding") else "encoding"
        stages.setdefault(stage, time.perf_counter() - started)

    corpus = prepare(config, log)
    seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    prepare(config)
    load_seconds = time.perf_counter() - started
    stored = sum(path.stat().st_size for path in corpus.directory.iterdir())
    return {
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / 1024,
        "load_seconds": load_seconds,
        "stored_mb": stored / 2**20,
        "kept": corpus.report.splits["train"].kept,
        **{f"until_{name}": value for name, value in stages.items()},
        **batch_figures(run, corpus),
    }


def batch_figures(run: RunConfig, corpus: PreparedCorpus) -> dict[str, float]:
    """Measures choosing the shapes, planning an epoch, and batching."""
    from jax_transformer.data.loader import prefetch
    from jax_transformer.training.batch_schedule import BatchSchedule

    started = time.perf_counter()
    schedule = BatchSchedule(run, corpus)
    schedule_seconds = time.perf_counter() - started
    with prefetch(schedule.batches_from(0)) as stream:
        next(stream)  # after it an epoch is planned
        started = time.perf_counter()
        count = sum(1 for _ in islice(stream, BATCHES))
        seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"schedule_seconds": schedule_seconds, "batches_per_second": count / seconds, "peak_mb_with_batches": peak}


def consumption(files: list[str], tokenizer: str, cache: str) -> dict[str, float]:
    """Measures how many batches per second the preset `tiny` trains on."""
    import jax

    from jax_transformer.data.preparation import prepare
    from jax_transformer.runtime.allocator import keep_freed_memory
    from jax_transformer.training.batch_schedule import BatchSchedule
    from jax_transformer.training.fitting import fit_config
    from jax_transformer.training.state import init_state
    from jax_transformer.training.step import make_train_step

    keep_freed_memory()
    run = run_config(files, tokenizer, cache)
    corpus = prepare(run.data)
    model = fit_config(run.model, corpus)
    schedule = BatchSchedule(run, corpus)
    batches = list(islice(schedule.batches_from(0), 200))
    usual = Counter(batch.labels.shape for batch in batches).most_common(1)[0][0]
    batches = [batch for batch in batches if batch.labels.shape == usual]
    state, step = init_state(model, run.train), make_train_step(model, run.train)
    for number, batch in enumerate(batches[:WARM_STEPS] + batches[:TIMED_STEPS]):
        if number == WARM_STEPS:
            jax.block_until_ready(state)
            started = time.perf_counter()
        state, _ = step(state, batch)
    jax.block_until_ready(state)
    return {"batches_consumed_per_second": min(len(batches), TIMED_STEPS) / (time.perf_counter() - started)}


def draw(rows: list[dict[str, float]], consumed: float, file: str) -> None:
    """Draws cost against size: three panels with the number of pairs on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    pairs = [row["pairs"] for row in rows]
    panels = figure.subplots(1, 3)
    for axes, title, unit in zip(
        panels, ("Preparation", "Peak memory", "Batches"), ("processor seconds", "MiB", "a second"), strict=True
    ):
        axes.set(title=title, xlabel="pairs", ylabel=unit, xscale="log")
        axes.grid(alpha=0.3)
    panels[0].plot(pairs, [row["processor_seconds"] for row in rows], "o-")
    panels[0].set_yscale("log")
    panels[1].plot(pairs, [row["peak_mb"] for row in rows], "o-", label="preparing")
    panels[1].plot(pairs, [row["peak_mb_with_batches"] for row in rows], "s--", label="and making batches")
    panels[1].set_ylim(bottom=0)
    panels[2].plot(pairs, [row["batches_per_second"] for row in rows], "o-", label="made")
    panels[2].axhline(20 * consumed, color="C1", linestyle="--", label="20 times what tiny trains on")
    panels[2].set_ylim(bottom=0)
    for axes in panels[1:]:
        axes.legend()
    figure.savefig(file, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--tokenizer", default="bpe")
    parser.add_argument("--format", choices=FORMATS, default="parallel")
    parser.add_argument("--json")
    parser.add_argument("--plot")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--consume", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        cache, *files = options.measure
        print(json.dumps(measure(files, options.tokenizer, cache)))
        return
    if options.consume:
        cache, *files = options.consume
        print(json.dumps(consumption(files, options.tokenizer, cache)))
        return
    rows: list[dict[str, float]] = []
    consumed = 0.0
    for count in options.pairs:
        with tempfile.TemporaryDirectory() as folder:
            files = write_pairs(Path(folder), options.format, count)
            text = sum(Path(file).stat().st_size for file in files) / 2**20
            row = {"pairs": count, "text_mb": text, **in_a_process("--measure", options.tokenizer, folder, files)}
            consumed = (
                consumed or in_a_process("--consume", options.tokenizer, folder, files)["batches_consumed_per_second"]
            )
            row["times_consumed"] = row["batches_per_second"] / consumed
        rows.append(row)
        print(
            "  ".join(
                f"{key} {value:,.1f}" if isinstance(value, float) else f"{key} {value:,}" for key, value in row.items()
            ),
            flush=True,
        )
    if options.json:
        machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
        record = {
            "machine": machine,
            "tokenizer": options.tokenizer,
            "batches_consumed_per_second": consumed,
            "rows": rows,
        }
        Path(options.json).write_text(json.dumps(record, indent=1))
    if options.plot:
        draw(rows, consumed, options.plot)


def in_a_process(task: str, tokenizer: str, folder: str, files: list[str]) -> dict[str, float]:
    command = [sys.executable, __file__, "--tokenizer", tokenizer, task, f"{folder}/cache", *files]
    result: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return result


if __name__ == "__main__":
    main()
