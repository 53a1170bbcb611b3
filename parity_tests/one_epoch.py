"""`annotated_zh` at its debug sizes on Tatoeba, trained by its program's loop in PyTorch and by this project's step in
JAX, side by side.

    python parity_tests/one_epoch.py [--only exact|dropout] [--data FOLDER] [--epochs 1] [--seeds 5] [--json FILE]

Both sides take the same first weights and the same batches: its program's, 64 pairs sorted by the source's length, the
order of the batches shuffled once. Each is padded to one of a few shapes, on both sides alike, so that XLA compiles few
programs: in this system padding changes nothing but rounding.

exact: one epoch in float64 without dropout. Every step's loss, the dev loss and the weights at the end are compared;
beside them stands PyTorch against itself, each of its first weights changed in the last bit. The exit code is 1 if a
step's loss is not finite, or differs by more than 1e-9.

dropout: float32, each framework with random numbers of its own, so that only the distribution of the dev losses can be
compared. A seed is one draw of first weights and order for both sides.

The data's folder, with train.tsv and dev.tsv, is by default data/tatoeba_en_zh under JAX_TRANSFORMER_SHARED.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from recipes_in_torch import NO_DROPOUT, adam, divergence, noam, trained_leaves
from torch import nn

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import has_zero_gradient
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.recipes import annotated_zh_debug
from jax_transformer.data.batching import Batch, assemble
from jax_transformer.data.planning import Shape
from jax_transformer.data.preparation import PreparedCorpus, TokenPairs, prepare
from jax_transformer.model.functional import Params
from jax_transformer.porting import import_checkpoint
from jax_transformer.porting.state_dicts import params_from_state_dict
from jax_transformer.training.fitting import fit_config
from jax_transformer.training.state import all_params, init_state
from jax_transformer.training.step import make_evaluation_step, make_train_step
from torch_reference.annotated_zh import AnnotatedZhTransformer

RECIPE = annotated_zh_debug()
DIALECT = "annotated_zh"
SIZES = {"d_model": 128, "num_heads": 8, "d_ff": 256, "num_encoder_layers": 3, "num_decoder_layers": 3}
"""The program's for trying things out."""
BATCH = 64
SHAPES = ((8, 16), (16, 32), (40, 48))
"""Source and target positions that batches are padded to, smallest first; a longer one keeps its own lengths."""


Shapes = Sequence[tuple[int, int]]


class Task(NamedTuple):
    """What both sides are given, but for the weights."""

    train: list[Batch]
    dev: list[Batch]
    epochs: int


class Trained(NamedTuple):
    """What one side makes of it."""

    losses: list[float]  # of each step
    dev_losses: list[float]  # after each epoch, nats per target token, without dropout
    weights: dict[str, np.ndarray]  # by the JAX model's paths, layer by layer


def data_folder() -> str | None:
    shared = os.environ.get("JAX_TRANSFORMER_SHARED")
    return None if shared is None else str(Path(shared) / "data" / "tatoeba_en_zh")


# --- what both sides are given


def read_corpus(folder: str, cache_dir: str = RECIPE.data.cache_dir) -> PreparedCorpus:
    """train.tsv and dev.tsv, English words lowercased and Chinese characters."""
    train, dev = (str(Path(folder) / name) for name in ("train.tsv", "dev.tsv"))
    return prepare(dataclasses.replace(RECIPE.data, train=(train,), valid=(dev,), cache_dir=cache_dir))


def sorted_batches(pairs: TokenPairs, corpus: PreparedCorpus, shapes: Shapes = SHAPES) -> list[Batch]:
    """64 pairs in each but the last, sorted by the source's length."""
    source, target = corpus.source_tokenizer, corpus.target_tokenizer
    order = pairs.usable_indices[np.argsort(pairs.source_lengths[pairs.usable_indices], kind="stable")]
    batches = []
    for start in range(0, len(order), BATCH):
        indices = order[start : start + BATCH]
        longest = int(pairs.source_lengths[indices].max()), int(pairs.target_lengths[indices].max()) + 1
        lengths = next((shape for shape in shapes if shape[0] >= longest[0] and shape[1] >= longest[1]), longest)
        batches.append(
            assemble(
                pairs,
                Shape(len(indices), *lengths),
                indices,
                source_pad_id=source.pad_id,
                target_pad_id=target.pad_id,
                bos_id=target.bos_id,
                eos_id=target.eos_id,
            )
        )
    return batches


def shuffled(batches: list[Batch], seed: int) -> list[Batch]:
    return [batches[k] for k in np.random.default_rng(seed).permutation(len(batches))]


def make_task(corpus: PreparedCorpus, seed: int, epochs: int, shapes: Shapes = SHAPES) -> Task:
    """The batches are in the same order in every epoch, as in the program."""
    train, dev = (sorted_batches(corpus.splits[name], corpus, shapes) for name in ("train", "valid"))
    return Task(shuffled(train, seed), dev, epochs)


def first_model(corpus: PreparedCorpus, seed: int, dtype: torch.dtype) -> AnnotatedZhTransformer:
    """As the program begins: Xavier uniform on every matrix, embeddings too."""
    torch.manual_seed(seed)
    vocabularies = {
        f"{side}_vocab_size": getattr(corpus, f"{side}_tokenizer").vocab_size for side in ("source", "target")
    }
    model = AnnotatedZhTransformer(**vocabularies, **SIZES, dtype=dtype)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
    return model


def imported(model: AnnotatedZhTransformer, corpus: PreparedCorpus) -> tuple[TransformerConfig, Params]:
    """The same weights for JAX. The checkpoint's config must be the recipe's."""
    pads = {"source_pad_id": corpus.source_tokenizer.pad_id, "target_pad_id": corpus.target_tokenizer.pad_id}
    ours = import_checkpoint(model.state_dict(), DIALECT, num_heads=SIZES["num_heads"], **pads)
    expected = fit_config(RECIPE.model, corpus)
    if ours.config != expected:
        raise AssertionError(f"expected the recipe's config, {expected}; received {ours.config}")
    return ours.config, ours.params


# --- the two sides


def train_in_torch(model: AnnotatedZhTransformer, config: TransformerConfig, task: Task, with_dropout: bool) -> Trained:
    """The program's loop. Dropout draws from torch's generator as it stands."""
    compute_loss, optimizer = divergence(0.0), adam(1.0, 0.98, 1e-9)(list(model.parameters()))
    scheduler = noam(2000, first=1)(optimizer, config.d_model)

    def loss_of(batch: Batch) -> torch.Tensor:
        source_ids, decoder_input_ids, labels = (torch.from_numpy(ids).long() for ids in batch[:3])
        logits = model(source_ids, decoder_input_ids)
        return compute_loss(logits.flatten(0, 1), labels.flatten(), config.target_pad_id)

    def dev_loss() -> float:
        model.eval()
        with torch.no_grad():
            tokens = [int((batch.labels != config.target_pad_id).sum()) for batch in task.dev]
            return sum(loss_of(batch).item() * count for batch, count in zip(task.dev, tokens, strict=True)) / sum(
                tokens
            )

    losses, dev_losses = [], []
    for _ in range(task.epochs):
        model.train(with_dropout)
        for batch in task.train:
            optimizer.zero_grad()
            loss = loss_of(batch)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        dev_losses.append(dev_loss())
    return Trained(losses, dev_losses, trained_leaves(params_from_state_dict(config, model.state_dict(), DIALECT)))


def train_in_jax(config: TransformerConfig, params: Params, task: Task, seed: int = 0) -> Trained:
    """This project's step; dropout is a function of the seed, and as the config says."""
    train = dataclasses.replace(RECIPE.train, accumulate=1, seed=seed)
    state, train_step, evaluate = (
        init_state(config, train, params),
        make_train_step(config, train),
        make_evaluation_step(config),
    )
    losses, dev_losses = [], []
    for _ in range(task.epochs):
        for batch in task.train:
            state, metrics = train_step(state, batch)
            losses.append(float(metrics["loss"]))
        total, tokens = np.sum(
            [[float(number) for number in evaluate(all_params(state), batch)] for batch in task.dev], axis=0
        )
        dev_losses.append(float(total / tokens))
    return Trained(losses, dev_losses, trained_leaves(jax.device_get(state.params)))


# --- without dropout: the same numbers


GROWTH = (1, 10, 30, 100, 200)
"""Steps at which the largest difference so far is printed."""


EPOCH_LOSS_RELATIVE = 1e-9
"""Each loss of a whole epoch: ten times what the fifty steps of a trajectory may differ by, for training amplifies
rounding."""


class Differences(NamedTuple):
    """Of a candidate from a reference, all relative."""

    losses: np.ndarray  # of each step
    dev_loss: float  # after the last epoch
    weights: dict[str, float]  # RMS, by path; key biases left out, whose gradient is zero but for rounding
    key_biases: float  # largest RMS of theirs


def differences(candidate: Trained, reference: Trained) -> Differences:
    errors = {path: compare(candidate.weights[path], leaf).relative_rms for path, leaf in reference.weights.items()}
    is_key_bias = {path: has_zero_gradient(path.split("[")[0]) for path in errors}
    with np.errstate(invalid="ignore"):  # no number where either is none
        losses = np.abs(np.array(candidate.losses) / np.array(reference.losses) - 1.0)
    return Differences(
        losses=losses,
        dev_loss=abs(candidate.dev_losses[-1] / reference.dev_losses[-1] - 1.0),
        weights={path: error for path, error in errors.items() if not is_key_bias[path]},
        key_biases=max(error for path, error in errors.items() if is_key_bias[path]),
    )


def train_exactly(corpus: PreparedCorpus, task: Task, seed: int = 0) -> tuple[Trained, Trained]:
    """JAX's side and torch's, in float64 and without dropout; needs JAX's float64 enabled."""
    model = first_model(corpus, seed, torch.float64)
    config, params = imported(model, corpus)
    ours = train_in_jax(dataclasses.replace(config, **NO_DROPOUT), params, task, seed)
    return ours, train_in_torch(model, config, task, with_dropout=False)


def train_nudged(corpus: PreparedCorpus, task: Task, seed: int = 0) -> Trained:
    """Torch's side again, each of the first weights changed in its last bit."""
    model = first_model(corpus, seed, torch.float64)
    config, _ = imported(model, corpus)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.nextafter(parameter, torch.full_like(parameter, torch.inf)))
    return train_in_torch(model, config, task, with_dropout=False)


def measure_exactly(corpus: PreparedCorpus, seed: int = 0) -> dict[str, Any]:
    task = make_task(corpus, seed, epochs=1)
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        ours, theirs = timed("JAX and PyTorch", lambda: train_exactly(corpus, task, seed))
        nudged = timed("PyTorch from weights changed in the last bit", lambda: train_nudged(corpus, task, seed))
    found = {"jax": differences(ours, theirs), "torch_nudged": differences(nudged, theirs)}
    for name, difference in found.items():
        step = int(difference.losses.argmax())
        path = max(difference.weights, key=lambda path: difference.weights[path])
        print(f"{name} against torch, {len(difference.losses)} steps:")
        print(
            f"  losses: at most {difference.losses.max():.1e}, at step {step + 1}; dev loss: {difference.dev_loss:.1e}"
        )
        print("  losses, at most until step " + ", ".join(f"{k}: {difference.losses[:k].max():.1e}" for k in GROWTH))
        print(
            f"  weights: at most {difference.weights[path]:.1e}, {path}; key biases: {difference.key_biases:.1e}",
            flush=True,
        )
    return {
        "losses": theirs.losses,
        "dev_losses": theirs.dev_losses,
        "differences": {
            name: {**difference._asdict(), "losses": difference.losses.tolist()} for name, difference in found.items()
        },
    }


def complaint(losses: Sequence[float]) -> str:
    """What is wrong with the losses' differences from PyTorch's, step by step; empty if nothing is."""
    wrong = [step for step, difference in enumerate(losses) if not difference <= EPOCH_LOSS_RELATIVE]
    if not wrong:
        return ""
    return (
        f"FAILED: {len(wrong)} of {len(losses)} losses are not finite, or differ from torch's by more than "
        f"{EPOCH_LOSS_RELATIVE:g}; "
        f"the first at step {wrong[0] + 1}, by {losses[wrong[0]]:.1e}"
    )


# --- with dropout: the same distribution


def measure_dropout(corpus: PreparedCorpus, epochs: int, seeds: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        task = make_task(corpus, seed, epochs)
        model = first_model(corpus, seed, torch.float32)
        config, params = imported(model, corpus)
        ours = timed(f"seed {seed}, JAX", lambda: train_in_jax(config, params, task, seed))  # noqa: B023
        theirs = timed(f"seed {seed}, PyTorch", lambda: train_in_torch(model, config, task, with_dropout=True))  # noqa: B023
        print(
            f"  dev loss after each epoch: JAX {listed(ours.dev_losses)}, PyTorch {listed(theirs.dev_losses)}",
            flush=True,
        )
        rows.append({"seed": seed, "jax": ours.dev_losses, "torch": theirs.dev_losses})
    return {"rows": rows, "by_epoch": [summary(rows, epoch) for epoch in range(epochs)]}


def summary(rows: list[dict[str, Any]], epoch: int) -> dict[str, float]:
    """Means, standard deviations, and the difference within each seed; printed, too."""
    ours, theirs = ([row[side][epoch] for row in rows] for side in ("jax", "torch"))
    paired = [one - other for one, other in zip(ours, theirs, strict=True)]
    found = {
        "jax_mean": statistics.mean(ours), "jax_deviation": statistics.stdev(ours),
        "torch_mean": statistics.mean(theirs), "torch_deviation": statistics.stdev(theirs),
        "difference": statistics.mean(paired), "difference_deviation": statistics.stdev(paired),
    }  # fmt: skip
    smaller = min(found["jax_deviation"], found["torch_deviation"])
    verdict = "less" if abs(found["difference"]) < smaller else "NOT less"
    print(
        f"epoch {epoch + 1}: JAX {found['jax_mean']:.4f} ± {found['jax_deviation']:.4f}, PyTorch "
        f"{found['torch_mean']:.4f} ± "
        f"{found['torch_deviation']:.4f}; the means differ by {found['difference']:+.4f}, {verdict} than the smaller "
        "deviation; "
        f"within a seed by {found['difference']:+.4f} ± {found['difference_deviation']:.4f}"
    )
    return found


# --- the command


def listed(numbers: list[float]) -> str:
    return " ".join(f"{number:.4f}" for number in numbers)


def timed(what: str, work: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = work()
    print(f"{what}: {time.perf_counter() - start:.0f} s", flush=True)
    return result


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "jax": version("jax"),
        "torch": version("torch"),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("exact", "dropout"))
    parser.add_argument("--data", default=data_folder())
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("expected --data, or JAX_TRANSFORMER_SHARED in the environment; received neither")
    if options.seeds < 2:
        parser.error(f"--seeds: expected 2 or more, for a deviation; received {options.seeds}")
    corpus = read_corpus(options.data)
    record: dict[str, Any] = {"machine": machine()}
    if options.only != "dropout":
        record["exact"] = measure_exactly(corpus)
    if options.only != "exact":
        record["dropout"] = measure_dropout(corpus, options.epochs, options.seeds)
    if options.json:
        Path(options.json).write_text(json.dumps(record, indent=1), encoding="utf-8")
    failed = complaint(record["exact"]["differences"]["jax"]["losses"]) if "exact" in record else ""
    if failed:
        print(failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
