"""The stage `resume` of a parity run: each side continues the other's training."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from systems import layers, make_case
from torch import nn

from jax_transformer.config.run import TrainConfig
from jax_transformer.parity import Side
from jax_transformer.parity import compare as compare_models
from jax_transformer.parity.backends import torch_module
from jax_transformer.parity.backends.side import Halt
from jax_transformer.parity.backends.torch_resuming import load_state

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_the_stage_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side continues the other's training; a step too many on the way back shows on that way alone."""
    case = make_case("pytorch_post_gelu_all_tied", **layers("pytorch_post_gelu_all_tied", 1, 2))
    options: dict[str, Any] = {"stages": ["resume"], "dtypes": ["float64"]}
    assert compare_models(case.model, **options).verdict == "passed"

    def a_step_later(optimizer: Any, module: nn.Module, names: Any, halt: Halt) -> None:
        load_state(optimizer, module, names, halt._replace(state=dataclasses.replace(halt.state, step=4)))

    monkeypatch.setattr(torch_module, "load_state", a_step_later)
    report = compare_models(case.model, **options)
    assert report.verdict == "diverged"
    (stage,) = report.stages
    diverged = {row.name.rpartition(", ")[2] for row in stage.rows if row.verdict == "diverged"}
    assert diverged == {"reference after candidate"}


@pytest.mark.parametrize("name", ["RMSprop", "Adafactor"])
def test_the_stage_resume_of_another_optimizer_is_not_compared(name: str) -> None:
    case = make_case("harvard", **layers("harvard", 1, 2))
    report = compare_models(
        case.model,
        Side(optimizer=lambda module: getattr(torch.optim, name)(module.parameters())),
        train=TrainConfig(schedule="constant", warmup_steps=0),
        stages=["weights", "resume"],
        dtypes=["float64"],
    )
    assert {stage.name: stage.verdict for stage in report.stages} == {"weights": "passed", "resume": "inconclusive"}
