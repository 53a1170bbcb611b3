"""Exported models: this project beside CTranslate2, in float32 and in int8, greedily and by four beams.

    python benchmarks/export.py NAME MODEL SOURCE REFERENCE [NAME MODEL SOURCE REFERENCE …] [--sentences 500]

Each MODEL, a model or run directory with tokenizers, is exported by `jax-transformer export` and decodes the first
sentences of the file SOURCE in both programs: the same tokens, the same longest translation, one thread each, in
batches of 50 sentences of similar lengths. Both search as CTranslate2 does: beams end by early_stopping, scores are
sums of log-probabilities divided by the length, and no end is forced. The table counts sentences whose tokens differ,
and tells the largest difference of the scores of best hypotheses, BLEU of both, and sentences per second. Compilation
is not counted: everything is decoded here twice.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import ctranslate2
import sacrebleu

from jax_transformer import DecodingConfig, Model, load_model
from jax_transformer.cli import main as command
from jax_transformer.decoding.generation import generate
from jax_transformer.decoding.prepared import prepare

RESULTS = Path(__file__).parent / "results" / "export.json"
BATCH, LONGEST = 50, 64
QUANTIZATIONS = ("float32", "int8_float32")


class Decoded(NamedTuple):
    """Holds the ids and score of each sentence's best hypothesis, and the seconds that all took."""

    ids: list[list[int]]
    scores: list[float]
    seconds: float


def by_length(sentences: list[list[int]]) -> list[list[int]]:
    """Returns the numbers of the sentences of each batch."""
    order = sorted(range(len(sentences)), key=lambda number: len(sentences[number]))
    return [order[start : start + BATCH] for start in range(0, len(order), BATCH)]


def decode_here(model: Model, sentences: list[list[int]], beams: int) -> Decoded:
    """Decodes by `generate`. All batches have one shape, so that little is compiled."""
    early = {"early_stopping": True} if beams > 1 else {}
    alike = {"renormalize": True, "forced_eos_id": -1, "length_penalty": 1.0}  # as CTranslate2 has it
    config = DecodingConfig(beam_size=beams, max_new_tokens=LONGEST, **alike, **early)
    prepared, width = prepare(model), max(map(len, sentences))
    ids: list[list[int]] = [[]] * len(sentences)
    scores = [0.0] * len(sentences)
    began = time.perf_counter()
    for batch in by_length(sentences):
        rows = [sentences[number] + [model.config.source_pad_id] * (width - len(sentences[number])) for number in batch]
        found = generate(prepared, rows, config)
        for row, number in enumerate(batch):
            ids[number] = without_end(found.sequences[row, 0].tolist(), model.generation.eos_id)
            scores[number] = float(found.scores[row, 0])
    return Decoded(ids, scores, time.perf_counter() - began)


def decode_there(folder: Path, model: Model, sentences: list[list[int]], beams: int) -> Decoded:
    """Decodes by CTranslate2, in the compute type that the weights are stored in."""
    source, target = vocabularies(folder)
    numbers = {token: number for number, token in enumerate(target)}
    translator = ctranslate2.Translator(str(folder), intra_threads=1, inter_threads=1, compute_type="default")
    decoding = json.loads((folder / "decoding.json").read_text(encoding="utf-8"))
    options = decoding["translate_batch"] | {"beam_size": beams, "length_penalty": 1.0}
    options["max_decoding_length"] = min(LONGEST, options["max_decoding_length"])
    tokens = [[source[index] for index in ids] for ids in sentences]
    prefixes = [decoding["target_prefix"]] * len(tokens) if decoding["target_prefix"] else None
    began = time.perf_counter()
    found = translator.translate_batch(
        tokens, prefixes, max_batch_size=BATCH, batch_type="examples", return_scores=True, **options
    )
    seconds = time.perf_counter() - began
    ids = [[numbers[token] for token in result.hypotheses[0]] for result in found]
    return Decoded(ids, [result.scores[0] for result in found], seconds)


def vocabularies(folder: Path) -> tuple[list[str], list[str]]:
    """Returns the tokens of source and target."""
    names = ("shared", "shared") if (folder / "shared_vocabulary.json").exists() else ("source", "target")
    source, target = (json.loads((folder / f"{name}_vocabulary.json").read_text(encoding="utf-8")) for name in names)
    return source, target


def without_end(ids: list[int], end: int | None) -> list[int]:
    return ids[: ids.index(end)] if end in ids else ids


def bleu(model: Model, decoded: Decoded, references: list[str]) -> float:
    assert model.target_tokenizer is not None
    texts = model.target_tokenizer.decode(decoded.ids)
    return sacrebleu.corpus_bleu(texts, [references], force=True).score


def measure(name: str, directory: str, source: str, reference: str, count: int) -> list[dict[str, Any]]:
    """Returns one row for each quantization and number of beams."""
    sources, references = (Path(file).read_text(encoding="utf-8").splitlines()[:count] for file in (source, reference))
    model = load_model(directory)
    assert model.source_tokenizer is not None
    sentences = model.source_tokenizer.encode(sources)
    longest = min(model.config.encoder.max_length, max(map(len, sentences)))
    assert max(map(len, sentences)) <= longest, f"{source}: a sentence is longer than the model's positions"
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folders = {quantization: Path(temporary) / quantization for quantization in QUANTIZATIONS}
        for quantization, folder in folders.items():
            options = ["--to", "ctranslate2", "--quantization", quantization]
            assert command(["export", directory, str(folder), *options]) == 0
        for beams in (1, 4):
            decode_here(model, sentences, beams)
            here = decode_here(model, sentences, beams)
            for quantization, folder in folders.items():
                there = decode_there(folder, model, sentences, beams)
                differing = [number for number in range(len(sentences)) if here.ids[number] != there.ids[number]]
                gaps = [abs(here.scores[number] - there.scores[number]) for number in range(len(sentences))]
                row = {
                    "model": name,
                    "quantization": quantization,
                    "beams": beams,
                    "sentences": len(sentences),
                    "differing": len(differing),
                    "score_gap": max(gaps, default=0.0) if beams > 1 else None,
                    "score_gap_where_differing": max((gaps[n] for n in differing), default=0.0) if beams > 1 else None,
                    "bleu_here": bleu(model, here, references),
                    "bleu_there": bleu(model, there, references),
                    "here_per_second": len(sentences) / here.seconds,
                    "there_per_second": len(sentences) / there.seconds,
                    "bytes": (folder / "model.bin").stat().st_size,
                }
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def report(rows: list[dict[str, Any]]) -> None:
    print(
        "| model | weights | beams | differing of | largest gap of scores | BLEU here | BLEU in CTranslate2 "
        "| sentences/s here | in CTranslate2 | model.bin, MB |"
    )
    print("|---" * 10 + "|")
    for row in rows:
        gap = "" if row["score_gap"] is None else f"{row['score_gap']:.1e}"
        print(
            f"| {row['model']} | {row['quantization']} | {row['beams']} | {row['differing']} of {row['sentences']} "
            f"| {gap} | {row['bleu_here']:.2f} | {row['bleu_there']:.2f} | {row['here_per_second']:.0f} "
            f"| {row['there_per_second']:.0f} | {row['bytes'] / 1e6:.1f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME MODEL SOURCE REFERENCE")
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    if len(options.models) % 4:
        parser.error("expected four arguments for each model: NAME MODEL SOURCE REFERENCE")
    groups = [options.models[start : start + 4] for start in range(0, len(options.models), 4)]
    rows = [row for group in groups for row in measure(*group, options.sentences)]
    report(rows)
    machine = {"processor": platform.processor() or platform.machine(), "threads": 1}
    machine |= {name: version(name) for name in ("jax", "ctranslate2")}
    options.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
