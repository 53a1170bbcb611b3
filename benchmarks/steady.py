"""Whether memory and the number of compiled programs stay, in a long training and a long translation of every length.

    python benchmarks/steady.py [--steps 10000] [--lines 100000] [--json benchmarks/results/steady.json]

Each line is one command in a process of its own, looked at several times a second: its resident memory, its memory
mappings, and the programs that JAX says it compiles. Sentences have from 1 to 62 words, every length as often as any
other, in random order; to translate, one line in a hundred is empty, and one is too long.

- train: a model of one layer learns to copy, with an evaluation, a translation and a checkpoint every 500 steps.
- translate a file: greedy decoding of all lines.
- translate a pipe: sampling, so that translations end anywhere. Lines arrive in bursts of 1 to 1,000, each after the
  answers to the one before; the first bursts bring sentences of about one length, for every shape of batches.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from jax_transformer.decoding.padding import ROWS, round_length

COMMAND = [sys.executable, "-m", "jax_transformer.cli"]
WORDS, PAIRS, LONGEST, SHAPES = 200, 6000, 64, 4
"""LONGEST: tokens of the longest sentence, with <bos> or <eos>."""
LENGTHS = (10, 25, 60)
"""Words of the first lines, one for each padded length."""
MOST_BURST = 1000
SECONDS_BETWEEN = 0.2
WARM = 0.1
"""Share of the work after which growth counts."""
CURVE = 20
"""Samples that are kept in the JSON, at most."""
COMPILED = re.compile(r"Finished XLA compilation of (\S+) in")


class Sample(NamedTuple):
    """Holds what a process takes after some steps or lines."""

    done: int
    resident: int
    """Bytes."""
    mappings: int
    programs: int


class Watched:
    """Runs a command and samples its process until it ends."""

    def __init__(self, arguments: list[str], folder: Path, stdin: Any = subprocess.DEVNULL) -> None:
        self.output, self.compiled = folder / "output", Counter[str]()
        environment = os.environ | {"JAX_LOG_COMPILES": "1", "JAX_COMPILATION_CACHE_DIR": str(folder / "xla")}
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [*COMMAND, *arguments], stdin=stdin, stdout=output, stderr=subprocess.PIPE, cwd=folder, env=environment
            )
        self._errors = open(folder / "errors", "wb")  # noqa: SIM115 - closed by the thread
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def samples(self, count: Callable[[], int]) -> list[Sample]:
        """Returns the samples; `count` returns the steps or lines so far."""
        samples = []
        while self.process.poll() is None:
            with suppress(OSError, IndexError):  # it ends just now
                samples.append(self._sample(count()))
            time.sleep(SECONDS_BETWEEN)
        self._reader.join()
        if self.process.returncode not in (0, 2):  # 2: some lines were too long
            raise RuntimeError(f"{self.process.args}: ended with {self.process.returncode}; see {self._errors.name}")
        return samples

    def _sample(self, done: int) -> Sample:
        process = Path("/proc") / str(self.process.pid)
        status = (process / "status").read_text(encoding="utf-8")
        resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
        mappings = (process / "maps").read_bytes().count(b"\n")
        return Sample(done, resident, mappings, self.compiled.total())

    def _read_errors(self) -> None:
        """Counts the programs that are compiled, and keeps the other lines."""
        assert self.process.stderr
        with self._errors as errors:
            for line in self.process.stderr:
                found = COMPILED.search(line.decode(errors="replace"))
                if found:
                    self.compiled[found[1]] += 1
                elif not line.startswith(b"WARNING:jax"):
                    errors.write(line)


def sentence(length: int, chance: random.Random) -> list[str]:
    return [f"w{chance.randrange(WORDS)}" for _ in range(length)]


def write_pairs(file: Path, chance: random.Random) -> None:
    """Writes pairs to learn copying from; one target in ten is cut, so that lengths also differ within a pair."""
    with open(file, "w", encoding="utf-8") as pairs:
        for _ in range(PAIRS):
            words = sentence(chance.randrange(1, LONGEST - 1), chance)
            kept = words if chance.random() < 0.9 else words[: chance.randrange(1, len(words) + 1)]
            pairs.write(f"{' '.join(words)}\t{' '.join(kept)}\n")


def lines_of(count: int, chance: random.Random) -> Iterator[str]:
    """Yields lines: first those of the first bursts, then of any length."""
    first = [length for rows in ROWS for length in LENGTHS for _ in range(rows)]
    yield from (" ".join(sentence(length, chance)) for length in first)
    for _ in range(count - len(first)):
        kind = chance.randrange(100)
        longest = {0: 0, 1: 2 * LONGEST}.get(kind)
        length = chance.randrange(1, LONGEST - 1) if longest is None else longest
        yield " ".join(sentence(length, chance))


def training(folder: Path, steps: int) -> dict[str, Any]:
    write_pairs(folder / "pairs.tsv", random.Random(0))
    sizes = {
        "model.d-model": 32, "model.d-ff": 64, "model.num-heads": 2, "model.num-encoder-layers": 1,
        "model.num-decoder-layers": 1, "model.max-length": LONGEST, "data.train": "pairs.tsv",
        "data.tokenizer": "whitespace", "data.max-length": LONGEST, "data.valid-pairs": 64, "data.test-pairs": 64,
        "data.batch-tokens": 512, "data.num-shapes": SHAPES, "data.cache-dir": "cache", "train.max-steps": steps,
        "train.warmup-steps": 500, "train.evaluate-every": 500, "train.evaluate-sentences": 64, "run-dir": "run",
    }  # fmt: skip
    watched = Watched(["train", *(part for name, value in sizes.items() for part in (f"--{name}", str(value)))], folder)
    metrics = folder / "run" / "metrics.jsonl"
    row = summary(watched.samples(lambda: last_record(metrics).get("step", 0)), steps)
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    programs = max(record.get("programs", 0) for record in records)
    return {"work": f"train {steps:,} steps", **row, "of_shapes": programs, "bound": SHAPES, **by_kind(watched)}


def last_record(file: Path) -> dict[str, Any]:
    """Returns the last whole record of metrics.jsonl so far."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    record: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return record


def translation(folder: Path, count: int, is_piped: bool) -> dict[str, Any]:
    lines = list(lines_of(count, random.Random(1)))
    text = folder / "lines"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    options = ["--sampling"] if is_piped else ["--input", str(text)]
    watched = Watched(["translate", "run", *options], folder, subprocess.PIPE if is_piped else subprocess.DEVNULL)
    answered = Lines(watched.output)
    if is_piped:
        assert watched.process.stdin
        asking = (watched.process.stdin, lines, answered, random.Random(2))
        threading.Thread(target=ask, args=asking, daemon=True).start()
    row = summary(watched.samples(lambda: answered.count), count)
    answers = watched.output.read_text(encoding="utf-8").splitlines()
    assert len(answers) == count, f"expected {count} lines; received {len(answers)}"
    lengths = len({len(answer.split()) for answer in answers})
    of_shapes = watched.compiled["jit(start)"] + watched.compiled["jit(run)"]
    work = f"translate {count:,} lines of a {'pipe' if is_piped else 'file'}"
    return {
        "work": work, **row, "of_shapes": of_shapes, "bound": decoding_bound(), "lengths": lengths,
        **by_kind(watched),
    }  # fmt: skip


class Lines:
    """Counts the lines of a file that grows."""

    def __init__(self, file: Path) -> None:
        self._file, self._lock, self._count = open(file, "rb"), threading.Lock(), 0  # noqa: SIM115 - open to the end

    @property
    def count(self) -> int:
        with self._lock:
            self._count += self._file.read().count(b"\n")
            return self._count


def ask(pipe: IO[bytes], lines: list[str], answered: Lines, chance: random.Random) -> None:
    """Writes the lines in bursts, each after the answers to the one before."""
    done, first = 0, [rows for rows in ROWS for _ in LENGTHS]
    while done < len(lines):
        burst = lines[done : done + (first.pop(0) if first else int(MOST_BURST ** chance.random()))]
        pipe.write("".join(f"{line}\n" for line in burst).encode())
        pipe.flush()
        done += len(burst)
        while answered.count < done:
            time.sleep(0.005)
    pipe.close()


def decoding_bound() -> int:
    """Returns the most programs of decoding for sources and targets of up to LONGEST tokens, in batches of up to 64
    rows: for each number of rows and padded length of sources, one to start, and one for each room for targets."""
    lengths = {round_length(length, LONGEST) for length in range(1, LONGEST + 1)}
    rooms = {length: {round_length(room, LONGEST) for room in range(2 * length, 2 * LONGEST + 1)} for length in lengths}
    return len(ROWS) * sum(1 + len(some) for some in rooms.values())


def summary(samples: list[Sample], total: int) -> dict[str, Any]:
    """Returns what the process took after a tenth, a half and all of its work, and how it grew from the first to the
    last of these."""
    working = [sample for sample in samples if WARM * total <= sample.done < total]  # at the end, it gives all back
    half = next(sample for sample in working if sample.done >= total / 2)
    slope = float(np.polyfit([sample.done for sample in working], [sample.resident for sample in working], 1)[0])
    shares = {"10": working[0], "50": half, "100": working[-1]}
    return {
        **{f"resident_mb_{share}": sample.resident / 2**20 for share, sample in shares.items()},
        "bytes_each": slope,
        **{f"mappings_{share}": sample.mappings for share, sample in shares.items()},
        **{f"programs_{share}": sample.programs for share, sample in shares.items()},
        "peak_mb": max(sample.resident for sample in samples) / 2**20,
        "curve": [(sample.done, round(sample.resident / 2**20, 1)) for sample in samples[:: len(samples) // CURVE + 1]],
    }


def by_kind(watched: Watched) -> dict[str, Any]:
    return {"compiled": dict(watched.compiled.most_common())}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| work | resident memory after 10 %, 50 %, 100 % | growth after 10 % | mappings | programs in all "
        "| of them of shapes | bound |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        memory, mappings, programs = (
            " → ".join(f"{row[f'{name}_{share}']:,.0f}" for share in shares)
            for name, shares in (
                ("resident_mb", ("10", "50", "100")),
                ("mappings", ("10", "100")),
                ("programs", ("10", "100")),
            )
        )
        unit = row["work"].split()[2].removesuffix("s")
        lines.append(
            f"| {row['work']} | {memory} MiB | {row['bytes_each']:+,.0f} bytes a {unit} | {mappings} | {programs} "
            f"| {row['of_shapes']} | {row['bound']} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for measure in (
            lambda: training(folder, options.steps),
            lambda: translation(folder, options.lines, is_piped=False),
            lambda: translation(folder, options.lines, is_piped=True),
        ):
            start = time.perf_counter()
            rows.append({**measure(), "seconds": round(time.perf_counter() - start)})
            print(f"{rows[-1]['work']}: {rows[-1]['seconds']} s", flush=True)
    print(table(rows))
    if options.json:
        machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
        text = ",\n".join(json.dumps(row) for row in rows)
        options.json.write_text(f'{{"machine": "{machine}", "rows": [\n{text}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
