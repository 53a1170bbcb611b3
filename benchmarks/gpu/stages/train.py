"""Training steps: here, with torch.nn.Transformer, and with transformers' Trainer."""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from parts import Context
from shapes import LENGTH, TrainCase, batch, marian, model_config, run_config, t5, train_cases
from timing import jax_peak_bytes, seconds_per_call, torch_device, torch_peak_bytes, torch_wait

T5_LARGE_ROWS, T5_LARGE_SOURCE, T5_LARGE_TARGET = 32, 512, 114
"""The lengths of JAX-Toolbox's T5X benchmark."""
T5_LARGE = {"d_model": 1024, "num_heads": 16, "head_dim": 64, "d_ff": 2816, "num_encoder_layers": 24,
            "num_decoder_layers": 24, "source_vocab_size": 32128, "target_vocab_size": 32128}  # fmt: skip


# --- here


def jax_base(context: Context) -> None:
    """Measures paper_base."""
    _jax_cases(context, train_cases("paper_base", context.small))


def jax_big(context: Context) -> None:
    """Measures paper_big, and then profiles a few of its steps."""
    cases = train_cases("paper_big", context.small)
    _jax_cases(context, cases, profiled=cases[0])


def without_triton(context: Context) -> None:
    """Measures paper_base with XLA's products by cuBLAS alone: it compiles far fewer candidates."""
    flag = "--xla_gpu_enable_triton_gemm=false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    case = train_cases("paper_base", context.small)[0]
    step = _step_of(case, context.small)
    step.name += ", products by cuBLAS alone"
    _compile_and_measure(context, step, **dataclasses.asdict(case))


def _jax_cases(context: Context, cases: list[TrainCase], profiled: TrainCase | None = None) -> None:
    for case in cases:
        step = _step_of(case, context.small)
        _compile_and_measure(context, step, **dataclasses.asdict(case))
        if case == profiled and step.compiled is not None:
            _profile(context, step)


def _profile(context: Context, step: Step) -> None:
    from stages.longest import longest_operations

    with context.alone():
        try:
            for row in longest_operations(step.runner(), context.out / "profile"):
                context.row(what="profile", name=step.name, **row)
        except Exception as error:
            context.failed("profile", error)


def _step_of(case: TrainCase, small: bool) -> Step:
    return Step(case.name, model_config(case, small), run_config(case.model, small).train, batch(case))


class Step:
    """Holds a training step that is compiled beforehand and measured later."""

    def __init__(self, name: str, model: Any, train: Any, arrays: Any) -> None:
        self.name, self.model, self.train, self.arrays = name, model, train, arrays
        self.compiled: Any = None
        self.compile_seconds = 0.0

    def compile(self) -> None:
        import jax

        from jax_transformer.training.state import abstract_state, init_state
        from jax_transformer.training.step import make_train_step

        start = time.perf_counter()
        shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), self.arrays)
        lowered = make_train_step(self.model, self.train).lower(abstract_state(self.model, self.train), shapes)
        self.compiled = lowered.compile()
        self.compile_seconds = time.perf_counter() - start
        jax.block_until_ready(init_state(self.model, self.train))  # compiles it, too

    def runner(self) -> Any:
        """Returns a function that takes a number of steps and returns the last loss."""
        import jax

        from jax_transformer.training.state import init_state

        arrays = jax.device_put(self.arrays)
        state = init_state(self.model, self.train)

        def run(count: int) -> float:
            nonlocal state
            for _ in range(count):
                state, metrics = self.compiled(state, arrays)
            return float(metrics["loss"])

        return run

    def measure(self, context: Context, **facts: Any) -> None:
        import numpy as np

        from jax_transformer.config.flops import train_flops

        try:
            run = self.runner()
            timed = seconds_per_call(run, context.small)
            loss = run(1)
        except Exception as error:  # out of memory, most likely
            context.failed(self.name, error)
            return
        rows, source = self.arrays.source_ids.shape
        target = self.arrays.labels.shape[1]
        memory = self.compiled.memory_analysis()
        context.row(
            what="train",
            name=self.name,
            tokens_per_second=int(np.sum(self.arrays.labels != self.model.target_pad_id)) / timed["seconds"],
            rows_per_second=rows / timed["seconds"],
            flops=train_flops(self.model, rows, source, target),
            peak_bytes_of_process=jax_peak_bytes(),
            planned_bytes={
                kind: getattr(memory, f"{kind}_size_in_bytes", None) for kind in ("argument", "temp", "output", "alias")
            },
            compile_seconds=self.compile_seconds,
            loss=loss,
            **timed,
            **facts,
        )


def _compile_and_measure(context: Context, step: Step, **facts: Any) -> None:
    try:
        step.compile()
    except Exception as error:
        context.failed(f"compiling {step.name}", error)
        return
    with context.alone():
        step.measure(context, side="jax", **facts)


def jax_t5_large(context: Context) -> None:
    """Measures a step of T5-1.1-large's shape, with Adafactor, as T5X trains it."""
    import numpy as np

    from jax_transformer.config.presets import get_preset
    from jax_transformer.data.batching import Batch
    from jax_transformer.porting import import_checkpoint

    with tempfile.TemporaryDirectory() as folder:  # a tiny one, for the config that T5-1.1 has
        t5(folder, small=True, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
        model = import_checkpoint(folder).config
    sizes = {} if context.small else T5_LARGE
    rows, source, target = (2, 32, 16) if context.small else (T5_LARGE_ROWS, T5_LARGE_SOURCE, T5_LARGE_TARGET)
    model = dataclasses.replace(model, compute_dtype="bfloat16", dropout_rate=0.1, **sizes)
    train = dataclasses.replace(
        get_preset("finetune").train, optimizer="adafactor", schedule="constant", learning_rate=1e-3,
        weight_decay_kind="l2", clip_norm=0.0,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    lengths = source, target, target
    arrays = Batch(*(rng.integers(3, model.source_vocab_size, (rows, n)).astype(np.int32) for n in lengths))
    step = Step(f"T5-1.1-large's shape, {rows} × {source} + {target}", model, train, arrays)
    _compile_and_measure(context, step, model="t5_large", rows=rows, length=source, target_length=target)


def jax_finetuning(context: Context) -> None:
    """Measures steps of fine-tuning a ported Marian and T5, beside `trainer`."""
    import numpy as np

    from jax_transformer.config.presets import get_preset
    from jax_transformer.data.batching import Batch
    from jax_transformer.porting import import_checkpoint

    for kind in ("marian", "t5"):
        with tempfile.TemporaryDirectory() as folder:
            write_family(kind, folder, context.small)
            model = import_checkpoint(folder)
        source, labels = _family_ids(kind, context.small)
        first = np.full((len(labels), 1), model.generation.decoder_start_id)
        ids = source, np.concatenate([first, labels[:, :-1]], axis=1), labels
        config = dataclasses.replace(model.config, compute_dtype="bfloat16")
        arrays = Batch(*(array.astype(np.int32) for array in ids))
        rows, length = labels.shape
        step = Step(kind, config, get_preset("finetune").train, arrays)
        _compile_and_measure(context, step, model=kind, rows=rows, length=length, finetuning=True)


def write_family(kind: str, folder: Any, small: bool) -> None:
    if kind == "marian":
        marian(folder, small, vocabulary=58_101)
    else:
        t5(folder, small)


def _family_ids(kind: str, small: bool) -> tuple[Any, Any]:
    """Returns source ids and labels, none of them special."""
    import numpy as np

    rng = np.random.default_rng(0)
    vocabulary = 300 if small else 58_101 if kind == "marian" else 32_128
    shape = (4, 16) if small else (128, LENGTH)
    source, labels = (rng.integers(4, vocabulary - 200, shape) for _ in range(2))
    return source, labels


# --- torch.nn.Transformer


def torch_base(context: Context) -> None:
    """Measures torch.nn.Transformer of paper_base's sizes, eager and compiled."""
    _torch_cases(context, "paper_base")


def torch_big(context: Context) -> None:
    """Measures torch.nn.Transformer of paper_big's sizes, eager and compiled."""
    _torch_cases(context, "paper_big")


def _torch_cases(context: Context, model: str) -> None:
    """Measures without padding masks, as all rows are full: so that SDPA may use its flash kernels."""
    import torch

    cases = [
        case
        for case in train_cases(model, context.small)
        if not case.packed and case.vocabulary != 32_000 and case.layer_loop == "scan"
    ]
    torch.set_float32_matmul_precision("high")
    with context.alone():
        for case in cases:
            _measure_torch(context, case, compiled=False)
    for case in cases[:2] if not context.small or model == "paper_base" else []:  # the paper's batch, and the largest
        start = time.perf_counter()
        try:
            run = _torch_runner(case, context.small, compiled=True)
            run(1)
        except Exception as error:
            context.failed(f"compiling {case.name}", error)
            continue
        compile_seconds = time.perf_counter() - start
        with context.alone():
            _measure_torch(context, case, compiled=True, run=run, compile_seconds=compile_seconds)
        del run
        _free()


def _measure_torch(
    context: Context, case: TrainCase, *, compiled: bool, run: Any = None, compile_seconds: float | None = None
) -> None:
    side = "torch compiled" if compiled else "torch eager"
    torch_peak_bytes(reset=True)
    try:
        run = run or _torch_runner(case, context.small, compiled=False)
        timed = seconds_per_call(run, context.small)
        loss = run(1)
    except Exception as error:  # out of memory, most likely
        context.failed(f"{case.name}, {side}", error)
        _free()
        return
    context.row(
        what="train", side=side, name=case.name, tokens_per_second=case.tokens / timed["seconds"],
        peak_bytes=torch_peak_bytes(), compile_seconds=compile_seconds, loss=loss, **timed, **dataclasses.asdict(case),
    )  # fmt: skip
    del run
    _free()


def _free() -> None:
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _torch_runner(case: TrainCase, small: bool, *, compiled: bool) -> Any:
    """Returns a function that takes a number of steps: post-norm, tied embeddings and head, label smoothing, fused
    Adam, autocast to bfloat16."""
    import torch
    from torch import nn

    config = model_config(case, small)
    device = torch_device()
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(case.vocabulary, config.d_model)
            self.register_buffer("positions", torch.randn(case.length, config.d_model))
            nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
            self.transformer = nn.Transformer(
                config.d_model, config.num_heads, config.num_encoder_layers, config.num_decoder_layers, config.d_ff,
                config.dropout_rate, batch_first=True,
            )  # fmt: skip
            self.dropout = nn.Dropout(config.dropout_rate)
            self.register_buffer("future", torch.ones(case.length, case.length, dtype=torch.bool).triu(1))

        def embed(self, ids: torch.Tensor) -> torch.Tensor:
            return self.dropout(self.embedding(ids) * math.sqrt(config.d_model) + self.positions)

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            hidden = self.transformer(self.embed(source), self.embed(target), tgt_mask=self.future, tgt_is_causal=True)
            return hidden @ self.embedding.weight.to(hidden.dtype).T

    model = Model().to(device)
    fused = device.type == "cuda"
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=fused)
    arrays = batch(case)
    source, target, labels = (torch.tensor(ids, device=device).long() for ids in arrays[:3])

    def loss_of() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(source, target)
            return nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=0.1
            )

    compute = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    def run(count: int) -> float:
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            loss = compute()
            loss.backward()
            optimizer.step()
        value = float(loss.detach())
        torch_wait()
        return value

    return run


# --- transformers' Trainer


def trainer(context: Context) -> None:
    """Measures transformers' Trainer on its own Marian and T5, eager."""
    turns = []
    for kind in ("marian", "t5"):
        with tempfile.TemporaryDirectory() as folder:
            write_family(kind, folder, context.small)
            turns.append((kind, _load(folder)))
    for kind, module in turns:
        with context.alone():
            try:
                _trainer(context, kind, module)
            except Exception as error:
                context.failed(f"Trainer, {kind}", error)


def _load(folder: Any) -> Any:
    import torch
    import transformers

    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)


def _trainer(context: Context, kind: str, module: Any) -> None:
    import torch
    import transformers

    source, labels = (torch.from_numpy(ids) for ids in _family_ids(kind, context.small))
    rows, length = labels.shape
    ones = torch.ones(length, dtype=torch.long)
    data = [{"input_ids": source[k], "attention_mask": ones, "labels": labels[k]} for k in range(rows)]
    steps, skipped = (3, 1) if context.small else (40, 8)
    marks: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in (skipped, steps):
                torch_wait()
                marks.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        on_gpu = torch_device().type == "cuda"
        arguments = transformers.TrainingArguments(
            str(Path(folder)), max_steps=steps, num_train_epochs=steps, per_device_train_batch_size=rows,
            learning_rate=5e-5, report_to=[], use_cpu=not on_gpu, bf16=True, disable_tqdm=True, save_strategy="no",
            logging_strategy="no", optim="adamw_torch_fused" if on_gpu else "adamw_torch",
        )  # fmt: skip
        torch_peak_bytes(reset=True)
        transformers.Trainer(module, arguments, train_dataset=data, callbacks=[Clock()]).train()
    seconds = (marks[1] - marks[0]) / (steps - skipped)
    context.row(
        what="train", side="Trainer", name=kind, model=kind, rows=rows, length=length, seconds=seconds,
        tokens_per_second=rows * length / seconds, peak_bytes=torch_peak_bytes(), finetuning=True,
    )  # fmt: skip
