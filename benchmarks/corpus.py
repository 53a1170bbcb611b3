"""Translating a file of real lengths: this project beside CTranslate2 and transformers, greedily and by beams.

    pip install 'jax-transformer[ctranslate2,parity]'
    python benchmarks/corpus.py [--sentences 3000] [--rounds 5] [--write docs/speed.md]      # the demo's model
    python benchmarks/corpus.py --size marian --sentences 1000 [--write docs/speed.md]       # 6+6 layers of width 512
    python benchmarks/corpus.py --size marian-vocabulary --sentences 300                     # with 58,101 tokens, too

The models translate sentences of the demo's test grammar, which have 3 to some 20 words. The demo's is trained first,
which takes minutes; the one of Marian's size is grown from it and translates alike, since weights of any values take as
long. Both are kept under --folder, where a later run finds them. All contestants get the same texts, split them by the
same tokenizer, compute in float32 on two threads, and return texts:

    here          `translate_each` on the whole file, as the command does
    2 streams     CTranslate2, one thread in each of two streams, which share the batches of a file
    1 stream      CTranslate2, two threads in each product
    transformers  `generate` on batches of 64 sentences in order of length, two threads in each product

This project computes in bfloat16, too, and CTranslate2's two streams with weights of 8 bits; BLEU stands beside.

CTranslate2 sorts by length, too. Each of its settings is measured once with every size of batch in BATCHES, and goes on
with the fastest. Then all translate the file once in each round, in turns. A ratio compares one round: CTranslate2's
seconds over this project's, so that 0.5 is half of CTranslate2's speed. The same ratio of processor times says more on
a machine that others use. The first sentence and the first file count what a new process compiles; memory is the
largest that the process had.

Whole commands are measured, too: a new process that imports what it needs, loads the model, translates the file and
prints it. Here, that is `jax-transformer translate`, once with an empty cache of compiled programs and once with a full
one; the others have scripts that import nothing of this project but its tokenizers.

The vocabulary of `marian-vocabulary` is the text's, with further tokens that are never the most probable: they cost as
much as others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
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
from workers import Worker, most_memory, processor

RESULTS = Path(__file__).parent / "results" / "corpus.json"
MARKERS = "<!-- corpus {}: written by benchmarks/corpus.py -->", "<!-- end of corpus {} -->"
THREADS = 2
STREAMS = {"2 streams": (2, 1), "1 stream": (1, 2)}
"""CTranslate2's settings → streams, and threads in each."""
CONTESTANTS = ("here", *STREAMS, "transformers")
NARROW = {"here, bfloat16": "here", "2 streams, int8": "2 streams"}
"""Contestants with narrow weights → the same with float32."""
COMMANDS = ("here, first", "here", "2 streams", "transformers")
"""Whole commands; the first one finds no compiled programs, the second one those of the first."""
COMMAND_ROUNDS = 3
EXPORTED = "exported.json"
"""The file beside a model's directory that `export` writes last."""
BATCHES = (("examples", 16), ("examples", 32), ("examples", 64), ("tokens", 1024), ("tokens", 4096))
"""Sizes of CTranslate2's batches: their unit, and how many."""
BEAMS = (1, 4)
SIZES = ("demo", "marian", "marian-vocabulary")
VOCABULARY = 58_101

Translate = Callable[[list[str], int, tuple[str, int]], list[str]]
"""Translates texts, with a number of beams and CTranslate2's size of batch."""


def sample_sentences(count: int) -> list[str]:
    """Returns sentences of the demo's test split, in the order in which the grammar draws them."""
    from jax_transformer.data.phrasebook.pairs import sample_pairs

    return [english for english, _ in sample_pairs("test", count)]


# --- the models


def trained(size: str, folder: Path) -> Path:
    """Returns the directory of a model, which is trained unless the folder holds it."""
    from jax_transformer.config.presets import demo
    from jax_transformer.storage.model_directory import load_model, save_model
    from jax_transformer.training import train

    path = folder / size
    if (path / "model").is_dir():
        return path / "model"
    if size == "demo":
        return Path(train(dataclasses.replace(demo(), run_dir=str(path))).model)
    smaller, larger = ("demo", grown) if size == "marian" else ("marian", with_vocabulary)
    path.mkdir(parents=True, exist_ok=True)
    save_model(larger(load_model(trained(smaller, folder))), path / "model")
    return path / "model"


GROWN = {
    "(query|key|value)/kernel": ((4, 2, 2), 1 / 4),  # [D, N, H]
    "(query|key|value)/bias": ((2, 2), 1),
    "attention/output/kernel": ((2, 2, 4), 1 / 4),  # [N, H, D]
    "(hidden|feed_forward/output)/kernel": ((4, 4), 1 / 4),
    "(hidden|output)/bias|norm/(scale|bias)": ((4,), 1),
    "embedding/embedding": ((1, 4), 1 / 2),  # which the model multiplies by the root of its width
    "positions": ((1, 4), 1),
    "head/kernel": ((4, 1), 1 / 4),
    "head/bias": ((1,), 1),
}
"""The end of a parameter's path → how often each axis is repeated, and a factor such that all sums stay the same."""


def grown(model: Any, layers: int = 6) -> Any:
    """Returns a model of 4 times the width, twice the heads and more layers that computes the same up to rounding.

    Every feature is there several times (Chen et al. 2016, "Net2Net"); further layers, with random weights, add as good
    as nothing. Positions are a table of the same sinusoids.
    """
    import jax

    rng = np.random.default_rng(0)

    def larger(path: Any, array: Any) -> np.ndarray:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        times, factor = next(value for end, value in GROWN.items() if re.search(f"({end})$", name))
        if "/query/" in name:
            factor /= math.sqrt(2)  # the dimensions of a head are there twice, and their root divides logits
        is_stacked = "/layers/" in name
        wide = np.tile(np.asarray(array) * np.float32(factor), (1, *times) if is_stacked else times)
        if not is_stacked:
            return wide
        more = rng.standard_normal((layers - len(wide), *wide.shape[1:]), np.float32) * wide.std()
        return np.concatenate([wide, more * np.float32(1e-6) if "output/" in name else more])

    params = jax.tree_util.tree_map_with_path(larger, model.params)
    for name, table in params.pop("constants").items():
        params[name.removesuffix("_positions")]["positions"] = {"embedding": table}
    config = model.config
    sizes = {"d_model": 4 * config.d_model, "num_heads": 2 * config.num_heads, "d_ff": 4 * config.d_ff}
    counts = {"num_encoder_layers": layers, "num_decoder_layers": layers, "position_kind": "learned"}
    return dataclasses.replace(model, config=dataclasses.replace(config, **sizes, **counts), params=params)


def with_vocabulary(model: Any, size: int = VOCABULARY) -> Any:
    """Returns the model with further tokens in both vocabularies, which are as good as never decoded."""
    params = dict(model.params)

    def longer(array: Any, value: float = 0.0, axis: int = 0) -> np.ndarray:
        room = [(0, (size - array.shape[axis]) if i == axis else 0) for i in range(array.ndim)]
        return np.pad(np.asarray(array), room, constant_values=value)

    for side in ("source_embedding", "target_embedding"):
        params[side] = {"embedding": longer(params[side]["embedding"])}
    head = params["head"]
    params["head"] = {"kernel": longer(head["kernel"], axis=1), "bias": longer(head["bias"], value=-1e4)}
    config = dataclasses.replace(model.config, source_vocab_size=size, target_vocab_size=size)
    return dataclasses.replace(model, config=config, params=params)


# --- the contestants


def export(folder: Path) -> None:
    """Writes the model for the other contestants, beside its directory, unless it is there."""
    from jax_transformer.exporting.ctranslate2 import export_ctranslate2
    from jax_transformer.exporting.transformers import export_transformers
    from jax_transformer.exporting.vocabularies import token_list
    from jax_transformer.storage.model_directory import load_model

    if (exported := folder.parent / EXPORTED).exists():
        return
    model = load_model(folder)
    config = model.config
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    export_ctranslate2(model, folder.parent / "ctranslate2")
    export_transformers(model, folder.parent / "transformers")
    facts = {
        "source": token_list(model.source_tokenizer, config.source_vocab_size, as_shown=False),
        "target": token_list(model.target_tokenizer, config.target_vocab_size, as_shown=False),
        "most": model.generation.max_decode_length or config.decoder.max_length,
        "pad": config.source_pad_id,
    }
    exported.write_text(json.dumps(facts), encoding="utf-8")


def read_exported(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """Returns the tokenizers, and what `export` wrote of the model."""
    from jax_transformer.data.tokenizers import Tokenizer

    source, target = (
        Tokenizer.from_json((folder / f"{side}_tokenizer.json").read_text(encoding="utf-8"))
        for side in ("source", "target")
    )
    return source, target, json.loads((folder.parent / EXPORTED).read_text(encoding="utf-8"))


def here(folder: Path, name: str) -> Translate:
    """Returns this project's function; `name` gives the dtype."""
    from jax_transformer.decoding import prepare, translate_each
    from jax_transformer.storage.model_directory import load_model

    model = prepare(load_model(folder) if name == "here" else load_model(folder).astype("bfloat16"))
    return lambda texts, beams, _: [one.text() for one in translate_each(model, texts, beam_size=beams)]


def ctranslate2(folder: Path, name: str) -> Translate:
    """Returns CTranslate2's function; `name` gives its streams, threads and dtype."""
    import ctranslate2

    source, target, facts = read_exported(folder)
    streams, threads = STREAMS[NARROW.get(name, name)]
    translator: Any = ctranslate2.Translator(
        str(folder.parent / "ctranslate2"),
        compute_type="int8" if name in NARROW else "float32",
        inter_threads=streams,
        intra_threads=threads,
    )
    source_tokens, most = facts["source"], facts["most"]
    target_ids = {token: index for index, token in enumerate(facts["target"])}

    def translate(texts: list[str], beams: int, batch: tuple[str, int]) -> list[str]:
        unit, size = batch
        tokens = [[source_tokens[index] for index in ids] for ids in source.encode(texts)]
        found = translator.translate_batch(
            tokens, beam_size=beams, max_batch_size=size, batch_type=unit, max_decoding_length=most
        )
        return target.decode([[target_ids[token] for token in one.hypotheses[0]] for one in found])

    return translate


def transformers(folder: Path) -> Translate:
    """Returns the function of transformers, with the family that computes the same."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    torch.set_num_threads(THREADS)
    source, target, facts = read_exported(folder)
    network: Any = AutoModelForSeq2SeqLM.from_pretrained(folder.parent / "transformers").eval()
    most, pad = facts["most"], facts["pad"]

    @torch.inference_mode()
    def translate(texts: list[str], beams: int, _: tuple[str, int]) -> list[str]:
        ids, found = source.encode(texts), [""] * len(texts)
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        for batch in (order[start : start + 64] for start in range(0, len(order), 64)):
            longest = max(len(ids[i]) for i in batch)
            padded = torch.tensor([ids[i] + [pad] * (longest - len(ids[i])) for i in batch])
            sequences = network.generate(
                padded, attention_mask=(padded != pad).long(), num_beams=beams, do_sample=False, max_new_tokens=most
            )
            for i, text in zip(batch, target.decode(sequences[:, 1:].tolist()), strict=True):
                found[i] = text
        return found

    return translate


def contestant(name: str, folder: Path) -> Translate:
    """Returns a contestant's function."""
    if name == "transformers":
        return transformers(folder)
    return here(folder, name) if NARROW.get(name, name) == "here" else ctranslate2(folder, name)


def worker(name: str, folder: Path) -> None:
    """Answers each request, a line of JSON."""
    translate = contestant(name, folder)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        wall, busy = time.perf_counter(), time.process_time()
        found = translate(request["texts"], request["beams"], tuple(request["batch"]))
        answer = {"seconds": time.perf_counter() - wall, "busy": time.process_time() - busy, "found": found}
        print(json.dumps(answer | {"mib": most_memory()}), flush=True)


class Contestant(Worker):
    """Runs a process that translates on request."""

    def __init__(self, name: str, folder: Path) -> None:
        self.batch = BATCHES[0]
        command = [sys.executable, __file__, "--worker", name, "--model", str(folder)]
        super().__init__(name, command, environment(name))

    def translate(self, texts: Sequence[str], beams: int, batch: tuple[str, int] | None = None) -> dict[str, Any]:
        """Returns the answer to a request, with its own size of batch or another."""
        return self.ask({"texts": texts, "beams": beams, "batch": batch or self.batch})

    def choose_batch(self, texts: Sequence[str], beams: int) -> None:
        """Goes on with the size of batch that is fastest."""
        self.batch = min(BATCHES, key=lambda batch: self.translate(texts, beams, batch)["seconds"])


def environment(name: str) -> dict[str, str]:
    """Returns the variables of a contestant's process."""
    return os.environ | {"OMP_NUM_THREADS": str(STREAMS.get(NARROW.get(name, name), (1, THREADS))[1])}


# --- measuring


def time_commands(folder: Path, texts: list[str], beams: int, batches: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Returns what whole commands took, in turns: `seconds` and `busy` of each contestant, and `same`, the share of
    texts on which it agrees with the first.

    Args:
      batches: the size of CTranslate2's batches, by setting.
    """
    taken: dict[str, dict[str, Any]] = {name: {"seconds": [], "busy": []} for name in COMMANDS}
    with tempfile.TemporaryDirectory() as temporary:
        file, cache = Path(temporary) / "texts", Path(temporary) / "cache"
        file.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
        ours = [sys.executable, "-m", "jax_transformer", "translate", str(folder), "--input", str(file)]
        for number in range(COMMAND_ROUNDS):
            for name, times in taken.items():
                command = [*ours, "--beam-size", str(beams)]
                variables = environment(name)
                if name.startswith("here"):
                    variables["JAX_COMPILATION_CACHE_DIR"] = str(cache / str(number))  # empty before `here, first`
                else:
                    command = [sys.executable, __file__, "--once", name, "--model", str(folder), "--text", str(file)]
                    command += ["--beams", str(beams), "--batch", batches.get(name, "")]
                before, start = os.times(), time.perf_counter()
                done = subprocess.run(command, env=variables, capture_output=True, check=False)
                times["seconds"].append(time.perf_counter() - start)
                after = os.times()
                times["busy"].append(sum(after[2:4]) - sum(before[2:4]))
                if done.returncode:
                    raise SystemExit(f"{name}: {done.stderr.decode()}")
                times["found"] = done.stdout.decode().splitlines()
    expected = taken[COMMANDS[0]]["found"]
    for times in taken.values():
        times["same"] = float(np.mean([a == b for a, b in zip(times.pop("found"), expected, strict=True)]))
    return taken


def once(name: str, folder: Path, text: Path, beams: int, batch: str) -> None:
    """Translates a file and prints the translations: the command of another contestant."""
    texts = text.read_text(encoding="utf-8").splitlines()
    size, unit = batch.split() if batch else ("", "")
    print("\n".join(contestant(name, folder)(texts, beams, (unit, int(size or 0)))))


def measure(folder: Path, texts: list[str], beams: int, rounds: int) -> dict[str, Any]:
    """Returns what each contestant took, in new processes: for its first sentence and first file, and in each round."""
    contestants = [Contestant(name, folder) for name in (*CONTESTANTS, *NARROW)]
    try:
        first_sentence = {one.name: one.translate(texts[:1], beams)["seconds"] for one in contestants}
        first = {one.name: one.translate(texts, beams) for one in contestants}
        for one in contestants:
            if NARROW.get(one.name, one.name) in STREAMS:
                one.choose_batch(texts, beams)
        answers: dict[str, list[dict[str, Any]]] = {one.name: [] for one in contestants}
        for number in range(rounds):
            turn = number % len(contestants)
            for one in contestants[turn:] + contestants[:turn]:
                answers[one.name].append(one.translate(texts, beams))
    finally:
        for one in contestants:
            one.close()
    ours = first["here"]["found"]
    batches = {one.name: " ".join(map(str, one.batch[::-1])) for one in contestants if one.name in STREAMS}
    return {
        "beams": beams,
        "seconds": {name: [answer["seconds"] for answer in each] for name, each in answers.items()},
        "busy": {name: [answer["busy"] for answer in each] for name, each in answers.items()},
        "mib": {name: each[-1]["mib"] for name, each in answers.items()},
        "first_sentence": first_sentence,
        "first_file": {name: answer["seconds"] for name, answer in first.items()},
        "batch": batches,
        "commands": time_commands(folder, texts, beams, batches),
        "same": {
            name: float(np.mean([a == b for a, b in zip(answer["found"], ours, strict=True)]))
            for name, answer in first.items()
        },
        "bleu": {name: bleu(answer["found"], len(texts)) for name, answer in first.items()},
        "words": float(np.mean([len(text.split()) for text in ours])),
    }


def bleu(found: list[str], count: int) -> float:
    """Returns the BLEU of the translations of `sample_sentences`."""
    import sacrebleu

    from jax_transformer.data.phrasebook.pairs import sample_pairs

    return sacrebleu.corpus_bleu(found, [[german for _, german in sample_pairs("test", count)]]).score


def ratios(row: dict[str, Any], name: str, what: str = "seconds", ours: str = "here") -> list[float]:
    """Returns this project's speed as a share of another's, round by round."""
    return [theirs / own for theirs, own in zip(row[what][name], row[what][ours], strict=True)]


def share(row: dict[str, Any], name: str, ours: str = "here") -> str:
    """Returns the median of the ratios, and their range."""
    found = ratios(row, name, ours=ours)
    return f"{statistics.median(found):.2f} ({min(found):.2f}–{max(found):.2f})"


# --- the page


def table(results: dict[str, Any]) -> str:
    """Returns the tables of docs/speed.md."""
    machine, count = results["machine"], results["sentences"]
    lines = [
        f"{machine['processor']}, {THREADS} threads, jax {machine['jax']}, CTranslate2 {machine['ctranslate2']}, "
        f"transformers {machine['transformers']}; {count:,} sentences, float32, medians of {results['rounds']} rounds. "
        "A share is this project's speed over the other's, with the range over the rounds:",
        "",
        "| sentences/s | here | CTranslate2, 2 streams of 1 thread | 1 stream of 2 threads | transformers "
        "| share of 2 streams | of 1 stream | of transformers | share of 2 streams in processor time | same |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        speeds = [f"{count / statistics.median(row['seconds'][name]):,.0f}" for name in CONTESTANTS]
        shares = [share(row, name) for name in CONTESTANTS[1:]]
        busy = f"{statistics.median(ratios(row, '2 streams', 'busy')):.2f}"
        same = min(row["same"][name] for name in CONTESTANTS)
        lines.append("| " + " | ".join([_search(row), *speeds, *shares, busy, f"{100 * same:.1f} %"]) + " |")
    lines += [
        "",
        "With narrow weights, bfloat16 here (`--dtype bfloat16`) and 8-bit integers in CTranslate2's two streams:",
        "",
        "| sentences/s | here | CTranslate2 | share | over float32 here | over CTranslate2's float32 "
        "| BLEU: here in float32, in bfloat16, CTranslate2 in 8 bits |",
        "|---|---|---|---|---|---|---|",
    ]
    ours, theirs = NARROW
    for row in results["rows"]:
        speeds = [f"{count / statistics.median(row['seconds'][name]):,.0f}" for name in NARROW]
        shares = [share(row, name, ours) for name in (theirs, *NARROW.values())]
        scores = ", ".join(f"{row['bleu'][name]:.2f}" for name in ("here", *NARROW))
        lines.append("| " + " | ".join([_search(row), *speeds, *shares, scores]) + " |")
    lines += [
        "",
        "Seconds for the first sentence of a new process and for the first file after it, which compile, and the most "
        "memory of the process in MiB:",
        "",
        f"| | {' | '.join((*CONTESTANTS, *NARROW))} |",
        f"|---|{'---|' * len((*CONTESTANTS, *NARROW))}",
    ]
    for row in results["rows"]:
        cells = [
            f"{row['first_sentence'][name]:.1f}, {row['first_file'][name]:.1f}, {row['mib'][name]:,}"
            for name in (*CONTESTANTS, *NARROW)
        ]
        lines.append(f"| {_search(row)} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Seconds of whole commands, and in parentheses their processor time; medians of {COMMAND_ROUNDS} rounds:",
        "",
        f"| | {' | '.join(COMMANDS)} |",
        f"|---|{'---|' * len(COMMANDS)}",
    ]
    for row in results["rows"]:
        medians = (
            [statistics.median(row["commands"][name][what]) for what in ("seconds", "busy")] for name in COMMANDS
        )
        lines.append(f"| {_search(row)} | " + " | ".join(f"{wall:.1f} ({busy:.1f})" for wall, busy in medians) + " |")
    return "\n".join(lines)


def _search(row: dict[str, Any]) -> str:
    return "greedy" if row["beams"] == 1 else f"{row['beams']} beams"


def write_page(page: Path, size: str, text: str) -> None:
    """Replaces the lines between the markers of a size, which the page has."""
    start, end = (marker.format(size) for marker in MARKERS)
    before, found, rest = page.read_text(encoding="utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page}: expected the lines {start} and {end}; received a page without them")
    page.write_text(f"{before}{start}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="demo")
    parser.add_argument("--sentences", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("runs/corpus"), help="where trained models are kept")
    parser.add_argument("--model", type=Path, help="a model directory of the demo's text, instead of a trained one")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the figures go, by size")
    parser.add_argument("--write", type=Path, help="a page with the size's markers, between which the tables go")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--once", help=argparse.SUPPRESS)
    parser.add_argument("--text", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--beams", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--batch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.model)
        return 0
    if options.once:
        once(options.once, options.model, options.text, options.beams, options.batch)
        return 0
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])  # and of all processes from here
    folder = options.model or trained(options.size, options.folder)
    export(folder)
    texts = sample_sentences(options.sentences)
    results = {
        "machine": {
            "processor": processor(),
            "threads": THREADS,
            **{name: version(name) for name in ("jax", "ctranslate2", "transformers")},
        },
        "sentences": options.sentences,
        "rounds": options.rounds,
        "rows": [measure(folder, texts, beams, options.rounds) for beams in BEAMS],
    }
    kept = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
    options.json.write_text(json.dumps(kept | {options.size: results}, indent=2) + "\n", encoding="utf-8")
    print(table(results))
    if options.write:
        write_page(options.write, options.size, table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
