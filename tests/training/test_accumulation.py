"""Gradient accumulation over the parts of a step, and the moving average over many steps."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig, TrainConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.data.batching import Batch
from jax_transformer.runtime.trees import flatten
from jax_transformer.training.losses import Criterion
from jax_transformer.training.state import TrainState, all_params, evaluation_params, init_state
from jax_transformer.training.step import make_train_step, summed_loss

pytestmark = pytest.mark.usefixtures("quick_compilation")

TRAIN = TrainConfig(
    schedule="constant", learning_rate=0.01, warmup_steps=0, adam_b1=0.8, adam_b2=0.9, adam_eps=1e-6, clip_norm=1.0
)


@pytest.fixture(scope="module")
def batch(ids: Any, config: TransformerConfig) -> Batch:
    """Four rows with targets of 8, 6, 6 and 4 tokens, so that parts have different weights."""
    labels = np.roll(ids.target[:4], -1, axis=1)
    labels[:, -1] = config.target_pad_id
    return Batch(source_ids=ids.source[:4], decoder_input_ids=ids.target[:4], labels=labels)


def step_in_float64(
    config: TransformerConfig, train: TrainConfig, params: Any, batch: Batch
) -> tuple[TrainState, dict[str, float]]:
    state = init_state(config, train, jax.tree.map(jnp.asarray, params))
    return make_train_step(config, train)(state, batch)


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_equal_the_large_batch(parts: int, config: TransformerConfig, random_params: Any, batch: Batch) -> None:
    """In float64: the loss, the gradient (seen in Adam's first moment) before and after clipping, and the stepped
    parameters."""
    with jax.enable_x64(True):
        params = random_params(config)
        whole, in_one = step_in_float64(config, TRAIN, params, batch)
        summed, in_parts = step_in_float64(config, dataclasses.replace(TRAIN, accumulate=parts), params, batch)
    for name in ("loss", "tokens", "gradient_norm"):
        np.testing.assert_allclose(in_parts[name], in_one[name], rtol=1e-13)
    for received, expected in zip(jax.tree.leaves(summed), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(received, expected, rtol=1e-11, atol=1e-14)


def test_pads_that_count_do_in_parts_too(config: TransformerConfig, random_params: Any, batch: Batch) -> None:
    """But not those of a row that only fills the batch up, which here is all that one part has."""
    labels = batch.labels.copy()
    labels[1] = config.target_pad_id
    batch, train = batch._replace(labels=labels), dataclasses.replace(TRAIN, loss_counts_pads=True)
    with jax.enable_x64(True):
        params = random_params(config)
        whole, in_one = step_in_float64(config, train, params, batch)
        summed, in_parts = step_in_float64(config, dataclasses.replace(train, accumulate=4), params, batch)
    assert int(in_parts["tokens"]) == 3 * labels.shape[1]
    for name in ("loss", "tokens", "gradient_norm"):
        np.testing.assert_allclose(in_parts[name], in_one[name], rtol=1e-13)
    for received, expected in zip(jax.tree.leaves(summed), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(received, expected, rtol=1e-11, atol=1e-14)


def test_the_mean_of_the_parts_means_would_be_another_gradient(
    config: TransformerConfig, random_params: Any, batch: Batch
) -> None:
    """The batch above therefore distinguishes a sum over tokens from a mean of means."""
    with jax.enable_x64(True):
        params = random_params(config)
        halves = [jax.tree.map(lambda array, k=k: array[k::2], batch) for k in (0, 1)]
        losses = [float(step_in_float64(config, TRAIN, params, half)[1]["loss"]) for half in halves]
        whole = float(step_in_float64(config, TRAIN, params, batch)[1]["loss"])
    assert abs(np.mean(losses) - whole) > 1e-4


def test_each_part_has_dropout_of_its_own(config: TransformerConfig, batch: Batch) -> None:
    """Two equal rows in two parts: the loss is the mean over two dropout keys, the step's key folded with the part."""
    model = dataclasses.replace(config, dropout_rate=0.4)
    row = jax.tree.map(lambda array: array[:1], batch)
    twice = jax.tree.map(lambda array: np.repeat(array, 2, axis=0), row)
    train = dataclasses.replace(TRAIN, accumulate=2)
    params = all_params(init_state(model, train))
    criterion = Criterion(model.target_pad_id, train.label_smoothing)
    of_step = jax.random.fold_in(jax.random.key(train.seed), 0)
    losses = []
    for part in range(2):
        total, tokens = summed_loss(model, params, row, criterion, jax.random.fold_in(of_step, part))
        losses.append(float(total / tokens))
    _, metrics = make_train_step(model, train)(init_state(model, train), twice)
    assert abs(losses[0] - losses[1]) > 1e-3
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-5)


def test_rows_that_are_no_multiple_are_refused(config: TransformerConfig, batch: Batch) -> None:
    with pytest.raises(ValueError, match="rows that are a multiple of 3; received 4"):
        make_train_step(config, dataclasses.replace(TRAIN, accumulate=3))(init_state(config, TRAIN), batch)


def test_accumulation_is_refused_where_a_rows_number_counts() -> None:
    with pytest.raises(ConfigError, match=r"accumulate must be 1 with model\.position_index='batch_row'"):
        RunConfig(model=TransformerConfig(position_index="batch_row"), train=TrainConfig(accumulate=2))


def test_the_moving_average_follows_its_recurrence(config: TransformerConfig, batch: Batch) -> None:
    """It starts from the initial parameters and keeps min(decay, (1 + t) / (10 + t)) of itself; decay 0.15 decides from
    the second step."""
    train = dataclasses.replace(TRAIN, ema_decay=0.15)
    state, step = init_state(config, train), make_train_step(config, train)
    expected = jax.tree.map(np.asarray, state.params)
    for kept in (0.1, 0.15, 0.15):
        state, _ = step(state, batch)
        expected = jax.tree.map(
            lambda mean, new, kept=kept: kept * mean + (1 - kept) * np.asarray(new), expected, state.params
        )
    for received, value in zip(jax.tree.leaves(state.average), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(received, value, rtol=1e-5, atol=1e-7)
    kept, trained = flatten(evaluation_params(state)), flatten(state.params)
    assert all(np.array_equal(kept[path], leaf) for path, leaf in flatten(state.average).items())
    assert any(not np.array_equal(kept[path], leaf) for path, leaf in trained.items())


def test_without_a_decay_there_is_no_average(config: TransformerConfig) -> None:
    state = init_state(config, TRAIN)
    assert state.average == {}
    assert flatten(evaluation_params(state)).keys() == {
        *flatten(state.params),
        *flatten({"constants": state.constants}),
    }
