"""Reads schedules from the state_dicts of PyTorch's schedulers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax_transformer.porting.optimizers.kinds import Fields


def is_scheduler(content: Any) -> bool:
    """Returns whether it has the form of a scheduler's state_dict."""
    return isinstance(content, Mapping) and "last_epoch" in content and "_last_lr" in content


def counts_steps(state: Mapping[str, Any], step: int) -> bool:
    """Returns whether a scheduler has been moved once after each of `step` optimizer steps, and not after epochs."""
    return bool(state["last_epoch"] == step)


def read_scheduler(state: Mapping[str, Any], step: int) -> Fields:
    """Returns the fields of TrainConfig that a scheduler's state determines after `step` optimizer steps.

    A LambdaLR, as transformers' schedules are, keeps its peak and forgets its function. A scheduler that counts epochs
    determines its rate alone.
    """
    if not counts_steps(state, step) and "num_bad_epochs" not in state:
        return {"learning_rate": next_rate(state), "schedule": "constant", "warmup_steps": 0}
    fields: Fields = {}
    rates = [float(rate) for rate in state.get("base_lrs", [])]
    if rates:
        fields["learning_rate"] = rates[0]
    ends_at_zero = not state.get("eta_min")
    if "T_max" in state and ends_at_zero:
        fields |= {"schedule": "cosine", "max_steps": int(state["T_max"]), "warmup_steps": 0}
    elif "T_0" in state and ends_at_zero:
        fields |= {"schedule": "cosine_restarts", "restart_steps": int(state["T_0"])}
        fields |= {"restart_factor": int(state["T_mult"]), "warmup_steps": 0}
    elif "num_bad_epochs" in state:  # ReduceLROnPlateau, whose rate is what it has come to
        fields |= {"learning_rate": float(state["_last_lr"][0]), "schedule": "constant", "warmup_steps": 0}
        fields |= {"plateau_patience": int(state["patience"]), "plateau_factor": float(state["factor"])}
    return fields


def next_rate(state: Mapping[str, Any]) -> float:
    """Returns the learning rate of the next step."""
    return float(state["_last_lr"][0])


def moved_scheduler(
    state: Mapping[str, Any], former: int, step: int, rate: float, groups: int
) -> dict[str, Any] | None:
    """Returns a scheduler's state after `step` steps, whose next one has this rate, from that after `former` steps.

    None for schedulers that count epochs, and for schedulers made of several, whose shares of the steps aren't
    known.
    """
    is_plateau = "num_bad_epochs" in state
    if "_schedulers" in state or not (is_plateau or counts_steps(state, former)):
        return None
    moved = dict(state) | {"_last_lr": [rate] * groups}
    if "base_lrs" in state:
        moved["base_lrs"] = (list(state["base_lrs"]) * groups)[:groups]
    if is_plateau:  # it counts evaluations
        return moved
    if "T_cur" in state:  # CosineAnnealingWarmRestarts
        moved["T_i"], moved["T_cur"] = state["T_0"], step
        while moved["T_cur"] >= moved["T_i"]:
            moved["T_cur"] -= moved["T_i"]
            moved["T_i"] *= state["T_mult"]
    return moved | {"last_epoch": step} | ({"_step_count": step + 1} if state.get("_step_count") else {})


def lambda_scheduler(peak: float, step: int, rate: float, groups: int) -> dict[str, Any]:
    """Returns the state of a LambdaLR, which takes its function from the program that loads it."""
    return {
        "base_lrs": [peak] * groups,
        "last_epoch": step,
        "_step_count": step + 1,
        "_is_initial": False,
        "_get_lr_called_within_step": False,
        "_last_lr": [rate] * groups,
        "lr_lambdas": [None] * groups,
    }
