"""Frozen parameters stay unchanged, bit for bit, and have no moments in memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.runtime.trees import flatten
from jax_transformer.training.freezing import FreezeError, join_frozen, split_frozen
from jax_transformer.training.state import all_params, init_state
from jax_transformer.training.step import make_train_step

pytestmark = pytest.mark.usefixtures("quick_compilation")

TRAIN = TrainConfig(
    schedule="constant", learning_rate=0.01, warmup_steps=0, freeze=("encoder/*", "*_embedding/embedding")
)


def is_frozen(path: str) -> bool:
    return path.startswith("encoder/") or path.endswith("_embedding/embedding")


def test_frozen_parameters_stay_and_the_others_move(ids: Any, config: TransformerConfig) -> None:
    before = {path: np.array(leaf) for path, leaf in flatten(all_params(init_state(config, TRAIN))).items()}
    batch = Batch(ids.source, ids.target, np.where(ids.target == 3, 4, ids.target))
    state, step = init_state(config, TRAIN), make_train_step(config, TRAIN)
    for _ in range(2):
        state, metrics = step(state, batch)
    after = flatten(all_params(state))
    assert after.keys() == before.keys()
    moved = {path for path, leaf in after.items() if not np.array_equal(leaf, before[path])}
    assert any(is_frozen(path) for path in after)
    assert moved == {path for path in after if not is_frozen(path) and not path.startswith("constants/")}
    assert float(metrics["gradient_norm"]) > 0


def test_frozen_parameters_have_no_moments(config: TransformerConfig) -> None:
    state = init_state(config, TRAIN)
    moments = next(part.mu for part in state.optimizer if hasattr(part, "mu"))
    assert not any(is_frozen(path) for path in flatten(moments))


def test_the_gradient_norm_covers_the_trained_parameters(ids: Any, config: TransformerConfig) -> None:
    batch = Batch(ids.source, ids.target, ids.target)
    norms = {}
    for freeze in ((), ("encoder/*",), ("decoder/*", "*_embedding/*", "head/*")):
        train = dataclasses.replace(TRAIN, freeze=freeze)
        norms[freeze] = float(make_train_step(config, train)(init_state(config, train), batch)[1]["gradient_norm"])
    whole, without_encoder, encoder = norms.values()
    np.testing.assert_allclose(whole**2, without_encoder**2 + encoder**2, rtol=1e-4)


def test_splitting_and_joining() -> None:
    tree = {"a": {"b": 1, "c": 2}, "d": 3}
    trained, frozen = split_frozen(tree, ["a/c"])
    assert (trained, frozen) == ({"a": {"b": 1}, "d": 3}, {"a": {"c": 2}})
    assert join_frozen(trained, frozen) == tree
    assert split_frozen(tree, []) == (tree, {})


def test_a_pattern_that_matches_nothing_is_refused(config: TransformerConfig) -> None:
    with pytest.raises(FreezeError, match=r"such as \w+/.* received 'encoder/layer/\*', which matches none"):
        jax.eval_shape(lambda: init_state(config, dataclasses.replace(TRAIN, freeze=("encoder/layer/*",))))


def test_freezing_everything_is_refused(config: TransformerConfig) -> None:
    with pytest.raises(FreezeError, match="some parameters left to train"):
        jax.eval_shape(lambda: init_state(config, dataclasses.replace(TRAIN, freeze=("*",))))
