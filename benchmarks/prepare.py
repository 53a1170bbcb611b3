"""Time and memory of preparing a corpus of generated pairs, by its size.

    python benchmarks/prepare.py [--pairs 10000 100000 1000000] [--tokenizer bpe] [--format csv] [--json benchmarks/results/prepare.json]

Sentences have a Zipfian vocabulary of 60,000 made-up words and a log-normal length, 12 words in the median. Each size is prepared by a
process of its own, whose peak of resident memory includes the interpreter and its libraries. Beside the seconds on the clock stand those of
the processor, which other work on the machine leaves nearly as they are.
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
from pathlib import Path

import numpy as np

FORMATS = {"parallel": ("pairs.source", "pairs.target"), "tsv": ("pairs.tsv",), "csv": ("pairs.csv",), "jsonl": ("pairs.jsonl",)}
WORDS = 60_000
CHUNK = 50_000


def words(generator: np.random.Generator) -> np.ndarray:
    """Distinct words of one to five syllables."""
    syllables = [c + v for c in ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "sch", "th") for v in "aeiou"]
    found: dict[str, None] = {}
    while len(found) < WORDS:
        found["".join(generator.choice(syllables, generator.integers(1, 6)))] = None
    return np.array(list(found), object)


def write_pairs(folder: Path, form: str, count: int) -> list[str]:
    """Writes `count` pairs; returns the files' paths."""
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


def measure(files: list[str], tokenizer: str, cache: str) -> dict[str, float]:
    """Prepares the files in this process."""
    from jax_transformer.data.preparation import prepare
    from jax_transformer.run_config import DataConfig

    config = DataConfig(
        train=tuple(files), valid_pairs=1000, test_pairs=1000, tokenizer=tokenizer, vocab_size=8000, cache_dir=cache,  # type: ignore[arg-type]
    )  # fmt: skip
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
    stored = sum(path.stat().st_size for path in corpus.directory.iterdir())
    return {
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / 1024,
        "load_seconds": time.perf_counter() - started,
        "stored_mb": stored / 2**20,
        "kept": corpus.report.splits["train"].kept,
        **{f"until_{name}": value for name, value in stages.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--tokenizer", default="bpe")
    parser.add_argument("--format", choices=FORMATS, default="parallel")
    parser.add_argument("--json")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        cache, *files = options.measure
        print(json.dumps(measure(files, options.tokenizer, cache)))
        return
    rows = []
    for count in options.pairs:
        with tempfile.TemporaryDirectory() as folder:
            files = write_pairs(Path(folder), options.format, count)
            text = sum(Path(file).stat().st_size for file in files) / 2**20
            command = [sys.executable, __file__, "--tokenizer", options.tokenizer, "--measure", f"{folder}/cache", *files]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            row = {"pairs": count, "text_mb": text, **json.loads(result.stdout)}
        rows.append(row)
        print(
            "  ".join(f"{key} {value:,.1f}" if isinstance(value, float) else f"{key} {value:,}" for key, value in row.items()), flush=True
        )
    if options.json:
        machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
        Path(options.json).write_text(json.dumps({"machine": machine, "tokenizer": options.tokenizer, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
