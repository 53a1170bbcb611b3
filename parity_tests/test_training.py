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
from recipes_in_torch import divergence, noam
from torch import nn
from torch.nn import functional as torch_functional
from torch.optim import lr_scheduler

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.model import functional
from jax_transformer.training import losses
from jax_transformer.training.losses import Criterion, cross_entropy
from jax_transformer.training.optimizers import make_optimizer
from jax_transformer.training.schedules import make_schedule, plateau_scale

pytestmark = pytest.mark.usefixtures("quick_compilation")

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


class DecoupledSGD(torch.optim.SGD):
    """Decays the parameters themselves before SGD's step, past the momentum, as AdamW does before Adam's. (torch has no
    such SGD.)"""

    def __init__(self, parameters: list[nn.Parameter], rate: float, momentum: float, decay: float) -> None:
        super().__init__(parameters, rate, momentum=momentum)
        self.decay = decay

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["lr"] * self.decay * parameter
        return super().step(closure)


OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[list[nn.Parameter]], torch.optim.Optimizer]]] = {
    "Adam": ({}, lambda p: torch.optim.Adam(p, 0.01, (0.9, 0.98), 1e-9)),
    "Adam, ε 5e-9, L2 5e-4": (
        {"adam_b2": 0.999, "adam_eps": 5e-9, "weight_decay": 5e-4},
        lambda p: torch.optim.Adam(p, 0.01, (0.9, 0.999), 5e-9, weight_decay=5e-4),
    ),
    "AdamW": (
        {"weight_decay": 0.1, "weight_decay_kind": "decoupled"},
        lambda p: torch.optim.AdamW(p, 0.01, (0.9, 0.98), 1e-9, 0.1),
    ),
    "SGD": ({"optimizer": "sgd"}, lambda p: torch.optim.SGD(p, 0.01)),
    "SGD, momentum, L2": (
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, weight_decay=0.01),
    ),
    "SGD, decoupled decay": (
        {"optimizer": "sgd", "weight_decay": 0.1, "weight_decay_kind": "decoupled"},
        lambda p: DecoupledSGD(p, 0.01, 0.0, 0.1),
    ),
    "SGD, momentum, decoupled decay": (
        {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1, "weight_decay_kind": "decoupled"},
        lambda p: DecoupledSGD(p, 0.01, 0.9, 0.1),
    ),
    "Adam, clipped to norm 1": ({"clip_norm": 1.0}, lambda p: torch.optim.Adam(p, 0.01, (0.9, 0.98), 1e-9)),
    "SGD, clipped to norm 1": ({"optimizer": "sgd", "clip_norm": 1.0}, lambda p: torch.optim.SGD(p, 0.01)),
    "Adam, ε 5e-9, clipped to norm 1, L2 5e-4": (
        {"adam_b2": 0.999, "adam_eps": 5e-9, "clip_norm": 1.0, "weight_decay": 5e-4},
        lambda p: torch.optim.Adam(p, 0.01, (0.9, 0.999), 5e-9, weight_decay=5e-4),
    ),
    "AdamW, clipped to norm 1": (
        {"clip_norm": 1.0, "weight_decay": 0.1, "weight_decay_kind": "decoupled"},
        lambda p: torch.optim.AdamW(p, 0.01, (0.9, 0.98), 1e-9, 0.1),
    ),
    "SGD, momentum, clipped to norm 1, L2": (
        {"optimizer": "sgd", "momentum": 0.9, "clip_norm": 1.0, "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, weight_decay=0.1),
    ),
    "SGD, momentum, clipped to norm 1, decoupled decay": (
        {"optimizer": "sgd", "momentum": 0.9, "clip_norm": 1.0, "weight_decay": 0.1, "weight_decay_kind": "decoupled"},
        lambda p: DecoupledSGD(p, 0.01, 0.9, 0.1),
    ),
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


@pytest.mark.parametrize("size", [1.0, 1e-9, 1e-17])
def test_torchs_adafactor(size: float) -> None:
    """Also where second moments are clamped: below the squared machine epsilon, 5e-32."""
    rng = np.random.default_rng(2)
    first = {"matrix": rng.standard_normal((3, 5)), "wide": rng.standard_normal((6, 2)), "vector": np.ones(4)}
    fields = {"schedule": "relative", "relative_step": 0.3, "warmup_steps": 0, "learning_rate": 1.0}
    config = TrainConfig(optimizer="adafactor", factored_from=1, factored_eps="clamped", **fields)
    optimizer = make_optimizer(config, make_schedule(config, D_MODEL))
    params = jax.tree.map(jnp.asarray, first)
    state = optimizer.init(params)
    parameters = [nn.Parameter(torch.from_numpy(value.copy())) for value in first.values()]
    theirs = torch.optim.Adafactor(parameters, 0.3)
    for _ in range(20):
        gradient = {name: size * rng.standard_normal(value.shape) for name, value in first.items()}
        updates, state = optimizer.update(jax.tree.map(jnp.asarray, gradient), state, params)
        params = jax.tree.map(jnp.add, params, updates)
        for parameter, value in zip(parameters, gradient.values(), strict=True):
            parameter.grad = torch.from_numpy(value)
        theirs.step()
    for parameter, name in zip(parameters, first, strict=True):
        expected = parameter.detach().numpy()
        assert not np.array_equal(expected, first[name])
        np.testing.assert_allclose(params[name], expected, rtol=RELATIVE, err_msg=name)


PAD_ROW = 3


@pytest.mark.parametrize("trains_pad_embedding", [False, True])
def test_the_pads_row_of_an_embedding(trains_pad_embedding: bool) -> None:
    """That of torch's padding_idx has no gradient, and L2 still moves it: under Adam as far as any other. (sayhello and
    hyunwoongko.)"""
    model = TransformerConfig(
        source_vocab_size=6,
        target_vocab_size=6,
        d_model=4,
        num_heads=1,
        d_ff=4,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_length=8,
        source_pad_id=PAD_ROW,
        scale_embedding=False,
        trains_pad_embedding=trains_pad_embedding,
    )
    rng = np.random.default_rng(2)
    ids, factors = rng.integers(6, size=(STEPS, 3, 5)), rng.standard_normal((STEPS, 3, 5, 4))
    start = rng.standard_normal((6, 4))
    config = TrainConfig(
        schedule="constant", learning_rate=0.01, warmup_steps=0, adam_b2=0.999, adam_eps=5e-9, weight_decay=5e-4
    )
    optimizer = make_optimizer(config, make_schedule(config, D_MODEL))
    others = jax.tree.map(lambda leaf: leaf.astype(float), functional.init_params(model, jax.random.key(0)))

    def loss(table: jax.Array, ids: jax.Array, factors: jax.Array) -> jax.Array:
        _, trace = functional.apply(
            model, others | {"source_embedding": {"embedding": table}}, ids, ids, return_trace=True
        )
        return (trace["encoder.token_embedding"] * factors).sum()

    def step(carry: tuple[Any, Any], inputs: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, Any], jax.Array]:
        table, state = carry
        updates, state = optimizer.update(jax.grad(loss)(table, *inputs), state, table)
        return (table + updates, state), table + updates

    received = np.asarray(
        jax.lax.scan(step, (jnp.asarray(start), optimizer.init(jnp.asarray(start))), (ids, factors))[1]
    )
    embedding = nn.Embedding(6, 4, padding_idx=None if trains_pad_embedding else PAD_ROW, dtype=torch.float64)
    with torch.no_grad():
        embedding.weight.copy_(torch.from_numpy(start))
    theirs = torch.optim.Adam(embedding.parameters(), 0.01, (0.9, 0.999), 5e-9, weight_decay=5e-4)
    for number in range(STEPS):
        theirs.zero_grad()
        (embedding(torch.from_numpy(ids[number])) * torch.from_numpy(factors[number])).sum().backward()
        theirs.step()
        np.testing.assert_allclose(received[number], embedding.weight.detach().numpy(), rtol=RELATIVE, atol=RELATIVE)
    if not trains_pad_embedding:
        assert np.abs(received[-1, PAD_ROW]).max() < 0.1 < 0.5 < np.abs(start[PAD_ROW]).max()  # decayed


# --- schedules


def rates_of(build: Callable[[torch.optim.Optimizer], Any], peak: float = 1.0) -> Iterator[float]:
    """The rate that each of torch's steps is made with."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = build(optimizer)
    for _ in range(STEPS):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()


SCHEDULES: dict[str, tuple[dict[str, Any], Callable[[], Iterator[float]]]] = {
    "Noam, its own step counter": (
        {"schedule": "paper", "learning_rate": 2.0, "warmup_steps": 400},
        lambda: rates_of(lambda optimizer: noam(400, first=1)(optimizer, D_MODEL), 2.0),
    ),
    "Noam by LambdaLR": (
        {"schedule": "paper", "learning_rate": 1.5, "warmup_steps": 300, "repeats_first_rate": True},
        lambda: rates_of(lambda optimizer: noam(300, first=0)(optimizer, D_MODEL), 1.5),
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
        {
            "schedule": "cosine_restarts",
            "learning_rate": 0.3,
            "warmup_steps": 0,
            "restart_steps": 37,
            "restart_factor": 2,
        },
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
    config = TrainConfig(
        schedule="constant", learning_rate=rate, warmup_steps=0, plateau_patience=patience, plateau_start=start
    )
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
    """Divergence from smoothed targets, as the Annotated Transformer makes them, summed again."""
    return divergence(epsilon)(logits, labels, PAD) * (labels != PAD).sum()


def fairseq(logits: torch.Tensor, labels: torch.Tensor, epsilon: float) -> torch.Tensor:
    """ε/(V - 1) on each entry, the rest on the label; pads left out."""
    each = epsilon / (VOCABULARY - 1)
    log_probabilities = torch.log_softmax(logits, dim=-1)
    of_label = -log_probabilities.gather(1, labels[:, None])[:, 0]
    losses = (1.0 - epsilon - each) * of_label - each * log_probabilities.sum(dim=-1)
    return losses[labels != PAD].sum()


def torch_loss(**options: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda logits, labels: torch_functional.cross_entropy(logits, labels, reduction="sum", **options)


LOSSES: dict[str, tuple[Criterion, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "pads ignored": (Criterion(PAD), torch_loss(ignore_index=PAD)),
    "pads counted": (Criterion(PAD, counts_pads=True), torch_loss()),
    "torch's smoothing": (Criterion(PAD, 0.1), torch_loss(ignore_index=PAD, label_smoothing=0.1)),
    "torch's smoothing, pads counted": (Criterion(PAD, 0.3, counts_pads=True), torch_loss(label_smoothing=0.3)),
    "fairseq's smoothing": (Criterion(PAD, 0.1, "others"), lambda x, y: fairseq(x, y, 0.1)),
    "the Annotated Transformer's": (Criterion(PAD, 0.1, "others_but_pad"), lambda x, y: annotated(x, y, 0.1)),
    "the Annotated Transformer's, unsmoothed": (
        Criterion(PAD, 0.0, "others_but_pad"),
        lambda x, y: annotated(x, y, 0.0),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    """Values, and gradients to the logits."""
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
    np.testing.assert_allclose(
        np.asarray(gradient).reshape(-1, VOCABULARY), in_torch.grad.numpy(), rtol=1e-11, atol=1e-15
    )
    assert math.isfinite(expected.item())


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("most", "chunks"), [(42, (1, 42)), (14, (3, 14)), (5, (9, 5)), (1, (42, 1))])
def test_losses_in_chunks(name: str, most: int, chunks: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As training has them: values, and gradients to the decoder's output and to the head, of so many chunks of so many
    tokens."""
    criterion, theirs = LOSSES[name]
    _, labels = logits_and_labels()
    rng = np.random.default_rng(6)
    arrays = rng.standard_normal((6, 7, 8)), rng.standard_normal((8, VOCABULARY)), rng.standard_normal(VOCABULARY)
    hidden, kernel, bias = (torch.from_numpy(array).requires_grad_() for array in arrays)
    expected = theirs((hidden @ kernel + bias).flatten(0, 1), torch.from_numpy(labels).flatten())
    (expected / 7).backward()

    whole, seen = losses._loss_of_chunks, []
    monkeypatch.setattr(losses, "CHUNK_BYTES", most * 4 * VOCABULARY)
    monkeypatch.setattr(losses, "_loss_of_chunks", lambda *given: seen.append(given[1].shape[:2]) or whole(*given))

    def summed(hidden: jax.Array, kernel: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        total, count = losses.chunked_cross_entropy(hidden, kernel, bias, jnp.asarray(labels), criterion)
        return total / 7, count

    (value, count), gradients = jax.value_and_grad(summed, argnums=(0, 1, 2), has_aux=True)(*map(jnp.asarray, arrays))
    assert seen == [chunks]
    np.testing.assert_allclose(value, expected.item() / 7, rtol=RELATIVE)
    np.testing.assert_allclose(summed(*map(jnp.asarray, arrays))[0], expected.item() / 7, rtol=RELATIVE)
    assert int(count) == (labels.size if criterion.counts_pads else (labels != PAD).sum())
    for gradient, tensor in zip(gradients, (hidden, kernel, bias), strict=True):
        assert tensor.grad is not None
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-11, atol=1e-14)
