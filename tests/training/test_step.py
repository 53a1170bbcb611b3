"""One optimizer step: Adam computed by hand, its counts, the parameters it leaves unchanged, and its dropout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.runtime.trees import flatten
from jax_transformer.training.losses import Criterion
from jax_transformer.training.optimizers import make_optimizer
from jax_transformer.training.state import TrainState, all_params, init_state
from jax_transformer.training.step import TrainStep, make_evaluation_step, make_train_step, summed_loss

pytestmark = pytest.mark.usefixtures("quick_compilation")

TRAIN = TrainConfig(
    schedule="constant",
    learning_rate=0.01,
    warmup_steps=0,
    adam_b1=0.8,
    adam_b2=0.9,
    adam_eps=1e-6,
    label_smoothing=0.1,
)


@pytest.fixture(scope="module")
def batch(ids: Any, config: TransformerConfig) -> Batch:
    labels = np.roll(ids.target, -1, axis=1)
    labels[:, -1] = config.target_pad_id
    return Batch(source_ids=ids.source, decoder_input_ids=ids.target, labels=labels)


def copy(state: TrainState) -> TrainState:
    """Returns a copy, because a step donates its state."""
    return jax.tree.map(jnp.array, state)


@pytest.fixture(scope="module")
def model(config: TransformerConfig) -> TransformerConfig:
    """Has a constant that is no position table."""
    return dataclasses.replace(config, head_bias="buffer")


@pytest.fixture(scope="module")
def state(model: TransformerConfig) -> TrainState:
    return init_state(model, TRAIN)


@pytest.fixture(scope="module")
def step(model: TransformerConfig) -> TrainStep:
    return make_train_step(model, TRAIN)


def gradients_of(model: TransformerConfig, state: TrainState, batch: Batch) -> Any:
    def mean(params: Any) -> Any:
        total, tokens = summed_loss(
            model, {**params, "constants": state.constants}, batch, Criterion(model.target_pad_id, 0.1)
        )
        return total / tokens

    return jax.jit(jax.grad(mean))(state.params)


def global_norm(tree: Any) -> float:
    return float(np.sqrt(sum((np.asarray(leaf, np.float64) ** 2).sum() for leaf in jax.tree.leaves(tree))))


def distance(a: Any, b: Any) -> float:
    """Returns the largest difference between two trees."""
    return max(jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(np.asarray(x) - np.asarray(y)).max()), a, b)))


def test_two_steps_are_adams(model: TransformerConfig, state: TrainState, step: TrainStep, batch: Batch) -> None:
    """Kingma & Ba 2015, algorithm 1, with the gradient of the loss per target token. In float64: Adam makes large steps
    of what rounding leaves of gradients that are zero, and two programs round otherwise."""
    with jax.enable_x64(True):
        received = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, jnp.float64) if leaf.dtype == jnp.float32 else leaf, copy(state)
        )
        params = jax.tree.map(np.asarray, received.params)
        first = second = jax.tree.map(np.zeros_like, params)
        for t in (1, 2):
            gradients = jax.tree.map(np.asarray, gradients_of(model, received, batch))
            received, metrics = step(received, batch)
            first = jax.tree.map(lambda m, g: 0.8 * m + 0.2 * g, first, gradients)
            second = jax.tree.map(lambda v, g: 0.9 * v + 0.1 * g**2, second, gradients)
            update = jax.tree.map(
                lambda m, v, t=t: m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.9**t)) + 1e-6), first, second
            )
            params = jax.tree.map(lambda p, u: p - 0.01 * u, params, update)
            assert distance(received.params, params) < 1e-12
            assert int(received.step) == t
            np.testing.assert_allclose(metrics["gradient_norm"], global_norm(gradients), rtol=1e-5)


def test_constants_stay(state: TrainState, step: TrainStep, batch: Batch) -> None:
    """Position tables and a buffer bias are passed on, and never updated."""
    received, _ = step(copy(state), batch)
    assert set(received.constants) == {"encoder_positions", "decoder_positions", "head_bias"}
    assert distance(received.constants, state.constants) == 0.0
    assert distance(received.params, state.params) > 0.005
    assert all_params(received).keys() == {*received.params, "constants"}


def test_the_loss_is_per_target_token(
    model: TransformerConfig, state: TrainState, step: TrainStep, batch: Batch
) -> None:
    _, metrics = step(copy(state), batch)
    total, tokens = summed_loss(model, all_params(state), batch, Criterion(model.target_pad_id, 0.1))
    assert int(metrics["tokens"]) == int(tokens) == (batch.labels != model.target_pad_id).sum()
    np.testing.assert_allclose(metrics["loss"], total / tokens, rtol=1e-6)
    np.testing.assert_allclose(metrics["learning_rate"], 0.01)


def test_a_batch_of_nothing_but_pads_changes_no_weight(
    model: TransformerConfig, state: TrainState, step: TrainStep, batch: Batch
) -> None:
    received, metrics = step(copy(state), batch._replace(labels=np.full_like(batch.labels, model.target_pad_id)))
    assert float(metrics["loss"]) == 0.0
    assert distance(received.params, state.params) == 0.0


def test_the_state_is_taken_over(state: TrainState, step: TrainStep, batch: Batch) -> None:
    """The state is donated: training holds one copy of weights and moments, not two."""
    given = copy(state)
    step(given, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((given.params, given.optimizer)))


def test_clipping_bounds_the_gradient_by_its_global_norm(
    model: TransformerConfig, state: TrainState, batch: Batch
) -> None:
    """The first moments after a step are (1 − b1) times the gradient that Adam was given."""
    gradients = gradients_of(model, state, batch)
    norm = global_norm(gradients)
    train = dataclasses.replace(TRAIN, clip_norm=norm / 4)
    received, metrics = make_train_step(model, train)(init_state(model, train), batch)
    moments = next(part.mu for part in received.optimizer if hasattr(part, "mu"))
    assert distance(moments, jax.tree.map(lambda g: 0.2 * 0.25 * g, gradients)) < 1e-6
    np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-5)  # the one before clipping


def test_a_gradient_within_the_bound_is_left_alone() -> None:
    gradients = {"kernel": jnp.asarray([3.0, 4.0])}
    optimizer = make_optimizer(dataclasses.replace(TRAIN, clip_norm=5.5), lambda step: 0.01)
    _, state = optimizer.update(gradients, optimizer.init(gradients), gradients)
    np.testing.assert_allclose(next(part.mu for part in state if hasattr(part, "mu"))["kernel"], [0.6, 0.8], rtol=1e-6)


@pytest.fixture(scope="module")
def loss_with_dropout(config: TransformerConfig, batch: Batch) -> Callable[..., float]:
    """(seed of the run, step) → the loss of that step, always with the same weights."""
    model = dataclasses.replace(config, dropout_rate=0.3)
    weights = init_state(model, TRAIN)
    steps = {seed: make_train_step(model, dataclasses.replace(TRAIN, seed=seed)) for seed in (0, 1)}

    def loss(seed: int, step: int) -> float:
        state = copy(weights)._replace(step=jnp.int32(step))
        return float(steps[seed](state, batch)[1]["loss"])

    return loss


def test_dropout_is_a_function_of_seed_and_step(loss_with_dropout: Callable[..., float]) -> None:
    losses = {(seed, step): loss_with_dropout(seed, step) for seed in (0, 1) for step in (0, 1)}
    assert len(set(losses.values())) == 4
    assert loss_with_dropout(0, 1) == losses[0, 1]


def test_the_initial_weights_are_a_function_of_the_seed(config: TransformerConfig) -> None:
    one, again, other = (init_state(config, dataclasses.replace(TRAIN, seed=seed)) for seed in (0, 0, 1))
    assert distance(one.params, again.params) == 0.0
    assert distance(one.params, other.params) > 0.1


def test_in_bfloat16_weights_and_moments_stay_wide(config: TransformerConfig, batch: Batch) -> None:
    model = dataclasses.replace(config, compute_dtype="bfloat16")
    state, metrics = jax.eval_shape(lambda: make_train_step(model, TRAIN)(init_state(model, TRAIN), batch))
    floats = [
        leaf.dtype
        for leaf in jax.tree.leaves((state.params, state.optimizer))
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    assert set(floats) == {jnp.dtype("float32")}
    assert metrics["loss"].dtype == jnp.float32


def test_evaluation_neither_smooths_nor_drops(config: TransformerConfig, batch: Batch) -> None:
    model = dataclasses.replace(config, dropout_rate=0.3)
    params = all_params(init_state(model, TRAIN))
    total, tokens = make_evaluation_step(model)(params, batch)
    np.testing.assert_allclose(total, summed_loss(config, params, batch, Criterion(config.target_pad_id))[0], rtol=1e-6)
    assert int(tokens) == (batch.labels != config.target_pad_id).sum()
    assert abs(float(total) - float(summed_loss(config, params, batch, Criterion(config.target_pad_id, 0.1))[0])) > 1e-3


# --- steps of a caller's own optimizer and loss


def test_any_optax_optimizer_trains(model: TransformerConfig, batch: Batch) -> None:
    optimizer = optax.adamw(1e-2)
    state, train_step = init_state(model, optimizer=optimizer), make_train_step(model, optimizer=optimizer)
    losses = []
    for _ in range(10):
        state, metrics = train_step(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[0]
    assert metrics.keys() == {"loss", "tokens", "gradient_norm"}, "the learning rate of an optimizer isn't known"


def test_an_optimizer_of_ones_own_is_the_same_as_the_configs(model: TransformerConfig, batch: Batch) -> None:
    config = dataclasses.replace(TRAIN, label_smoothing=0.0, seed=3)
    optimizer = make_optimizer(config, optax.constant_schedule(config.learning_rate))
    expected, _ = make_train_step(model, config)(init_state(model, config), batch)
    state = init_state(model, optimizer=optimizer, seed=3)
    received, _ = make_train_step(model, optimizer=optimizer, seed=3)(state, batch)
    for path, leaf in flatten(expected.params).items():
        np.testing.assert_array_equal(flatten(received.params)[path], leaf, err_msg=path)


def test_an_optimizer_replaces_the_configs_and_nothing_else(model: TransformerConfig, batch: Batch) -> None:
    config = dataclasses.replace(TRAIN, ema_decay=0.9, freeze=("encoder/*",))
    state = init_state(model, config, optimizer=optax.sgd(0.0))
    received, _ = make_train_step(model, config, optimizer=optax.sgd(0.0))(copy(state), batch)
    assert received.average
    assert received.frozen
    for path, leaf in flatten(state.params).items():
        np.testing.assert_array_equal(flatten(received.params)[path], leaf, err_msg=path)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_loss_of_ones_own_is_averaged_over_the_labels_that_count(
    model: TransformerConfig, batch: Batch, accumulate: int
) -> None:
    config = dataclasses.replace(TRAIN, label_smoothing=0.0, accumulate=accumulate)
    batch = jax.tree.map(lambda array: np.concatenate([array, array]), batch)
    own = optax.softmax_cross_entropy_with_integer_labels
    _, expected_metrics = make_train_step(model, config)(init_state(model, config), batch)
    _, metrics = make_train_step(model, config, loss=own)(init_state(model, config), batch)
    np.testing.assert_allclose(metrics["loss"], expected_metrics["loss"], rtol=1e-6)
    assert metrics["tokens"] == expected_metrics["tokens"]
    np.testing.assert_allclose(metrics["gradient_norm"], expected_metrics["gradient_norm"], rtol=1e-5)


def test_a_summed_loss_is_refused(model: TransformerConfig, batch: Batch) -> None:
    step = make_train_step(model, TRAIN, loss=lambda logits, labels: logits.sum())
    with pytest.raises(ValueError, match="expected one loss per label"):
        step(init_state(model, TRAIN), batch)


def test_neither_config_nor_optimizer_is_refused(model: TransformerConfig) -> None:
    for make in (init_state, make_train_step):
        with pytest.raises(ValueError, match="expected optimizer="):
            make(model)


def test_the_first_parameters_outlive_the_steps(model: TransformerConfig, batch: Batch) -> None:
    """The step donates the state, not the arrays that the caller still holds."""
    params = all_params(init_state(model, TRAIN))
    make_train_step(model, TRAIN)(init_state(model, TRAIN, params), batch)
    for leaf in jax.tree.leaves(params):
        assert not leaf.is_deleted()
    assert "constants" in params


@pytest.mark.parametrize("accumulate", [1, 5])
def test_the_plain_loss_is_the_one_without_smoothing(
    model: TransformerConfig, state: TrainState, batch: Batch, accumulate: int
) -> None:
    config = dataclasses.replace(TRAIN, accumulate=accumulate)
    assert config.label_smoothing > 0
    after, metrics = make_train_step(model, config)(copy(state), batch)
    total, tokens = summed_loss(model, all_params(state), batch, Criterion(model.target_pad_id))
    np.testing.assert_allclose(metrics["plain_loss"], total / tokens, rtol=1e-6)
    assert abs(metrics["plain_loss"] - metrics["loss"]) > 1e-3
    alone = dataclasses.replace(config, label_smoothing=0.0)
    assert "plain_loss" not in make_train_step(model, alone)(copy(state), batch)[1]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.params))
