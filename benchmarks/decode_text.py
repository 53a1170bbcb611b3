"""Translating a file of real lengths: this project beside CTranslate2, greedily and by beams.

    pip install 'jax-transformer[ctranslate2]'
    python benchmarks/decode_text.py [--sentences 3000] [--rounds 5] [--write docs/speed.md]
    python benchmarks/decode_text.py --model runs/demo       # without training one first

A model of the demo translates sentences of the demo's test grammar, which have 3 to some 20 words. It is trained here
(600 steps, some minutes), or is the one at --model. Every contestant gets the same texts, splits them by the same
tokenizer, and returns texts. Two threads decode:

    here       `translate_each` on the whole file, as the command does: sorted by length, in batches of 64 sentences
    2 streams  CTranslate2, float32, one thread in each of two streams, which share the batches of a file
    1 stream   CTranslate2, float32, two threads in each product

CTranslate2 sorts by length, too. Each of its settings is measured once with every size of batch in BATCHES, and goes on
with the fastest. Then all translate the file once in each round, in turns. A ratio compares the seconds of one round:
CTranslate2's over this project's, so that 0.5 is half of CTranslate2's speed.

A second part decodes one batch of 32 sentences of equal lengths, of which as many tokens are forced.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "decode_text.json"
START, END = "<!-- decode_text: written by benchmarks/decode_text.py -->", "<!-- end of decode_text -->"
THREADS = 2
STREAMS = {"2 streams": (2, 1), "1 stream": (1, 2)}
"""CTranslate2's settings → streams, and threads in each."""
CONTESTANTS = ("here", *STREAMS)
BATCHES = (("examples", 16), ("examples", 32), ("examples", 64), ("tokens", 1024), ("tokens", 4096))
"""Sizes of CTranslate2's batches: their unit, and how many."""
BEAMS = (1, 4)
EQUAL_ROWS, EQUAL_LENGTH = 32, 20

Answer = dict[str, Any]
"""The seconds that a contestant took, and the texts or ids that it found."""


def sample_sentences(count: int) -> list[str]:
    """Returns sentences of the demo's test split, in the order in which the grammar draws them."""
    from jax_transformer.data.phrasebook.pairs import sample_pairs

    return [english for english, _ in sample_pairs("test", count)]


def equal_sources(vocabulary: int) -> np.ndarray:
    """Returns ids [EQUAL_ROWS, EQUAL_LENGTH] without special tokens."""
    return np.random.default_rng(0).integers(4, vocabulary, (EQUAL_ROWS, EQUAL_LENGTH))


# --- the contestants: each answers a request


def here(folder: Path) -> Callable[[dict[str, Any]], Answer]:
    """Returns the function that answers with this project."""
    from jax_transformer.decoding import generate, prepare, translate_each
    from jax_transformer.storage.model_directory import load_model

    model = prepare(load_model(folder))
    ends = tuple((index,) for index in (model.config.target_pad_id, model.generation.eos_id))

    def answer(request: dict[str, Any]) -> Answer:
        if request["kind"] == "file":
            start = time.perf_counter()
            found = translate_each(model, request["texts"], beam_size=request["beams"])
            return {"seconds": time.perf_counter() - start, "found": [one.text() for one in found]}
        source, most = equal_sources(model.config.source_vocab_size), EQUAL_LENGTH
        options = {"max_new_tokens": most, "min_new_tokens": most - 1, "bad_words": ends}
        start = time.perf_counter()
        ids = generate(model, source, beam_size=request["beams"], **options).sequences[:, 0]
        return {"seconds": time.perf_counter() - start, "found": ids.tolist()}

    return answer


def ctranslate2(folder: Path, name: str) -> Callable[[dict[str, Any]], Answer]:
    """Returns the function that answers with CTranslate2, whose streams and threads `name` gives."""
    import ctranslate2

    from jax_transformer.exporting.ctranslate2 import export_ctranslate2
    from jax_transformer.exporting.vocabularies import token_list
    from jax_transformer.storage.model_directory import load_model

    model = load_model(folder)
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    with tempfile.TemporaryDirectory() as temporary:
        export_ctranslate2(model, Path(temporary) / "model")
        streams, threads = STREAMS[name]
        translator: Any = ctranslate2.Translator(
            str(Path(temporary) / "model"), compute_type="float32", inter_threads=streams, intra_threads=threads
        )
    source_tokens = token_list(model.source_tokenizer, model.config.source_vocab_size, as_shown=False)
    target_tokens = token_list(model.target_tokenizer, model.config.target_vocab_size, as_shown=False)
    target_ids = {token: index for index, token in enumerate(target_tokens)}
    most = model.generation.max_decode_length or model.config.decoder.max_length

    def decode(ids: Sequence[Sequence[int]], request: dict[str, Any], **options: Any) -> list[list[int]]:
        unit, size = request["batch"]
        found = translator.translate_batch(
            [[source_tokens[index] for index in sentence] for sentence in ids],
            beam_size=request["beams"],
            max_batch_size=size,
            batch_type=unit,
            **options,
        )
        return [[target_ids[token] for token in result.hypotheses[0]] for result in found]

    def answer(request: dict[str, Any]) -> Answer:
        if request["kind"] == "file":
            start = time.perf_counter()
            ids = decode(model.source_tokenizer.encode(request["texts"]), request, max_decoding_length=most)
            texts = model.target_tokenizer.decode(ids)
            return {"seconds": time.perf_counter() - start, "found": texts}
        source = equal_sources(model.config.source_vocab_size).tolist()
        lengths = {"max_decoding_length": EQUAL_LENGTH, "min_decoding_length": EQUAL_LENGTH}
        pad = {"suppress_sequences": [[target_tokens[model.config.target_pad_id]]]}
        start = time.perf_counter()
        ids = decode(source, request, **lengths, **pad)
        return {"seconds": time.perf_counter() - start, "found": ids}

    return answer


def worker(name: str, folder: Path) -> None:
    """Answers each request, a line of JSON."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    answer = here(folder) if name == "here" else ctranslate2(folder, name)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


class Contestant:
    """Runs a process that decodes on request."""

    def __init__(self, name: str, folder: Path) -> None:
        command = [sys.executable, __file__, "--worker", name, "--model", str(folder)]
        environment = os.environ | {"OMP_NUM_THREADS": str(STREAMS.get(name, (1, THREADS))[1])}
        self.name, self.batch = name, BATCHES[0]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()

    def decode(self, request: dict[str, Any], batch: tuple[str, int] | None = None) -> Answer:
        """Returns the answer to a request, with its own size of batch or another."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request | {"batch": batch or self.batch}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def choose_batch(self, request: dict[str, Any]) -> dict[str, float]:
        """Goes on with the size of batch that is fastest for a request; returns the seconds of each."""
        seconds = {batch: self.decode(request, batch)["seconds"] for batch in BATCHES}
        self.batch = min(seconds, key=lambda batch: seconds[batch])
        return {" ".join(map(str, batch[::-1])): taken for batch, taken in seconds.items()}

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _answer(self) -> Answer:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise SystemExit(f"{self.name} ended with {self.process.wait()}")


# --- measuring


def measure(contestants: list[Contestant], request: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Returns the seconds of each contestant in each round, in turns, and how much of what they find is the same."""
    first = {one.name: one.decode(request)["found"] for one in contestants}  # compiles, and loads the caches
    chosen = {one.name: one.choose_batch(request) for one in contestants if one.name in STREAMS}
    seconds: dict[str, list[float]] = {one.name: [] for one in contestants}
    for number in range(rounds):
        for one in contestants[number % len(contestants) :] + contestants[: number % len(contestants)]:
            seconds[one.name].append(one.decode(request)["seconds"])
    same = {
        name: float(np.mean([one == ours for one, ours in zip(found, first["here"], strict=True)]))
        for name, found in first.items()
    }
    return {
        "kind": request["kind"],
        "beams": request["beams"],
        "seconds": seconds,
        "batch": {one.name: " ".join(map(str, one.batch[::-1])) for one in contestants if one.name in STREAMS},
        "seconds_by_batch": chosen,
        "same": same,
    }


def ratios(row: dict[str, Any], name: str) -> list[float]:
    """Returns this project's speed as a share of CTranslate2's, round by round."""
    return [theirs / ours for theirs, ours in zip(row["seconds"][name], row["seconds"]["here"], strict=True)]


def train_demo(folder: Path, steps: int) -> Path:
    """Trains the demo's model; returns its directory."""
    from jax_transformer.config.presets import demo
    from jax_transformer.training import train

    run = demo()
    shortened = dataclasses.replace(run.train, max_steps=steps, evaluate_every=steps)
    return Path(train(dataclasses.replace(run, train=shortened, run_dir=str(folder / "run"))).model)


# --- the page


def table(results: dict[str, Any]) -> str:
    """Returns the table of docs/speed.md."""
    sentences = results["sentences"]
    lines = [
        f"{results['machine']['processor']}, {THREADS} threads, jax {results['machine']['jax']}, CTranslate2 "
        f"{results['machine']['ctranslate2']}; medians of {results['rounds']} rounds. A share is this project's speed "
        "over CTranslate2's, with the range over the rounds:",
        "",
        "| | here | CTranslate2, 2 streams of 1 thread | 1 stream of 2 threads | share of 2 streams "
        "| share of 1 stream | same |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        search = "greedy" if row["beams"] == 1 else f"{row['beams']} beams"
        is_file = row["kind"] == "file"
        count = sentences if is_file else EQUAL_ROWS
        what = f"{count:,} sentences of real lengths" if is_file else f"{count} of {EQUAL_LENGTH} tokens"
        speeds = [f"{count / statistics.median(row['seconds'][name]):,.0f}" for name in CONTESTANTS]
        shares = [
            f"{statistics.median(found):.2f} ({min(found):.2f}–{max(found):.2f})"
            for found in (ratios(row, name) for name in STREAMS)
        ]
        same = f"{100 * min(row['same'].values()):.1f} %"
        cells = [f"{what}, {search}, sentences/s", *speeds, *shares, same]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_page(page: Path, text: str) -> None:
    """Replaces what is between the markers of a page."""
    before, found, rest = page.read_text(encoding="utf-8").partition(START)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise SystemExit(f"{page}: expected the lines {START} and {END}; received a page without them")
    page.write_text(f"{before}{START}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def processor() -> str:
    """Returns the processor's name."""
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", type=Path, help="a model directory of the demo; none: one is trained first")
    parser.add_argument("--steps", type=int, default=600, help="steps of training, without --model")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures go")
    parser.add_argument("--write", type=Path, help="a page with the markers, in which the table is replaced")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.model)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.model or train_demo(Path(temporary), options.steps)
        folder = folder / "model" if (folder / "model").is_dir() else folder
        contestants = [Contestant(name, folder) for name in CONTESTANTS]
        rows = []
        try:
            texts = sample_sentences(options.sentences)
            for request in ({"kind": "file", "texts": texts}, {"kind": "equal"}):
                for beams in BEAMS:
                    rows.append(measure(contestants, request | {"beams": beams}, options.rounds))
        finally:
            for one in contestants:
                one.close()
    results = {
        "machine": {
            "processor": processor(),
            "threads": THREADS,
            **{name: version(name) for name in ("jax", "ctranslate2")},
        },
        "sentences": options.sentences,
        "rounds": options.rounds,
        "rows": rows,
    }
    options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(table(results))
    if options.write:
        write_page(options.write, table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
