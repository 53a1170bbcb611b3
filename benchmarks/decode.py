"""Decoding: this project beside transformers and CTranslate2, greedily and by beams.

    pip install 'jax-transformer[ctranslate2,parity]'
    python benchmarks/decode.py [--rounds 5] [--threads 2] [--plot docs/pictures/decoding.svg]

One Marian model with random weights (d_model 512, 8 heads, d_ff 2048, 6+6 layers, vocabulary 32,000), written by
transformers and ported to this project and to CTranslate2 in float32, decodes 32 sentences of 20 tokens into 32 new
tokens each. A minimum length forces the number of tokens, and the padding token is forbidden, as in OPUS-MT. Each
contestant runs in a process of its own with the same number of threads; in every round, all decode the same sentences
once, in turns. Outputs are compared, so no system wins by generating different tokens. The limit is the time of the
matrix products alone, in XLA, in this process, in the order that is fastest there: the products of the encoder, and
those of the decoder's weights with the rows of each step.

A second part measures this project alone: the growth of the time with batch, beams and length, and compilation.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from workers import Worker

RESULTS = Path(__file__).parent / "results" / "decode.json"
CONTESTANTS = ("jax", "transformers", "ctranslate2")
VOCABULARY, D_MODEL, D_FF, LAYERS = 32_000, 512, 2048, 6
PAD, EOS = VOCABULARY - 1, 0


class Work(NamedTuple):
    beams: int
    batch: int = 32
    source_length: int = 20
    new_tokens: int = 32


MAIN = (Work(1), Work(4))
GROWTH = {
    "batch": [Work(beams, batch=batch) for beams in (1, 4) for batch in (1, 8, 32, 128)],
    "beams": [Work(beams, batch=8) for beams in (1, 2, 4, 8)],
    "length": [
        Work(beams, batch=8, source_length=length, new_tokens=length)
        for beams in (1, 4)
        for length in (16, 32, 64, 128, 256)
    ],
}


def sources(work: Work) -> np.ndarray:
    """Returns ids [batch, source_length] without pads and ends."""
    return np.random.default_rng(0).integers(2, PAD, (work.batch, work.source_length))


# --- the contestants: each returns a function that decodes, and gives the best hypotheses' ids


def make_marian(folder: Path) -> None:
    """Draws weights with transformers' own initialisation, enlarged so that probabilities differ.

    The padding's embedding is zero.
    """
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    model = MarianMTModel(
        MarianConfig(
            vocab_size=VOCABULARY,
            d_model=D_MODEL,
            encoder_layers=LAYERS,
            decoder_layers=LAYERS,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            encoder_ffn_dim=D_FF,
            decoder_ffn_dim=D_FF,
            max_position_embeddings=512,
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=PAD,
            forced_eos_token_id=None,
            scale_embedding=True,
            activation_function="swish",
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "embed" not in name and "shared" not in name:
                parameter.mul_(3.0)
        model.model.shared.weight[PAD] = 0.0
    model.save_pretrained(folder)


def jax_decodes(folder: Path) -> Callable[[Work], np.ndarray]:
    import jax
    import jax.numpy as jnp

    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.decoding.generation import generate
    from jax_transformer.porting import import_checkpoint

    model = import_checkpoint(folder)
    model = model.__class__(**{**model.__dict__, "params": jax.tree.map(jnp.asarray, model.params)})

    def run(work: Work) -> np.ndarray:
        decoding = DecodingConfig(
            beam_size=work.beams,
            max_new_tokens=work.new_tokens,
            min_new_tokens=work.new_tokens - 1,
            bad_words=((PAD,), (EOS,)),
        )
        return generate(model, sources(work), decoding).sequences[:, 0]

    return run


def transformers_decodes(folder: Path, threads: int) -> Callable[[Work], np.ndarray]:
    import torch
    from transformers import MarianMTModel

    torch.set_num_threads(threads)
    model = MarianMTModel.from_pretrained(folder).eval()
    model.generation_config.forced_eos_token_id = None

    @torch.inference_mode()
    def run(work: Work) -> np.ndarray:
        ids = torch.from_numpy(sources(work))
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=work.beams,
            do_sample=False,
            max_new_tokens=work.new_tokens,
            min_new_tokens=work.new_tokens,
            bad_words_ids=[[PAD]],
        )
        return found[:, 1:].numpy()

    return run


def ctranslate2_decodes(folder: Path, threads: int) -> Callable[[Work], np.ndarray]:
    import ctranslate2

    from jax_transformer.exporting.ctranslate2 import export_ctranslate2
    from jax_transformer.porting import import_checkpoint

    model = import_checkpoint(folder)
    model = replace(model, generation=replace(model.generation, bad_words=((PAD,),)))
    with tempfile.TemporaryDirectory() as temporary:
        exported = Path(temporary) / "model"
        export_ctranslate2(model, exported)
        translator = ctranslate2.Translator(
            str(exported), compute_type="float32", inter_threads=1, intra_threads=threads
        )

    def run(work: Work) -> np.ndarray:
        texts = [[str(index) for index in row] for row in sources(work)]  # without tokenizers, tokens are ids
        lengths = {"max_decoding_length": work.new_tokens, "min_decoding_length": work.new_tokens}
        found = translator.translate_batch(texts, beam_size=work.beams, max_batch_size=work.batch, **lengths)
        return np.array([[int(token) for token in result.hypotheses[0]] for result in found])

    return run


def worker(contestant: str, folder: Path, threads: int) -> None:
    """Decodes each Work read from a line, and answers with the seconds taken and the ids."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    make: dict[str, Callable[[], Callable[[Work], np.ndarray]]] = {
        "jax": lambda: jax_decodes(folder),
        "transformers": lambda: transformers_decodes(folder, threads),
        "ctranslate2": lambda: ctranslate2_decodes(folder, threads),
    }
    run = make[contestant]()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        work = Work(*json.loads(line))
        start = time.perf_counter()
        ids = run(work)
        print(json.dumps({"seconds": time.perf_counter() - start, "ids": ids.tolist()}), flush=True)


class Contestant(Worker):
    """Runs a process that decodes on request."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, __file__, "--worker", name, "--folder", str(folder), "--threads", str(threads)]
        super().__init__(name, command, environment)

    def decode(self, work: Work) -> dict[str, Any]:
        return self.ask(work)


# --- measuring


def limit(work: Work) -> float:
    """Returns the seconds of the matrix products alone: the encoder's once, the decoder's weights with the rows of all
    beams at every step."""
    import jax
    import jax.numpy as jnp

    attention, feed_forward = [(D_MODEL, 3 * D_MODEL), (D_MODEL, D_MODEL)], [(D_MODEL, D_FF), (D_FF, D_MODEL)]
    encoder = [jnp.ones(shape) for _ in range(LAYERS) for shape in [*attention, (D_MODEL, 2 * D_MODEL), *feed_forward]]
    of_step = [*attention, (D_MODEL, D_MODEL), (D_MODEL, D_MODEL), *feed_forward]
    step = [jnp.ones((outputs, inputs)) for _ in range(LAYERS) for inputs, outputs in of_step] + [
        jnp.ones((VOCABULARY, D_MODEL))
    ]

    def seconds(
        product: Callable[[jax.Array, jax.Array], jax.Array], count: int, kernels: list[jax.Array], axis: int
    ) -> float:
        rows = {size: jnp.ones((count, size)) for size in (D_MODEL, D_FF)}
        products = jax.jit(
            lambda rows, kernels: [jnp.max(product(rows[kernel.shape[axis]], kernel)) for kernel in kernels]
        )
        jax.block_until_ready(products(rows, kernels))
        times = []
        for _ in range(5):
            start = time.perf_counter()
            jax.block_until_ready(products(rows, kernels))
            times.append(time.perf_counter() - start)
        return min(times)

    encoding = seconds(lambda rows, kernel: rows @ kernel, work.batch * work.source_length, encoder, 0)
    return encoding + work.new_tokens * seconds(lambda rows, kernel: kernel @ rows.T, work.batch * work.beams, step, 1)


def compare(folder: Path, rounds: int, threads: int) -> list[dict[str, Any]]:
    """Measures the contestants side by side."""
    names = [name for name in CONTESTANTS if name == "jax" or installed(name)]
    contestants = [Contestant(name, folder, threads) for name in names]
    rows = []
    try:
        for work in MAIN:
            first = {contestant.name: contestant.decode(work) for contestant in contestants}
            times: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(rounds):
                for contestant in contestants:
                    times[contestant.name].append(contestant.decode(work)["seconds"])
            ids = {name: np.array(first[name]["ids"])[:, : work.new_tokens] for name in names}
            same = {name: float(np.mean(ids[name] == ids["jax"])) for name in names}
            rows.append({"work": work._asdict(), "seconds": times, "same_tokens": same, "limit": limit(work)})
    finally:
        for contestant in contestants:
            contestant.close()
    return rows


def grow(folder: Path, threads: int, rounds: int = 3) -> dict[str, list[dict[str, Any]]]:
    """Measures this project against batch, beams and length; the first decoding includes compilation."""
    contestant = Contestant("jax", folder, threads)
    try:
        results = {}
        for what, works in GROWTH.items():
            results[what] = []
            for work in works:
                first = contestant.decode(work)["seconds"]
                best = min(contestant.decode(work)["seconds"] for _ in range(rounds))
                results[what].append({"work": work._asdict(), "seconds": best, "compile_seconds": first - best})
        return results
    finally:
        contestant.close()


def installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        print(f"{name} isn't installed: left out")
        return False
    return True


def report(rows: list[dict[str, Any]], growth: dict[str, list[dict[str, Any]]]) -> None:
    names = list(rows[0]["seconds"])
    print(
        "| beams | "
        + " | ".join(f"{name}, tokens/s" for name in names)
        + " | "
        + " | ".join(f"over {name}" for name in names[1:])
        + " | share of the limit | same tokens |"
    )
    print("|---" * (2 * len(names) + 2) + "|")
    for row in rows:
        work, seconds = Work(**row["work"]), {name: statistics.median(times) for name, times in row["seconds"].items()}
        tokens = work.batch * work.new_tokens
        ratios = [
            statistics.median(
                [theirs / ours for theirs, ours in zip(row["seconds"][name], row["seconds"]["jax"], strict=True)]
            )
            for name in names[1:]
        ]
        same = ", ".join(f"{100 * row['same_tokens'][name]:.0f} %" for name in names[1:])
        print(
            f"| {work.beams} | "
            + " | ".join(f"{tokens / seconds[name]:.0f}" for name in names)
            + " | "
            + " | ".join(f"{ratio:.2f}" for ratio in ratios)
            + f" | {row['limit'] / seconds['jax']:.2f} | {same} |"
        )
    for what, results in growth.items():
        print(
            f"\n| {what} | beams | batch | source, new tokens | seconds | tokens/s | compiling, s "
            "|\n|---|---|---|---|---|---|---|"
        )
        for result in results:
            work = Work(**result["work"])
            speed = work.batch * work.new_tokens / result["seconds"]
            print(
                f"| {work._asdict()[{'length': 'new_tokens'}.get(what, what)]} | {work.beams} | {work.batch} | "
                f"{work.source_length}, "
                f"{work.new_tokens} | {result['seconds']:.2f} | {speed:.0f} | {result['compile_seconds']:.1f} |"
            )


def draw(growth: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draws seconds against batch, beams and length, all on logarithmic axes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    from jax_transformer.plotting.style import figure_style

    with figure_style():
        figure = Figure(figsize=(9, 3), layout="constrained")
        for axes, (what, results) in zip(figure.subplots(1, len(growth)), growth.items(), strict=True):
            field = {"length": "new_tokens"}.get(what, what)
            for beams in (1, 4) if what != "beams" else (None,):
                chosen = [result for result in results if beams in (None, result["work"]["beams"])]
                label = "" if beams is None else "greedy" if beams == 1 else f"{beams} beams"
                axes.plot(
                    [result["work"][field] for result in chosen],
                    [result["seconds"] for result in chosen],
                    marker="o",
                    label=label,
                )
            axes.set(xscale="log", yscale="log", xlabel=what, ylabel="seconds")
            values = sorted({result["work"][field] for result in results})
            axes.set_xticks(values, [str(value) for value in values])
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
            if what != "beams":
                axes.legend()
        figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plot", type=Path, help="draw how the time grows into this file")
    parser.add_argument("--no-growth", action="store_true", help="only compare")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.folder, options.threads)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        make_marian(Path(folder))
        rows = compare(Path(folder), options.rounds, options.threads)
        growth = {} if options.no_growth else grow(Path(folder), options.threads)
    report(rows, growth)
    packages = {
        name: version(name)
        for name in ("jax", "torch", "transformers", "ctranslate2")
        if name == "jax" or installed(name)
    }
    machine = {"processor": platform.processor() or platform.machine(), "threads": options.threads, **packages}
    RESULTS.write_text(json.dumps({"machine": machine, "compared": rows, "growth": growth}, indent=2) + "\n")
    if options.plot:
        draw(growth, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
