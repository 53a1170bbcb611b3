"""Decoding: a Marian of OPUS-MT's size here, in transformers and in CTranslate2, with the same weights."""

from __future__ import annotations

import itertools
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from parts import Context
from shapes import marian
from timing import seconds_per_call, torch_device, torch_peak_bytes, torch_wait

SOURCE, NEW = 32, 32
COMPILED_TOGETHER = 3
REAL_ROWS, REAL_MEAN, REAL_LONGEST = 256, 24, 96


@dataclass(frozen=True)
class Work:
    """Describes sentences to decode."""

    beams: int
    rows: int
    dtype: str
    real: bool = False
    """Whether the sentences have the lengths of real ones, each with as many new tokens at most; else all have SOURCE
    tokens and get NEW ones."""

    @property
    def name(self) -> str:
        lengths = "real lengths" if self.real else f"{SOURCE} + {NEW} tokens"
        return f"{self.rows} rows, {'greedy' if self.beams == 1 else f'{self.beams} beams'}, {self.dtype}, {lengths}"


def works(small: bool) -> list[Work]:
    if small:
        return [Work(1, 2, "float32"), Work(4, 2, "bfloat16"), Work(1, 4, "float32", real=True)]
    grid = [Work(*one) for one in itertools.product((1, 4), (64, 512, 1), ("bfloat16",))]
    real = [Work(beams, REAL_ROWS, "bfloat16", real=True) for beams in (1, 4)]
    return [*grid, *real, *(Work(beams, rows, "float32") for rows in (64, 512) for beams in (1, 4))]


def sources(work: Work, vocabulary: int) -> list[list[int]]:
    """Returns the ids of each sentence, without pads and ends."""
    rng = np.random.default_rng(0)
    lengths = np.full(work.rows, SOURCE)
    if work.real:
        drawn = rng.lognormal(np.log(0.85 * REAL_MEAN), 0.55, work.rows)
        lengths = np.clip(drawn, 3, REAL_LONGEST).astype(int)
    return [rng.integers(2, vocabulary - 1, length).tolist() for length in lengths]


def batches(work: Work, vocabulary: int) -> list[tuple[np.ndarray, int]]:
    """Returns padded batches of ids with the number of new tokens of each: of sentences of real lengths, sorted, 64 a
    batch, and as many new tokens as the longest source of the batch."""
    rows = sources(work, vocabulary)
    if not work.real:
        return [(np.array(rows), NEW)]
    rows = sorted(rows, key=len)
    found = []
    for at in range(0, len(rows), 64):
        part = rows[at : at + 64]
        longest = max(map(len, part))
        ids = np.full((len(part), longest), vocabulary - 1)
        for row, sentence in zip(ids, part, strict=True):
            row[: len(sentence)] = sentence
        found.append((ids, longest))
    return found


def new_tokens(work: Work, vocabulary: int) -> int:
    return sum(len(ids) * new for ids, new in batches(work, vocabulary))


def jax(context: Context) -> None:  # named as the side is
    """Measures `generate`, as `translate` calls it."""
    import dataclasses

    import jax as framework
    import jax.numpy as jnp

    from jax_transformer.decoding.generation import generate
    from jax_transformer.decoding.prepared import prepare
    from jax_transformer.porting import import_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        marian(folder, context.small)
        model = import_checkpoint(folder)
    vocabulary = model.config.target_vocab_size
    prepared = {
        dtype: prepare(
            dataclasses.replace(
                model, params=framework.tree.map(lambda leaf, dtype=dtype: jnp.asarray(leaf, dtype), model.params)
            )
        )
        for dtype in ("float32", "bfloat16")
    }

    def runner(work: Work) -> Any:
        parts = batches(work, vocabulary)

        def run(count: int) -> np.ndarray:
            for _ in range(count):
                for ids, new in parts:
                    options = {"beam_size": work.beams, "max_new_tokens": new, "min_new_tokens": new - 1}
                    found = generate(prepared[work.dtype], ids, bad_words=((vocabulary - 1,), (0,)), **options)
            return found.sequences[:, 0]

        return run

    def compile_one(work: Work) -> Any:
        try:
            run = runner(work)
            run(1)
        except Exception as error:
            context.failed(f"compiling {work.name}", error)
            return None
        return run

    todo = works(context.small)
    for at in range(0, len(todo), COMPILED_TOGETHER):
        some = todo[at : at + COMPILED_TOGETHER]
        with ThreadPoolExecutor(COMPILED_TOGETHER) as pool:
            runners = list(pool.map(compile_one, some))
        with context.alone():
            for work, run in zip(some, runners, strict=True):
                if run is not None:
                    _measure(context, "jax", work, run, vocabulary)


def transformers(context: Context) -> None:  # named as the side is
    """Measures transformers' generate with its default cache."""
    _transformers(context, compiled=False)


def transformers_compiled(context: Context) -> None:
    """Measures transformers' generate with a static cache and a compiled step."""
    _transformers(context, compiled=True)


def _transformers(context: Context, *, compiled: bool) -> None:
    import torch
    from transformers import MarianMTModel

    with tempfile.TemporaryDirectory() as folder:
        marian(folder, context.small)
        modules = {
            dtype: MarianMTModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval().to(torch_device())
            for dtype in ("float32", "bfloat16")
        }
    vocabulary = modules["float32"].config.vocab_size
    torch.set_float32_matmul_precision("high")
    options: dict[str, Any] = {"cache_implementation": "static"} if compiled else {}

    def runner(work: Work) -> Any:
        parts = [(torch.tensor(ids, device=torch_device()), new) for ids, new in batches(work, vocabulary)]

        @torch.inference_mode()
        def run(count: int) -> np.ndarray:
            for _ in range(count):
                for ids, new in parts:
                    found = modules[work.dtype].generate(
                        ids, attention_mask=(ids != vocabulary - 1).long(), num_beams=work.beams, do_sample=False,
                        max_new_tokens=new, min_new_tokens=new, bad_words_ids=[[vocabulary - 1]], **options,
                    )  # fmt: skip
            torch_wait()
            return found[:, 1:].cpu().numpy()

        return run

    todo = works(context.small)
    if compiled:  # each shape compiles for long
        todo = [work for work in todo if work.dtype == "bfloat16" and not work.real and work.rows in (2, 64)]
    side = "transformers compiled" if compiled else "transformers"
    if not compiled:
        runner(todo[0])(1)
        with context.alone():
            for work in todo:
                _measure(context, side, work, runner(work), vocabulary)
        return
    for work in todo:
        try:
            run = runner(work)
            run(2)
        except Exception as error:
            context.failed(f"{side}, {work.name}", error)
            continue
        with context.alone():
            _measure(context, side, work, run, vocabulary)


def ctranslate2(context: Context) -> None:  # named as the side is
    """Measures CTranslate2 on the GPU, where its wheel finds the libraries that it was built for."""
    try:
        import ctranslate2 as framework
    except ImportError as error:
        context.row(what="left out", reason=f"CTranslate2: {error}")
        return
    from dataclasses import replace

    from jax_transformer.exporting.ctranslate2 import export_ctranslate2
    from jax_transformer.porting import import_checkpoint

    device = torch_device().type
    translators = {}
    with tempfile.TemporaryDirectory() as folder:
        marian(Path(folder) / "marian", context.small)
        model = import_checkpoint(Path(folder) / "marian")
        vocabulary = model.config.target_vocab_size
        model = replace(model, generation=replace(model.generation, bad_words=((vocabulary - 1,),)))
        export_ctranslate2(model, Path(folder) / "exported")
        for dtype in ("float32",) if device == "cpu" else ("float32", "bfloat16"):
            translators[dtype] = framework.Translator(str(Path(folder) / "exported"), device, compute_type=dtype)
    for work in works(context.small):
        if work.dtype not in translators:
            continue
        parts = [([[str(index) for index in row if index != vocabulary - 1] for row in ids], new)
                 for ids, new in batches(work, vocabulary)]  # fmt: skip

        def run(count: int, work: Work = work, parts: Any = parts) -> np.ndarray:
            for _ in range(count):
                for texts, new in parts:
                    found = translators[work.dtype].translate_batch(
                        texts, beam_size=work.beams, max_batch_size=work.rows, max_decoding_length=new,
                        min_decoding_length=new,
                    )  # fmt: skip
            return np.array([[int(token) for token in result.hypotheses[0]] for result in found])

        with context.alone():
            _measure(context, "CTranslate2", work, run, vocabulary)


def _measure(context: Context, side: str, work: Work, run: Any, vocabulary: int) -> None:
    torch_peak = None
    try:
        if side.startswith("transformers"):
            torch_peak_bytes(reset=True)
        timed = seconds_per_call(run, context.small, most=50)
        tokens = np.asarray(run(1)) if not work.real else np.zeros((0, 0), int)
        if side.startswith("transformers"):
            torch_peak = torch_peak_bytes()
    except Exception as error:
        context.failed(f"{side}, {work.name}", error)
        return
    context.row(
        what="decode", side=side, name=work.name, tokens_per_second=new_tokens(work, vocabulary) / timed["seconds"],
        peak_bytes=torch_peak, tokens=tokens[:4, :NEW].tolist(), **vars(work), **timed,
    )  # fmt: skip
