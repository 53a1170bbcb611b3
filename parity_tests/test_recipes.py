"""Each system's own recipe takes the same fifty steps here and in torch, in float64 and without dropout: losses agree,
and so do weights after the first step and the last."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch
from recipes_in_torch import NO_DROPOUT, Loss, adam, divergence, noam, trained_leaves
from systems import Case, layers, make_case
from torch import nn
from torch.nn import functional as torch_functional
from torch.optim import lr_scheduler

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import (
    FLOAT64_RELATIVE_RMS,
    TRAJECTORY_LOSS_RELATIVE,
    TRAJECTORY_PARAMETERS_RELATIVE_RMS,
    TRAJECTORY_STEPS,
    has_zero_gradient,
)
from jax_transformer.config.presets import PRESETS
from jax_transformer.data.batching import Batch
from jax_transformer.parity.backends.jax_sides import QUICKLY, cast, understood
from jax_transformer.parity.problems import own_problem
from jax_transformer.porting.dialects import Text, get_dialect
from jax_transformer.porting.state_dicts import params_from_state_dict
from jax_transformer.training.state import TrainState, init_state
from jax_transformer.training.step import make_train_step

pytestmark = pytest.mark.usefixtures("quick_compilation")


class Recipe(NamedTuple):
    """How a system's own program trains."""

    loss: Loss
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    schedule: Callable[[torch.optim.Optimizer, int], Any] = lambda optimizer, d_model: lr_scheduler.LambdaLR(
        optimizer, lambda step: 1.0
    )
    clip_norm: float = float("inf")


def ignoring_pads(logits: torch.Tensor, labels: torch.Tensor, pad_id: int) -> torch.Tensor:
    return torch_functional.cross_entropy(logits, labels, ignore_index=pad_id)


def counting_pads(logits: torch.Tensor, labels: torch.Tensor, pad_id: int) -> torch.Tensor:
    return torch_functional.cross_entropy(logits, labels)


RECIPES = {
    "floydhub": Recipe(ignoring_pads, adam(1e-4, 0.98, 1e-9)),
    "annotated_zh": Recipe(divergence(0.0), adam(1.0, 0.98, 1e-9), noam(2000, first=1)),
    "harvard": Recipe(divergence(0.1), adam(1.0, 0.98, 1e-9), noam(3000, first=0)),
    "codersarts": Recipe(counting_pads, adam(1e-4)),
    "sayhello": Recipe(ignoring_pads, adam(1e-5, eps=5e-9, weight_decay=5e-4), clip_norm=1.0),
    "hyunwoongko": Recipe(ignoring_pads, adam(1e-5, eps=5e-9, weight_decay=5e-4), clip_norm=1.0),
    "stepwise": Recipe(counting_pads, adam(5e-3)),
}
"""By the preset's name."""


def preset_of(name: str) -> str:
    """Returns the preset of a system; variants train as their family does."""
    return name if name in RECIPES else name.split("_")[0]


def make_batches(case: Case) -> list[Batch]:
    """Returns five batches with every kind of padding, and with labels everywhere."""
    rng, config = np.random.default_rng(17), case.config
    problems = [own_problem(config, case.model.params, seed) for seed in range(5)]
    return [
        Batch(*problem.ids, rng.integers(config.target_vocab_size, size=problem.labels.shape)) for problem in problems
    ]


OTHER_TEXT = {
    "annotated_zh": {
        ("target", "lowercase")
    },  # of the program's only English is lowercased; a run's `lowercase` is both sides'
}
"""Where a recipe makes tokens of text in another way than its dialect."""


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_of_its_dialect(name: str) -> None:
    model = PRESETS[name]().model
    assert get_dialect(name).refusals(model) == []
    assert {field: getattr(model, field) for field in get_dialect(name).defaults} == get_dialect(name).defaults
    assert PRESETS[name]().train.max_decode_length == get_dialect(name).generation.get("max_decode_length", 0)
    data = PRESETS[name]().data
    text = {
        "source": Text(data.tokenizer, data.lowercase, data.source_bos, data.source_eos),
        "target": Text(data.target_kind or data.tokenizer, data.lowercase),
    }
    expected = get_dialect(name).text
    parts = [(side, field.name) for side in expected for field in dataclasses.fields(Text)]
    differing = {(side, part) for side, part in parts if getattr(text[side], part) != getattr(expected[side], part)}
    assert differing == OTHER_TEXT.get(name, set())


def assert_same_weights(case: Case, state: TrainState, model: nn.Module, gate: float) -> None:
    """Asserts that all parameters but key biases are torch's within the gate, and that each was trained."""
    expected = trained_leaves(params_from_state_dict(case.config, model.state_dict(), case.system.dialect))
    received = trained_leaves(jax.device_get(state.params))
    begun = trained_leaves(case.model.params)
    assert received.keys() == expected.keys() == begun.keys()
    for path, leaf in expected.items():
        if not has_zero_gradient(path.split("[")[0]):
            assert compare(received[path], leaf).within(gate), f"{path}: {compare(received[path], leaf)}"
            assert not np.array_equal(leaf, begun[path]), f"{path} was never trained"


@pytest.mark.parametrize("name", [*RECIPES, "sayhello_article"])
def test_fifty_steps_of_a_recipe_are_torchs(name: str) -> None:
    """One system of each recipe, and one whose attention has biases. (test_systems.py has the gradients of all.)"""
    case, recipe = make_case(name, **layers(name, 1, 2)), RECIPES[preset_of(name)]
    batches = make_batches(case)
    config = dataclasses.replace(case.config, **NO_DROPOUT)
    train = dataclasses.replace(PRESETS[preset_of(name)]().train, accumulate=1)
    state = init_state(config, train, cast(case.model.params, "float64"))
    train_step = jax.jit(make_train_step(config, train), compiler_options=understood(QUICKLY))

    model = copy.deepcopy(case.program)  # in evaluation mode: no dropout
    parameters = list(model.parameters())
    optimizer = recipe.optimizer(parameters)
    scheduler = recipe.schedule(optimizer, config.d_model)
    first_loss = None
    for number in range(TRAJECTORY_STEPS):
        batch = batches[number % len(batches)]
        state, metrics = train_step(state, batch)
        optimizer.zero_grad()
        logits = model(torch.from_numpy(batch.source_ids), torch.from_numpy(batch.decoder_input_ids))
        loss = recipe.loss(logits.flatten(0, 1), torch.from_numpy(batch.labels).flatten(), config.target_pad_id)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, recipe.clip_norm)
        optimizer.step()
        scheduler.step()
        np.testing.assert_allclose(
            metrics["loss"], loss.item(), rtol=TRAJECTORY_LOSS_RELATIVE, err_msg=f"step {number}"
        )
        if first_loss is None:
            first_loss = loss.item()
            assert_same_weights(case, state, model, FLOAT64_RELATIVE_RMS)
    assert loss.item() != first_loss
    assert_same_weights(case, state, model, TRAJECTORY_PARAMETERS_RELATIVE_RMS)
