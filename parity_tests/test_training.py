"""What trains a model: losses, optimizers, clipping and schedules are torch's, over 1000 steps in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as torch_functional
from torch.optim import lr_scheduler

from jax_transformer.run_config import TrainConfig
from jax_transformer.training.losses import Criterion, chunked_cross_entropy, cross_entropy
from jax_transformer.training.optimizers import make_optimizer
from jax_transformer.training.schedules import make_schedule, plateau_scale

STEPS = 1000
RELATIVE = 1e-12
D_MODEL = 96

# --- optimizers


def gradients(seed: int = 0) -> np.ndarray:
    """[STEPS, 20]: of very different sizes, some zero."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-6, 2, 20)
    noise = rng.standard_normal((STEPS, 20)) * sizes
    noise[:, 3] = 0.0
    noise[rng.random(STEPS) < 0.05] = 0.0
    return noise


START = np.random.default_rng(1).standard_normal(20)

OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[list[nn.Parameter]], torch.optim.Optimizer]]] = {
    "Adam": ({}, lambda p: torch.optim.Adam(p, 0.01, (0.9, 0.98), 1e-9)),
    "Adam, ε 5e-9, L2 5e-4": (
        {"adam_b2": 0.999, "adam_eps": 5e-9, "weight_decay": 5e-4},
        lambda p: torch.optim.Adam(p, 0.01, (0.9, 0.999), 5e-9, weight_decay=5e-4),
    ),
    "AdamW": ({"weight_decay": 0.1, "weight_decay_kind": "decoupled"}, lambda p: torch.optim.AdamW(p, 0.01, (0.9, 0.98), 1e-9, 0.1)),
    "SGD": ({"optimizer": "sgd", "adam_b1": 0.0}, lambda p: torch.optim.SGD(p, 0.01)),
    "SGD, momentum, L2": (
        {"optimizer": "sgd", "adam_b1": 0.9, "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, weight_decay=0.01),
    ),
    "Adam, clipped to norm 1": ({"clip_norm": 1.0}, lambda p: torch.optim.Adam(p, 0.01, (0.9, 0.98), 1e-9)),
    "SGD, clipped to norm 1": ({"optimizer": "sgd", "adam_b1": 0.0, "clip_norm": 1.0}, lambda p: torch.optim.SGD(p, 0.01)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    options, build = OPTIMIZERS[name]
    config = TrainConfig(schedule="constant", learning_rate=0.01, warmup_steps=0, **options)
    optimizer = make_optimizer(config, make_schedule(config, D_MODEL))

    def step(carry: tuple[Any, Any], gradient: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
        params, state = carry
        updates, state = optimizer.update({"w": gradient}, state, params)
        params = jax.tree.map(jnp.add, params, updates)
        return (params, state), params["w"]

    first = {"w": jnp.asarray(START)}
    received = np.asarray(jax.lax.scan(step, (first, optimizer.init(first)), jnp.asarray(gradients()))[1])
    parameter = nn.Parameter(torch.from_numpy(START.copy()))
    theirs = build([parameter])
    for gradient, values in zip(gradients(), received, strict=True):
        parameter.grad = torch.from_numpy(gradient.copy())
        if config.clip_norm:
            nn.utils.clip_grad_norm_([parameter], config.clip_norm)
        theirs.step()
        np.testing.assert_allclose(values, parameter.detach().numpy(), rtol=RELATIVE, atol=RELATIVE)


# --- schedules


def rates_of(build: Callable[[torch.optim.Optimizer], Any], peak: float = 1.0) -> Iterator[float]:
    """The rate that each of torch's steps is made with."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = build(optimizer)
    for _ in range(STEPS):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()


def noam(step: int, factor: float, warmup: int) -> float:
    return factor * D_MODEL**-0.5 * min(step**-0.5, step * warmup**-1.5)


SCHEDULES: dict[str, tuple[dict[str, Any], Callable[[], Iterator[float]]]] = {
    "Noam, its own step counter": (
        {"schedule": "paper", "learning_rate": 2.0, "warmup_steps": 400},
        lambda: (noam(step, 2.0, 400) for step in range(1, STEPS + 1)),
    ),
    "Noam by LambdaLR": (
        {"schedule": "paper", "learning_rate": 1.5, "warmup_steps": 300, "repeats_first_rate": True},
        lambda: rates_of(lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: noam(max(step, 1), 1.5, 300))),
    ),
    "constant": ({"schedule": "constant", "learning_rate": 1e-4, "warmup_steps": 0}, lambda: iter([1e-4] * STEPS)),
    "cosine": (
        {"schedule": "cosine", "learning_rate": 0.3, "warmup_steps": 0},
        lambda: rates_of(lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS), 0.3),
    ),
    "cosine restarts": (
        {"schedule": "cosine_restarts", "learning_rate": 0.3, "warmup_steps": 0, "restart_steps": 90},
        lambda: rates_of(lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 90), 0.3),
    ),
    "cosine restarts, doubled": (
        {"schedule": "cosine_restarts", "learning_rate": 0.3, "warmup_steps": 0, "restart_steps": 37, "restart_factor": 2},
        lambda: rates_of(lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 37, 2), 0.3),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str) -> None:
    options, expected = SCHEDULES[name]
    received = jax.vmap(make_schedule(TrainConfig(max_steps=STEPS, **options), D_MODEL))(jnp.arange(STEPS))
    np.testing.assert_allclose(received, list(expected()), rtol=RELATIVE, atol=1e-16)


@pytest.mark.parametrize(("rate", "patience", "start"), [(1e-5, 3, 20), (1e-3, 10, 0), (1.0, 1, 5)])
def test_reduce_on_plateau(rate: float, patience: int, start: int) -> None:
    """With torch's ε of 1e-8 a rate of 1e-5 stops near 1e-7."""
    rng = np.random.default_rng(3)
    losses = (5.0 / np.arange(1, STEPS + 1) ** 0.5 + rng.uniform(0, 0.3, STEPS)).tolist()
    config = TrainConfig(schedule="constant", learning_rate=rate, warmup_steps=0, plateau_patience=patience, plateau_start=start)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=patience)
    for count, loss in enumerate(losses, 1):
        if count > start:
            scheduler.step(loss)
        if count % 50 == 0 or count < 60:
            expected = optimizer.param_groups[0]["lr"]
            np.testing.assert_allclose(rate * plateau_scale(config, losses[:count]), expected, rtol=RELATIVE)
    assert optimizer.param_groups[0]["lr"] < 0.2 * rate


# --- losses

PAD, VOCABULARY = 2, 13


def logits_and_labels() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    labels = rng.integers(VOCABULARY, size=(6, 7))
    labels[2, 3:] = labels[4] = PAD
    return 3.0 * rng.standard_normal((6, 7, VOCABULARY)), labels


def annotated(logits: torch.Tensor, labels: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Divergence from smoothed targets, as the Annotated Transformer makes them."""
    targets = torch.full_like(logits, epsilon / (VOCABULARY - 2))
    targets.scatter_(1, labels[:, None], 1.0 - epsilon)
    targets[:, PAD] = 0.0
    targets[labels == PAD] = 0.0
    return torch_functional.kl_div(torch.log_softmax(logits, dim=-1), targets, reduction="sum")


def fairseq(logits: torch.Tensor, labels: torch.Tensor, epsilon: float) -> torch.Tensor:
    """ε/(V - 1) on each entry, the rest on the label; pads left out."""
    each = epsilon / (VOCABULARY - 1)
    log_probabilities = torch.log_softmax(logits, dim=-1)
    of_label = -log_probabilities.gather(1, labels[:, None])[:, 0]
    losses = (1.0 - epsilon - each) * of_label - each * log_probabilities.sum(dim=-1)
    return losses[labels != PAD].sum()


def of_torch(**options: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda logits, labels: torch_functional.cross_entropy(logits, labels, reduction="sum", **options)


LOSSES: dict[str, tuple[Criterion, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "pads ignored": (Criterion(PAD), of_torch(ignore_index=PAD)),
    "pads counted": (Criterion(PAD, counts_pads=True), of_torch()),
    "torch's smoothing": (Criterion(PAD, 0.1), of_torch(ignore_index=PAD, label_smoothing=0.1)),
    "torch's smoothing, pads counted": (Criterion(PAD, 0.3, counts_pads=True), of_torch(label_smoothing=0.3)),
    "fairseq's smoothing": (Criterion(PAD, 0.1, "others"), lambda x, y: fairseq(x, y, 0.1)),
    "the Annotated Transformer's": (Criterion(PAD, 0.1, "others_but_pad"), lambda x, y: annotated(x, y, 0.1)),
    "the Annotated Transformer's, unsmoothed": (Criterion(PAD, 0.0, "others_but_pad"), lambda x, y: annotated(x, y, 0.0)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    """Values, and gradients to the logits; also a chunk at a time, as training does."""
    target, theirs = LOSSES[name]
    logits, labels = logits_and_labels()
    in_torch = torch.from_numpy(logits).flatten(0, 1).requires_grad_()
    expected = theirs(in_torch, torch.from_numpy(labels).flatten())
    expected.backward()
    assert in_torch.grad is not None

    def summed(x: jax.Array) -> jax.Array:
        return cross_entropy(x, jnp.asarray(labels), target)[0]

    value, gradient = jax.value_and_grad(summed)(jnp.asarray(logits))
    np.testing.assert_allclose(value, expected.item(), rtol=RELATIVE)
    np.testing.assert_allclose(np.asarray(gradient).reshape(-1, VOCABULARY), in_torch.grad.numpy(), rtol=1e-11, atol=1e-15)
    in_chunks, count = chunked_cross_entropy(jnp.asarray(logits), jnp.eye(VOCABULARY), None, jnp.asarray(labels), target)
    np.testing.assert_allclose(in_chunks, expected.item(), rtol=RELATIVE)
    assert int(count) == (labels.size if target.counts_pads else (labels != PAD).sum())
    assert math.isfinite(expected.item())
