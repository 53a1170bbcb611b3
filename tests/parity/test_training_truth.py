"""Losses and optimizer steps in NumPy are the trainer's own, in float64; and gradients are those of the losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.config.run import TrainConfig
from jax_transformer.parity.faults.training import loss_variants
from jax_transformer.parity.oracle.losses import LossRule, logits_gradient, loss
from jax_transformer.parity.oracle.updates import UpdateRule, initial_state, step
from jax_transformer.training.losses import SMOOTHINGS, Criterion, chunked_cross_entropy
from jax_transformer.training.optimizers import make_optimizer
from jax_transformer.training.schedules import make_schedule

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

# --- losses

PAD = 2


def make_labels(rng: np.random.Generator) -> np.ndarray:
    """[4, 6]: pads on the right, on the left and inside, and one sentence of nothing else."""
    labels = rng.integers(3, 11, (4, 6))
    labels[0, 4:] = labels[1, :2] = labels[1, 3] = labels[2] = PAD
    return labels


CRITERIA = [
    (smoothing, epsilon, counts_pads)
    for smoothing in SMOOTHINGS
    for epsilon in (0.0, 0.1)
    for counts_pads in (False, True)
    if not (smoothing == "others_but_pad" and counts_pads)  # refused in recipes: pads would have no share
]


@pytest.mark.parametrize(("smoothing", "epsilon", "counts_pads"), CRITERIA)
def test_the_loss_is_the_trainers(smoothing: Any, epsilon: float, counts_pads: bool) -> None:
    """Its value, and its gradient, which a head's bias for each token shows."""
    rng = np.random.default_rng(0)
    hidden, kernel, labels = rng.standard_normal((4, 6, 5)), rng.standard_normal((5, 11)), make_labels(rng)
    criterion = Criterion(PAD, epsilon, smoothing, counts_pads)

    def mean(hidden: jax.Array) -> jax.Array:
        total, count = chunked_cross_entropy(hidden, jnp.asarray(kernel), None, jnp.asarray(labels), criterion)
        return total / count

    value, gradient = jax.jit(jax.value_and_grad(mean))(hidden)
    rule = LossRule(PAD, epsilon, smoothing, counts_pads)
    np.testing.assert_allclose(loss(rule, hidden @ kernel, labels), value, rtol=FLOAT64_RELATIVE_RMS)
    assert (
        relative_rms(logits_gradient(rule, hidden @ kernel, labels) @ kernel.T, np.asarray(gradient))
        <= FLOAT64_RELATIVE_RMS
    )


EXTREMES = [LossRule(PAD), LossRule(PAD, 0.1, "others_but_pad"), LossRule(-100, 0.2, "others", counts_pads=True)]


@pytest.mark.parametrize("rule", EXTREMES, ids=range(len(EXTREMES)))
def test_the_gradient_is_the_losses(rule: LossRule) -> None:
    """Of the rule and of every variant: along any direction it is the difference quotient."""
    rng = np.random.default_rng(1)
    logits, direction, labels = rng.standard_normal((4, 6, 11)), rng.standard_normal((4, 6, 11)), make_labels(rng)
    for each in (rule, *(variant.of(rule) for variant in loss_variants(rule))):
        h = 1e-5
        quotient = (loss(each, logits + h * direction, labels) - loss(each, logits - h * direction, labels)) / (2 * h)
        np.testing.assert_allclose(
            (logits_gradient(each, logits, labels) * direction).sum(), quotient, rtol=1e-7, err_msg=str(each)
        )


def test_a_log_softmax_of_a_log_softmax_is_itself() -> None:
    """So that no input shows whether a program takes it twice."""
    rng = np.random.default_rng(2)
    logits, labels = 5.0 * rng.standard_normal((4, 6, 11)), make_labels(rng)
    once = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    rule = LossRule(PAD, 0.1)
    np.testing.assert_allclose(loss(rule, once, labels), loss(rule, logits, labels), rtol=FLOAT64_RELATIVE_RMS)


def test_no_token_counts() -> None:
    labels = np.full((2, 3), PAD)
    for mean_over in ("tokens", "sentences", "sum"):
        rule = LossRule(PAD, mean_over=mean_over)
        assert loss(rule, np.ones((2, 3, 5)), labels) == 0.0
        assert not logits_gradient(rule, np.ones((2, 3, 5)), labels).any()
    assert loss(LossRule(PAD, counts_pads=True), np.ones((2, 3, 5)), np.full((2, 3), -1)) == 0.0  # -1 only fills up


def test_invalid_losses_are_refused() -> None:
    with pytest.raises(ValueError, match=r"logits \[B, T, V\] and labels \[B, T\]; received \[2, 3, 5\] and \[2, 4\]"):
        loss(LossRule(PAD), np.ones((2, 3, 5)), np.ones((2, 4), int))
    with pytest.raises(ValueError, match="labels below 5, the number of logits; received 5"):
        loss(LossRule(PAD), np.ones((2, 3, 5)), np.full((2, 3), 5))


# --- steps

STEPS = 5
SHAPES = {"embedding": (9, 4), "norm/scale": (4,), "output/kernel": (4, 3), "output/bias": (3,)}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adam": {},
    "Adam, L2, clipped": {"weight_decay": 5e-4, "clip_norm": 1.0, "adam_b2": 0.999, "adam_eps": 5e-9},
    "AdamW": {"weight_decay": 0.1, "weight_decay_kind": "decoupled"},
    "SGD": {"optimizer": "sgd", "clip_norm": 2.0},
    "SGD, momentum, L2": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    "SGD, momentum, decoupled": {
        "optimizer": "sgd",
        "momentum": 0.9,
        "weight_decay": 0.1,
        "weight_decay_kind": "decoupled",
    },
}


def drawn(rng: np.random.Generator, size: float = 1.0) -> dict[str, np.ndarray]:
    return {path: size * rng.standard_normal(shape) for path, shape in SHAPES.items()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_the_trainers(name: str) -> None:
    """Along gradients of which some are clipped."""
    options = {"warmup_steps": 3, "learning_rate": 0.05, "schedule": "linear", "max_steps": 9, **OPTIMIZERS[name]}
    config = TrainConfig(**options)
    schedule = make_schedule(config, 4)
    optimizer = make_optimizer(config, schedule)

    @jax.jit
    def theirs(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    rule = UpdateRule(
        config.optimizer if config.optimizer == "sgd" else "adam",
        lambda count: float(schedule(jnp.asarray(count))),
        config.adam_b1,
        config.adam_b2,
        config.adam_eps,
        config.momentum,
        config.weight_decay,
        config.weight_decay_kind,
        config.clip_norm,
    )
    rng = np.random.default_rng(0)
    ours = initial_state(drawn(rng))
    params = {path: jnp.asarray(array) for path, array in ours.parameters.items()}
    state = optimizer.init(params)
    for size in 10.0 ** rng.uniform(-2, 1, STEPS):
        gradients = drawn(rng, size)
        params, state = theirs(params, state, gradients)
        before, ours = ours, step(rule, ours, gradients)
        for path in SHAPES:
            assert relative_rms(np.asarray(params[path]), ours.parameters[path]) <= FLOAT64_RELATIVE_RMS, path
            assert not np.array_equal(before.parameters[path], ours.parameters[path])
    assert ours.count == STEPS


def test_a_step_leaves_its_arguments_unchanged() -> None:
    rng = np.random.default_rng(0)
    parameters, gradients = drawn(rng), drawn(rng)
    copies = {path: (parameters[path].copy(), gradients[path].copy()) for path in SHAPES}
    for moved in ("as_others", "by_decay", "never"):
        rule = UpdateRule(
            "adam", (0.1,), clip_norm=0.1, weight_decay=0.1, pad_rows=(("embedding", 2),), pad_rows_move=moved
        )
        step(rule, initial_state(parameters), gradients)
    for path, (parameter, gradient) in copies.items():
        np.testing.assert_array_equal(parameters[path], parameter)
        np.testing.assert_array_equal(gradients[path], gradient)


def test_pad_rows() -> None:
    """Moved by what its gradient says, by its decay alone, or not at all; the other rows don't notice."""
    rng = np.random.default_rng(0)
    start, gradients = initial_state(drawn(rng)), drawn(rng)
    rule = UpdateRule("sgd", (0.1,), weight_decay=0.5, pad_rows=(("embedding", 2),))
    before = start.parameters["embedding"]
    expected = {
        "as_others": before[2] - 0.1 * (gradients["embedding"][2] + 0.5 * before[2]),
        "by_decay": 0.95 * before[2],
        "never": before[2],
    }
    for moved, row in expected.items():
        after = step(replace(rule, pad_rows_move=moved), start, gradients).parameters["embedding"]
        np.testing.assert_allclose(after[2], row, rtol=1e-15)
        others = np.delete(before - 0.1 * (gradients["embedding"] + 0.5 * before), 2, axis=0)
        np.testing.assert_allclose(np.delete(after, 2, axis=0), others, rtol=1e-14)


def test_invalid_updates_are_refused() -> None:
    start = initial_state({"kernel": np.ones((2, 3)), "bias": np.ones(3)})
    rule = UpdateRule("sgd", (0.1,))
    with pytest.raises(ValueError, match="a gradient for each parameter; not both are there for bias"):
        step(rule, start, {"kernel": np.ones((2, 3))})
    with pytest.raises(ValueError, match=r"kernel: expected a gradient of shape \[2, 3\]; received \[3, 2\]"):
        step(rule, start, {"kernel": np.ones((3, 2)), "bias": np.ones(3)})
