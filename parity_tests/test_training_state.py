"""A training that begins in PyTorch goes on here as it would have there, and back: moments, steps and schedules are
ported, in float64."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from continued_trainings import FROZEN, STEPS, TRAININGS, Trainer, as_run, ported, train_config, trained_here
from recipes_in_torch import trained_leaves
from systems import layers, make_case

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import (
    TRAJECTORY_LOSS_RELATIVE,
    TRAJECTORY_PARAMETERS_RELATIVE_RMS,
    has_zero_gradient,
)
from jax_transformer.config.run import TrainConfig
from jax_transformer.porting import PortingError, export_checkpoint, import_checkpoint
from jax_transformer.porting.optimizers.port import training_state_of_run
from jax_transformer.training.optimizer_state import training_state
from jax_transformer.training.schedules import make_schedule
from jax_transformer.training.state import all_params, init_state

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_goes_on_on_the_other_side(name: str, tmp_path: Path) -> None:
    """20 steps in PyTorch and 20 here are 40 in PyTorch; then 5 more there, from what is ported back."""
    training = TRAININGS[name]
    case = make_case(training.system, **layers(training.system, 1, 2))
    theirs = Trainer(case, training)
    theirs.train(STEPS)
    torch.save(theirs.checkpoint(), tmp_path / "half.pt")
    model = ported(case, tmp_path / "half.pt", **({"step": STEPS} if "SGD" in name else {}))
    assert model.training_state.step == STEPS
    config = train_config(model, training.told_by_user)
    if model.training_state.next_rate is not None:
        rate = make_schedule(config, model.config.d_model)(STEPS)
        np.testing.assert_allclose(rate, model.training_state.next_rate, rtol=1e-12)
    assert config.freeze == ((FROZEN,) if training.frozen else ())

    state, losses = trained_here(model, config, case)
    np.testing.assert_allclose(losses, theirs.train(STEPS), rtol=TRAJECTORY_LOSS_RELATIVE)
    torch.save(theirs.checkpoint(), tmp_path / "whole.pt")
    expected = trained_leaves(ported(case, tmp_path / "whole.pt", step=2 * STEPS).params)
    received = trained_leaves(jax.device_get(all_params(state)))
    for path, leaf in expected.items():
        if not has_zero_gradient(path.split("[")[0]):
            assert compare(received[path], leaf).within(TRAJECTORY_PARAMETERS_RELATIVE_RMS), path

    export_checkpoint(as_run(model, state, config), tmp_path / "back.pt", with_optimizer=True)
    content = torch.load(tmp_path / "back.pt", weights_only=True)
    assert content["epoch"] == 3
    again = Trainer(case, training)
    again.load(content)
    np.testing.assert_allclose(again.train(5), theirs.train(5), rtol=TRAJECTORY_LOSS_RELATIVE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adam_eps_uncorrected": True}, "train.adam_eps_uncorrected must be False"),
        (
            {"optimizer": "sgd", "weight_decay": 0.1, "weight_decay_kind": "decoupled"},
            "train.weight_decay_kind must be 'l2'",
        ),
        ({"optimizer": "adafactor"}, "train.factored_from must be 1"),
        (
            {"optimizer": "adafactor", "factored_from": 1, "weight_decay": 0.1},
            "weight_decay must be 0 with scale_parameter",
        ),
        (
            {"optimizer": "adafactor", "factored_from": 1, "schedule": "relative", "relative_step": 0.1},
            "train.relative_step must be 0.01",
        ),
    ],
)
def test_an_optimizer_that_pytorch_has_not_is_not_written(changes: dict[str, Any], message: str) -> None:
    case = make_case("harvard", **layers("harvard", 1, 2))
    model = import_checkpoint(case.program.state_dict(), "harvard", **case.hints)
    config = TrainConfig(**{"learning_rate": 1e-3, "schedule": "constant", "warmup_steps": 0} | changes)
    state = init_state(model.config, config, model.params)
    saved = dataclasses.replace(training_state(state, config), train=dataclasses.asdict(config), next_rate=1e-3)
    with pytest.raises(PortingError, match=re.escape(message)):
        training_state_of_run(model, saved, 1e-3)
