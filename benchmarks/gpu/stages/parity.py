"""Parity on the GPU: logits, loss, gradients and a step of AdamW against the CPU's float64, beside PyTorch's errors.

The gates are those of `jax_transformer.parity`: a side may be FACTOR_RMS times as far from the truth as PyTorch on the
same GPU in the same precision, in RMS, and FACTOR_MAX times in the largest error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import shapes
from parts import Context
from shapes import run_config
from timing import torch_device

ROWS, SOURCE, TARGET = 6, 150, 140
"""Long enough for `auto` to choose the kernels; shorter where the model's tables are."""
SMALL_SOURCE, SMALL_TARGET = 20, 18
RATE, B1, B2, EPS, DECAY, DONE = 1e-3, 0.9, 0.98, 1e-8, 0.01, 9
"""Of AdamW, and how many of its steps are done."""
PRECISIONS = ("float32", "tf32", "bfloat16")
TF32_ROUNDOFF = 2.0**-11
QUANTITIES = ("logits", "loss", "gradients", "step")


def demo(context: Context) -> None:
    """Compares the demo's model with transformers' program of it."""
    _compare(context, "demo", _exported("demo", context.small, vocabulary=500))


def paper_base(context: Context) -> None:
    """Compares paper_base with transformers' program of it."""
    _compare(context, "paper_base", _exported("paper_base", context.small, vocabulary=300 if context.small else 8_000))


def marian(context: Context) -> None:
    """Compares a Marian of OPUS-MT's size."""
    with tempfile.TemporaryDirectory() as folder:
        shapes.marian(folder, context.small, vocabulary=8_000)
        _compare(context, "marian", _imported(folder))


def t5(context: Context) -> None:
    """Compares a T5-small."""
    with tempfile.TemporaryDirectory() as folder:
        shapes.t5(folder, context.small)
        _compare(context, "t5", _imported(folder))


def _imported(folder: Any) -> Any:
    from jax_transformer.porting import import_checkpoint

    return import_checkpoint(folder)


def _exported(preset: str, small: bool, vocabulary: int) -> Any:
    """Returns a preset's model with random weights, by way of transformers, so that it knows its program there."""
    import jax

    from jax_transformer.config.decoding import GenerationConfig
    from jax_transformer.exporting.transformers import export_transformers
    from jax_transformer.model.functional import init_params
    from jax_transformer.storage.model_directory import Model

    config = dataclasses.replace(
        run_config(preset, small and preset != "demo").model, source_vocab_size=vocabulary,
        target_vocab_size=vocabulary,
    )  # fmt: skip
    params = jax.tree.map(np.asarray, init_params(config, jax.random.key(0)))
    with tempfile.TemporaryDirectory() as folder:
        model = Model(config, params, None, None, GenerationConfig(decoder_start_id=2, eos_id=3))
        export_transformers(model, Path(folder) / "model")
        return _imported(Path(folder) / "model")


def _compare(context: Context, name: str, model: Any) -> None:
    import jax

    from jax_transformer.parity.backends.families import FamilyReference, exported_module
    from jax_transformer.parity.backends.jax_sides import without_dropout
    from jax_transformer.parity.backends.modules import Naming, module_reference
    from jax_transformer.parity.problems import own_problem
    from jax_transformer.porting.names_of_dialects import dialect_of_origin

    model = dataclasses.replace(model, config=without_dropout(model.config))
    module = exported_module(model, dialect_of_origin(model.origin or {}))
    problem = own_problem(model.config, model.params)
    reference = module_reference(FamilyReference, "transformers", module, model, Naming(None, None), problem)
    ids = _ids(model.config, context.small)
    on_gpu = jax.default_backend() == "gpu"
    truths: dict[str, Any] = {}
    for precision in ("float32", "bfloat16") if context.small else PRECISIONS:
        rounding = "bfloat16" if precision == "bfloat16" else "float32"
        if rounding not in truths:
            truths[rounding] = _on_cpu(model, _rounded(model.params, rounding), ids)
        try:
            moment = truths[rounding]["moment"]
            theirs = _torch_side(reference, model, _rounded(model.params, rounding), ids, precision, moment)
        except Exception as error:
            context.failed(f"{name}, PyTorch in {precision}", error)
            continue
        for path in ("reference", "flash", *(["auto"] if on_gpu else [])):
            start = time.perf_counter()
            try:
                ours = _jax_side(model, _rounded(model.params, rounding), ids, precision, path, moment)
            except Exception as error:
                context.failed(f"{name}, {precision}, {path}", error)
                continue
            seconds = time.perf_counter() - start
            for quantity in QUANTITIES:
                verdict = _judge(ours[quantity], theirs[quantity], truths[rounding][quantity], precision, quantity, ids)
                context.row(
                    what="parity", model=name, precision=precision, path=path, quantity=quantity, seconds=seconds,
                    **verdict,
                )  # fmt: skip


def _ids(config: Any, small: bool) -> dict[str, np.ndarray]:
    """Returns source_ids, decoder_input_ids and labels with padding at the right."""
    from jax_transformer.config.positions import Table

    rng = np.random.default_rng(0)
    wanted = (SMALL_SOURCE, SMALL_TARGET) if small else (SOURCE, TARGET)
    source, target = (
        min(length, stack.max_length - 3) if isinstance(stack.positions, Table) else length
        for length, stack in zip(wanted, (config.encoder, config.decoder), strict=True)
    )
    lowest = 4
    ids = {
        "source_ids": rng.integers(lowest, config.source_vocab_size - 2, (ROWS, source)),
        "decoder_input_ids": rng.integers(lowest, config.target_vocab_size - 2, (ROWS, target)),
        "labels": rng.integers(lowest, config.target_vocab_size - 2, (ROWS, target)),
    }
    for row in range(1, ROWS):
        ids["source_ids"][row, source - 2 * row :] = config.source_pad_id
        ids["decoder_input_ids"][row, target - 3 * row :] = config.target_pad_id
        ids["labels"][row, target - 3 * row :] = config.target_pad_id
    return {name: array.astype(np.int32) for name, array in ids.items()} | {
        "counted": ids["labels"] != config.target_pad_id
    }


def _rounded(params: Any, dtype: str) -> Any:
    """Returns parameters as float32 numbers that the dtype has; constants stay."""
    import ml_dtypes

    from jax_transformer.runtime.trees import flatten, unflatten

    if dtype == "float32":
        return params
    leaves = {
        path: np.asarray(leaf) if path.startswith("constants/") else
        np.asarray(leaf).astype(ml_dtypes.bfloat16).astype(np.float32)
        for path, leaf in flatten(params).items()
    }  # fmt: skip
    return unflatten(leaves)


# --- JAX


def _on_cpu(model: Any, params: Any, ids: Any) -> dict[str, Any]:
    """Computes the model on the CPU in float64, by the reference path."""
    import jax

    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        config = dataclasses.replace(model.config, attention_path="reference", compute_dtype=None)
        found = _computed(config, wide, ids)
    squares = [np.square(leaf).mean() for leaf in found["gradients"].values()]
    moment = float(np.float32(np.mean(squares)))
    return {**found, "step": _adamw(found["gradients"], wide, moment), "moment": moment}


def _jax_side(model: Any, params: Any, ids: Any, precision: str, path: str, moment: float) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    dtype = "bfloat16" if precision == "bfloat16" else None
    config = dataclasses.replace(model.config, attention_path=path, compute_dtype=dtype)
    with jax.default_matmul_precision({"float32": "highest", "tf32": "tensorfloat32"}.get(precision, "default")):
        on_device = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
        found = _computed(config, on_device, ids)
        return {**found, "step": _optax_step(found["gradients"], params, moment)}


def _computed(config: Any, params: Any, ids: Any) -> dict[str, Any]:
    """Returns logits, loss, and gradients by path."""
    import jax
    import jax.numpy as jnp

    from jax_transformer.model.functional import apply
    from jax_transformer.runtime.trees import flatten
    from jax_transformer.training.losses import Criterion, cross_entropy

    constants = {name: tree for name, tree in params.items() if name == "constants"}
    trained = {name: tree for name, tree in params.items() if name != "constants"}

    @jax.jit
    def compute(trained: Any, constants: Any, source_ids: Any, decoder_input_ids: Any, labels: Any) -> Any:
        def loss_of(trained: Any) -> Any:
            logits = apply(config, {**trained, **constants}, source_ids, decoder_input_ids)
            wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
            total, tokens = cross_entropy(wide, labels, Criterion(config.target_pad_id))
            return total / tokens, wide

        (loss, logits), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
        return logits, loss, gradients

    logits, loss, gradients = compute(trained, constants, ids["source_ids"], ids["decoder_input_ids"], ids["labels"])
    leaves = {path: np.asarray(leaf) for path, leaf in flatten(gradients).items()}
    return {"logits": np.asarray(logits), "loss": np.asarray(loss).reshape(1), "gradients": leaves}


def _adamw(gradients: Any, params: Any, moment: float) -> dict[str, np.ndarray]:
    """Returns update number DONE + 1 of AdamW in float64 (Loshchilov & Hutter 2019, algorithm 2).

    The first moments are 0, and all second moments are `moment`: the first update of all would be the gradient's sign,
    which says nothing of a gradient's error, or everything.
    """
    from jax_transformer.runtime.trees import flatten

    held, number = flatten(params), DONE + 1

    def update(path: str, gradient: np.ndarray) -> np.ndarray:
        mean = (1 - B1) * gradient / (1 - B1**number)
        root = np.sqrt((B2 * moment + (1 - B2) * gradient**2) / (1 - B2**number))
        return -RATE * (mean / (root + EPS) + DECAY * np.asarray(held[path], np.float64))

    return {path: update(path, gradient) for path, gradient in gradients.items()}


def _optax_step(gradients: Any, params: Any, moment: float) -> dict[str, np.ndarray]:
    """Returns the same update of optax's AdamW, in float32 on the device."""
    import jax
    import jax.numpy as jnp
    import optax

    from jax_transformer.runtime.trees import flatten

    held = {path: np.asarray(leaf, np.float32) for path, leaf in flatten(params).items() if path in gradients}
    narrow = {path: gradient.astype(np.float32) for path, gradient in gradients.items()}
    optimizer = optax.adamw(RATE, B1, B2, EPS, weight_decay=DECAY)

    @jax.jit
    def update(gradients: Any, params: Any) -> Any:
        adam, *others = optimizer.init(params)
        second = jax.tree.map(lambda leaf: jnp.full_like(leaf, moment), adam.nu)
        state = adam._replace(count=jnp.int32(DONE), nu=second), *others
        return optimizer.update(gradients, state, params)[0]

    return {path: np.asarray(leaf) for path, leaf in update(narrow, held).items()}


# --- PyTorch


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    import torch

    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _torch_side(reference: Any, model: Any, params: Any, ids: Any, precision: str, moment: float) -> dict[str, Any]:
    """Runs transformers' module on the GPU, with unfused attention."""
    import torch

    from jax_transformer.parity.backends.families import wide_fills

    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    module = reference.build(dtype).eval()
    held = module.state_dict()
    for name, array in reference.state_dict(params, held.keys()).items():
        held[name].copy_(torch.from_numpy(np.ascontiguousarray(array)))
    module = module.to(torch_device())
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    source, decoder_input, labels = (
        torch.from_numpy(ids[name].astype(np.int64)).to(torch_device())
        for name in ("source_ids", "decoder_input_ids", "labels")
    )
    with _tf32(precision == "tf32"), wide_fills():
        logits = module(
            input_ids=source, attention_mask=(source != model.config.source_pad_id).long(),
            decoder_input_ids=decoder_input, use_cache=False,
        ).logits.float()  # fmt: skip
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=model.config.target_pad_id
        )
        loss.backward()
    named = dict(module.named_parameters(remove_duplicate=False))
    for name, parameter in named.items():  # a second copy of a table, which nothing reads
        if parameter.grad is None:
            named[name] = next(
                (own for own in named.values() if own.grad is not None and torch.equal(own, parameter)), parameter
            )

    held = module.state_dict()

    def leaves_of(tensor_of: Any) -> dict[str, np.ndarray]:
        tensors = {name: tensor_of(named.get(name), tensor).float().cpu().numpy() for name, tensor in held.items()}
        found = reference.leaves(tensors)
        return {path: np.array(leaf) for path, leaf in found.items() if not path.startswith("constants/")}

    gradients = leaves_of(
        lambda parameter, tensor: (
            torch.zeros_like(tensor) if parameter is None or parameter.grad is None else parameter.grad
        )
    )
    copies = {name: parameter.detach().float().clone().requires_grad_() for name, parameter in named.items()}
    for name, copy in copies.items():
        copy.grad = None if named[name].grad is None else named[name].grad.float()
    before = {name: copy.detach().clone() for name, copy in copies.items()}
    adam = torch.optim.AdamW([*copies.values()], RATE, (B1, B2), EPS, DECAY)
    for copy in copies.values():
        adam.state[copy] = {
            "step": torch.tensor(float(DONE)),
            "exp_avg": torch.zeros_like(copy),
            "exp_avg_sq": torch.full_like(copy, moment),
        }
    adam.step()
    moved = {name: copies[name].detach().double() - before[name].double() for name in copies}
    step = leaves_of(
        lambda parameter, tensor: (
            torch.zeros_like(tensor)
            if parameter is None
            else next(moved[name] for name, own in named.items() if own is parameter)
        )
    )
    return {
        "logits": logits.detach().cpu().numpy(),
        "loss": loss.detach().float().cpu().numpy().reshape(1),
        "gradients": gradients,
        "step": step,
    }


# --- the gates


def _judge(ours: Any, theirs: Any, truth: Any, precision: str, quantity: str, ids: Any) -> dict[str, Any]:
    """Returns how far both sides are from the truth, and whether ours is within the gate; of many arrays, how many
    are, and the one that comes closest to its gate, or is furthest beyond."""
    from jax_transformer.comparison.gates.compare import compare
    from jax_transformer.comparison.gates.tolerances import (
        FACTOR_MAX,
        FACTOR_RMS,
        FLOOR_ROUNDOFFS,
        UNIT_ROUNDOFF,
        has_zero_gradient,
    )

    floor = FLOOR_ROUNDOFFS * (TF32_ROUNDOFF if precision == "tf32" else UNIT_ROUNDOFF[precision])
    where = ids["counted"][..., None] if quantity == "logits" else None
    arrays = {quantity: (ours, theirs, truth)} if not isinstance(truth, dict) else {
        path: (ours[path], theirs[path], truth[path]) for path in truth if not has_zero_gradient(path)
    }  # fmt: skip
    worst: dict[str, Any] = {"ratio": -1.0}
    passed = 0
    for path, (own, other, right) in arrays.items():
        if not np.any(right):
            continue
        of_ours, of_theirs = compare(own, right, where), compare(other, right, where)
        ratios = (
            of_ours.relative_rms / (FACTOR_RMS * max(of_theirs.relative_rms, floor)),
            of_ours.max_error / (FACTOR_MAX * max(of_theirs.max_error, floor)),
        )
        ratio = float(max(ratios)) if np.isfinite(ratios).all() else float("inf")
        passed += ratio <= 1.0
        if ratio > worst["ratio"]:
            worst = {
                "ratio": ratio, "worst": path, "error": of_ours.relative_rms, "torch_error": of_theirs.relative_rms,
                "largest": of_ours.max_error, "torch_largest": of_theirs.max_error,
            }  # fmt: skip
    error = worst.pop("error", None)
    return {"passed": passed, "arrays": len(arrays), "relative_rms": error, **worst}


# --- the command


def command(context: Context) -> None:
    """Runs `jax-transformer parity` on a small Marian, whose JAX side computes on the GPU in float64, float32 and
    bfloat16, stage by stage."""
    with tempfile.TemporaryDirectory() as folder:
        shapes.marian(Path(folder) / "opus", small=True)
        start = time.perf_counter()
        report = Path(folder) / "report.json"
        done = subprocess.run(
            [sys.executable, "-m", "jax_transformer.cli", "parity", str(Path(folder) / "opus"), "--json", str(report)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith(("✓", "✗", "parity"))]
        context.row(
            what="parity command", exit_code=done.returncode, seconds=time.perf_counter() - start, lines=lines,
            **({"error": done.stderr.strip()[-300:]} if done.returncode not in (0, 1) else {}),
        )  # fmt: skip
