"""An Optax state by slot and path: what is read from it fits back in."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from jax_transformer.config.lora import LoraConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig, TrainConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.training_state import TrainingState
from jax_transformer.training.optimizer_state import OptimizerStateError, continue_training, training_state
from jax_transformer.training.state import TrainState, init_state
from jax_transformer.training.step import StepFunctions

pytestmark = pytest.mark.usefixtures("quick_compilation")

MODEL = TransformerConfig(
    source_vocab_size=7, target_vocab_size=9, d_model=8, num_heads=2, d_ff=12, num_encoder_layers=2,
    num_decoder_layers=1, max_length=8,
)  # fmt: skip


def trained(config: TrainConfig, steps: int = 3) -> TrainState:
    """Returns the state after steps along drawn gradients: only the optimizer is compiled."""
    state, rng = init_state(MODEL, config), np.random.default_rng(0)
    update = jax.jit(StepFunctions.of("trained", MODEL, config).update)
    for _ in range(steps):
        gradients = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape, np.float32), state.params)
        state, _ = update(state, np.float32(1.0), np.int32(7), gradients)
    return state


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        ({}, {"first_moment": 46, "second_moment": 46}),
        ({"freeze": ("encoder/*",)}, {"first_moment": 30, "second_moment": 30}),
        ({"optimizer": "sgd", "momentum": 0.9}, {"momentum": 46}),
        ({"optimizer": "sgd"}, {}),
        (
            {"optimizer": "adafactor", "factored_from": 1},
            {"input_squares": 19, "output_squares": 19, "squares": 27},
        ),
        (
            {"optimizer": "adafactor", "factored_from": 8},
            {"input_squares": 18, "output_squares": 18, "squares": 28},
        ),
    ],
)
def test_a_state_comes_back(options: dict[str, Any], slots: dict[str, int]) -> None:
    config = TrainConfig(**options)
    state = trained(config)
    saved = training_state(state, config)
    assert {slot: len(leaves) for slot, leaves in saved.slots.items()} == slots
    again = continue_training(init_state(MODEL, config, seed=1), saved, config)
    assert int(again.step) == 3
    for (keys, leaf), other in zip(
        jax.tree_util.tree_flatten_with_path(state.optimizer)[0], jax.tree.leaves(again.optimizer), strict=True
    ):
        if saved.slots or "count" in str(keys[-1]):
            assert leaf.dtype == other.dtype
            np.testing.assert_array_equal(leaf, other, err_msg=str(keys))


def test_adafactors_factors_are_means_over_inputs_and_outputs() -> None:
    """After one step, whose decay is 0: of the squared gradients themselves, whichever side is longer."""
    config = TrainConfig(optimizer="adafactor", factored_from=1)
    adam = TrainConfig(adam_b2=0.5)
    saved, squares = training_state(trained(config, 1), config), training_state(trained(adam, 1), adam)
    hidden = 2.0 * squares.slots["second_moment"]["encoder/layers/feed_forward/hidden/kernel"]  # [L, D, F]
    query = 2.0 * squares.slots["second_moment"]["decoder/layers/self_attention/query/kernel"]  # [L, D, N, H]
    embedding = 2.0 * squares.slots["second_moment"]["source_embedding/embedding"]  # [V, D]
    for path, expected in {
        "encoder/layers/feed_forward/hidden/kernel": (hidden.mean(2), hidden.mean(1)),
        "decoder/layers/self_attention/query/kernel": (query.mean((2, 3)), query.mean(1).reshape(1, 8)),
        "source_embedding/embedding": (embedding.mean(1), embedding.mean(0)),
    }.items():
        for slot, value in zip(("input_squares", "output_squares"), expected, strict=True):
            np.testing.assert_allclose(saved.slots[slot][path], value, rtol=1e-5, atol=1e-29, err_msg=f"{slot} {path}")


def test_all_problems_are_reported_together() -> None:
    config = TrainConfig()
    saved = training_state(trained(config), config)
    paths = list(saved.paths)
    slots = {slot: dict(leaves) for slot, leaves in saved.slots.items()}
    for leaves in slots.values():
        leaves["nobody/kernel"] = leaves.pop(paths[0])
        leaves[paths[1]] = leaves[paths[1]][..., :1]
    with pytest.raises(OptimizerStateError) as caught:
        continue_training(init_state(MODEL, config), dataclasses.replace(saved, slots=slots), config)
    message = str(caught.value)
    assert f"parameter {paths[0]}: it has no state" in message
    assert "parameter nobody/kernel: it has a state that would be lost" in message
    assert f"parameter {paths[1]}: expected first_moment" in message


def test_muon_has_no_slots() -> None:
    config = TrainConfig(optimizer="muon")
    with pytest.raises(OptimizerStateError, match="expected adam, sgd or adafactor"):
        training_state(init_state(MODEL, config), config)


def test_a_missing_slot_is_reported() -> None:
    config = TrainConfig()
    saved = training_state(trained(config), config)
    half = TrainingState("adam", 3, {"first_moment": saved.slots["first_moment"]})
    with pytest.raises(OptimizerStateError, match=r"expected first_moment .*second_moment"):
        continue_training(init_state(MODEL, config), half, config)
    assert flatten(init_state(MODEL, config).params).keys() == set(saved.paths)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (TrainConfig(max_epochs=2), "train.max_epochs must be 0 with init_optimizer"),
        (TrainConfig(lora=LoraConfig(rank=2)), "init_optimizer must be false with train.lora"),
    ],
)
def test_a_run_that_cannot_continue_a_state_is_refused(train: TrainConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(train=train, init_from="model", init_optimizer=True)
    with pytest.raises(ConfigError, match="init_optimizer needs init_from"):
        RunConfig(init_optimizer=True)
