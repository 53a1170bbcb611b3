"""A run of fairseq goes on here, and its checkpoint is written back."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from continued_trainings import STEPS, Trainer, Training, as_run, ported, train_config, trained_here
from systems import layers, make_case

from jax_transformer.comparison.gates.tolerances import TRAJECTORY_LOSS_RELATIVE
from jax_transformer.porting import export_checkpoint

pytestmark = pytest.mark.usefixtures("quick_compilation")


class FairseqAdam(torch.optim.Optimizer):
    """Adam as fairseq writes it (fairseq/optim/adam.py): steps are integers, and ε is added before the correction."""

    def __init__(self, parameters: Any, rate: float) -> None:
        super().__init__(
            parameters, {"lr": rate, "betas": (0.9, 0.98), "eps": 1e-4, "weight_decay": 0.01, "amsgrad": False}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    state.update(step=0, **moments)
                state["step"] += 1
                b1, b2 = group["betas"]
                state["exp_avg"].mul_(b1).add_(parameter.grad, alpha=1 - b1)
                state["exp_avg_sq"].mul_(b2).addcmul_(parameter.grad, parameter.grad, value=1 - b2)
                size = group["lr"] * (1 - b2 ** state["step"]) ** 0.5 / (1 - b1 ** state["step"])
                parameter.mul_(1 - group["weight_decay"] * group["lr"])
                parameter.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + group["eps"], value=-size)


@pytest.mark.parametrize("is_flat", [False, True])
def test_a_run_of_fairseq_goes_on_here(is_flat: bool, tmp_path: Path) -> None:
    """Its dict, with options in it; one parameter's state after the other, or all in one as in mixed precision."""
    training = Training("hyunwoongko", lambda module: FairseqAdam(module.parameters(), 1e-3), None, {"warmup_steps": 0})
    case = make_case(training.system, **layers(training.system, 1, 2))
    theirs = Trainer(case, training)
    theirs.train(STEPS)
    optimizer = theirs.optimizer.state_dict()
    if is_flat:
        entries = optimizer["state"].values()
        flat = {name: torch.cat([entry[name].flatten() for entry in entries]) for name in ("exp_avg", "exp_avg_sq")}
        group = optimizer["param_groups"][0] | {"params": [0]}
        optimizer = {"state": {0: {"step": STEPS, **flat}}, "param_groups": [group]}
    content = {
        "cfg": {"model": argparse.Namespace(arch="transformer")},
        "model": theirs.module.state_dict(),
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "num_updates": STEPS}],
        "last_optimizer_state": optimizer,
    }
    torch.save(content, tmp_path / "checkpoint_last.pt")
    model = ported(case, tmp_path / "checkpoint_last.pt")
    config = train_config(model, training.told_by_user | {"schedule": "constant"})
    assert (config.weight_decay_kind, config.adam_eps_uncorrected) == ("decoupled", True)
    state, losses = trained_here(model, config, case)
    np.testing.assert_allclose(losses, theirs.train(STEPS), rtol=TRAJECTORY_LOSS_RELATIVE)

    export_checkpoint(as_run(model, state, config), tmp_path / "back.pt", with_optimizer=True)
    with torch.serialization.safe_globals([argparse.Namespace]):
        back = torch.load(tmp_path / "back.pt", weights_only=True)
    assert list(back) == list(content)
    assert back["cfg"] == content["cfg"]
    assert back["optimizer_history"][-1]["num_updates"] == 2 * STEPS
    assert list(back["last_optimizer_state"]["state"][0]) == ["step", "exp_avg", "exp_avg_sq"]
    assert len(back["last_optimizer_state"]["state"]) == len(optimizer["state"])
