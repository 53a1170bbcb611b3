"""Losses and optimizer steps in NumPy are PyTorch's, which the trainer's are compared with as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from recipes_in_torch import divergence
from torch import nn
from torch.nn import functional as torch_functional

from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.parity.diagnosis.training import Step, explain_loss, explain_steps
from jax_transformer.parity.oracle.losses import LossRule, logits_gradient, loss
from jax_transformer.parity.oracle.updates import UpdateRule, initial_state, step

pytestmark = pytest.mark.usefixtures("quick_compilation")

# --- losses

PAD, VOCABULARY = 2, 13
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def cross_entropy(**options: Any) -> Loss:
    return lambda logits, labels: torch_functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), **options)


def annotated(epsilon: float) -> Loss:
    return lambda logits, labels: divergence(epsilon)(logits.flatten(0, 1), labels.flatten(), PAD)


def loss_of_probabilities(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What a model that ends in softmax trains with."""
    return cross_entropy(ignore_index=PAD)(torch.softmax(logits, dim=-1), labels)


def mean_of_elements(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """KLDivLoss as it is by default, where it warns of it."""
    targets = torch.zeros_like(logits).scatter_(2, labels[..., None], 1.0) * (labels != PAD)[..., None]
    return nn.KLDivLoss(reduction="none")(torch.log_softmax(logits, dim=-1), targets).mean()


def mean_of_sentences(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    pairs = [(rows, of) for rows, of in zip(logits, labels, strict=True) if (of != PAD).any()]
    return torch.stack([torch_functional.cross_entropy(rows, of, ignore_index=PAD) for rows, of in pairs]).mean()


def loss_of_next_token(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A shift too many."""
    return cross_entropy(ignore_index=PAD)(logits[:, :-1], labels[:, 1:])


LOSSES: dict[str, tuple[LossRule, Loss]] = {
    "pads ignored": (LossRule(PAD), cross_entropy(ignore_index=PAD)),
    "pads counted": (LossRule(PAD, counts_pads=True), cross_entropy()),
    "smoothed": (LossRule(PAD, 0.1), cross_entropy(ignore_index=PAD, label_smoothing=0.1)),
    "smoothed, pads counted": (LossRule(PAD, 0.2, counts_pads=True), cross_entropy(label_smoothing=0.2)),
    "summed": (
        LossRule(PAD, 0.1, mean_over="sum"),
        cross_entropy(ignore_index=PAD, label_smoothing=0.1, reduction="sum"),
    ),
    "the Annotated Transformer's": (LossRule(PAD, 0.1, "others_but_pad"), annotated(0.1)),
    "the Annotated Transformer's, unsmoothed": (LossRule(PAD, 0.0, "others_but_pad"), annotated(0.0)),
    "of probabilities": (LossRule(PAD, normalizer="log_softmax_of_softmax"), loss_of_probabilities),
    "mean of elements": (LossRule(PAD, mean_over="elements"), mean_of_elements),
    "mean of sentences": (LossRule(PAD, mean_over="sentences"), mean_of_sentences),
    "of the next": (LossRule(PAD, label_shift=1), loss_of_next_token),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    """Values, and gradients to the logits; and a loss that is another rule's is named."""
    rule, theirs = LOSSES[name]
    rng = np.random.default_rng(5)
    labels, array = rng.integers(VOCABULARY, size=(6, 7)), 3.0 * rng.standard_normal((6, 7, VOCABULARY))
    labels[2, 3:] = labels[4] = PAD
    logits = torch.from_numpy(array).requires_grad_()
    expected = theirs(logits, torch.from_numpy(labels))
    expected.backward()
    assert logits.grad is not None
    np.testing.assert_allclose(loss(rule, array, labels), expected.item(), rtol=FLOAT64_RELATIVE_RMS)
    assert relative_rms(logits_gradient(rule, array, labels), logits.grad.numpy()) <= FLOAT64_RELATIVE_RMS

    assert explain_loss(rule, array, labels, expected.item()) is None
    finding = explain_loss(LossRule(PAD, rule.label_smoothing or 0.1, "others"), array, labels, expected.item())
    assert finding is not None
    assert finding.matches


# --- steps

STEPS = 5
SHAPES = {"embedding": (9, 4), "norm/scale": (4,), "output/kernel": (4, 3), "output/bias": (3,)}
Build = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Run = tuple[dict[str, np.ndarray], list[Step]]
L2 = {"weight_decay": 5e-4}

OPTIMIZERS: dict[str, tuple[UpdateRule, Build]] = {
    "Adam": (UpdateRule("adam", (0.01,) * STEPS), lambda p: torch.optim.Adam(p, 0.01, (0.9, 0.98), 1e-9)),
    "Adam, L2, clipped": (
        UpdateRule("adam", (1e-5,) * STEPS, b2=0.999, eps=5e-9, clip_norm=1.0, **L2),
        lambda p: torch.optim.Adam(p, 1e-5, (0.9, 0.999), 5e-9, **L2),
    ),
    "AdamW, clipped": (
        UpdateRule("adam", (0.01,) * STEPS, clip_norm=1.0, weight_decay=0.1, weight_decay_kind="decoupled"),
        lambda p: torch.optim.AdamW(p, 0.01, (0.9, 0.98), 1e-9, 0.1),
    ),
    "Adam, maximised": (
        UpdateRule("adam", (0.01,) * STEPS, ascends=True),
        lambda p: torch.optim.Adam(p, 0.01, (0.9, 0.98), 1e-9, maximize=True),
    ),
    "SGD": (UpdateRule("sgd", (0.01,) * STEPS), lambda p: torch.optim.SGD(p, 0.01)),
    "SGD, momentum, L2, clipped": (
        UpdateRule("sgd", (0.01,) * STEPS, momentum=0.9, clip_norm=1.0, **L2),
        lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, **L2),
    ),
    "SGD, Nesterov's momentum": (
        UpdateRule("sgd", (0.01,) * STEPS, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, nesterov=True),
    ),
}  # fmt: skip


def run(build: Build, clip_norm: float, steps: int = STEPS, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> Run:
    """The parameters before, and torch's steps along gradients of which some are clipped."""
    rng = np.random.default_rng(0)
    start = {path: rng.standard_normal(shape) for path, shape in shapes.items()}
    parameters = {path: nn.Parameter(torch.from_numpy(array.copy())) for path, array in start.items()}
    optimizer, made = build([*parameters.values()]), []
    for size in 10.0 ** rng.uniform(-2, 1, steps):
        gradients = {path: size * rng.standard_normal(shape) for path, shape in shapes.items()}
        for path, parameter in parameters.items():
            parameter.grad = torch.from_numpy(gradients[path].copy())
        if clip_norm:
            nn.utils.clip_grad_norm_(parameters.values(), clip_norm)
        optimizer.step()
        made.append(
            Step(gradients, {path: parameter.detach().numpy().copy() for path, parameter in parameters.items()})
        )
    return start, made


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps(name: str) -> None:
    rule, build = OPTIMIZERS[name]
    start, made = run(build, rule.clip_norm)
    state = initial_state(start)
    for theirs in made:
        state = step(rule, state, theirs.gradients)
        for path in SHAPES:
            assert relative_rms(state.parameters[path], theirs.after[path]) <= FLOAT64_RELATIVE_RMS, path
    assert explain_steps(rule, initial_state(start), made) == []


@pytest.mark.parametrize("rate", [1e-7, 1e-5, 1e-3])
def test_steps_that_rounding_can_be_seen_in(rate: float) -> None:
    """torch's AdamW rounds its parameters twice. It is found that the clip's norm lacks 1e-6, for all that."""
    rule = UpdateRule("adam", (rate,) * 4, clip_norm=1.0, weight_decay=0.1, weight_decay_kind="decoupled")
    start, made = run(
        lambda p: torch.optim.AdamW(p, rate, (0.9, 0.98), 1e-9, 0.1), 1.0, steps=3, shapes={"kernel": (80, 90)}
    )
    assert explain_steps(rule, initial_state(start), made) == []
    (finding,) = explain_steps(replace(rule, clip_epsilon=0.0), initial_state(start), made)
    assert finding.cause == "clipped by norm + 1e-6"


@pytest.mark.parametrize(
    ("expected", "received", "cause"),
    [
        ("Adam", "Adam, maximised", "maximises: the step has the other sign"),
        ("AdamW, clipped", "Adam", "clipping missing, and decay missing"),
        ("Adam", "SGD", "SGD rather than Adam"),
        (
            "SGD",
            "SGD, Nesterov's momentum",
            "unexplained",
        ),  # two fields at once, one of which says nothing without the other
    ],
)
def test_torch_steps_of_another_recipe_are_named(expected: str, received: str, cause: str) -> None:
    start, made = run(OPTIMIZERS[received][1], OPTIMIZERS[received][0].clip_norm, steps=3)
    (finding,) = explain_steps(OPTIMIZERS[expected][0], initial_state(start), made)
    assert (finding.node, finding.kind, finding.cause) == ("step", "update", cause)


def test_the_usual_cross_of_adam_and_adamw() -> None:
    """The same arguments to the other class."""
    rule, _ = OPTIMIZERS["AdamW, clipped"]
    start, made = run(lambda p: torch.optim.Adam(p, 0.01, (0.9, 0.98), 1e-9, 0.1), 1.0, steps=3)
    (finding,) = explain_steps(rule, initial_state(start), made)
    assert finding.cause == "L2 decay for decoupled"
