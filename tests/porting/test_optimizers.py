"""What an optimizer's state_dict tells, and what is refused."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jax_transformer.porting.optimizers.files import can_be_kept, decoded, encoded, read_training_files
from jax_transformer.porting.optimizers.kinds import kind_of, read_groups
from jax_transformer.porting.optimizers.numbering import flatten_entries, name_entries
from jax_transformer.porting.optimizers.schedulers import moved_scheduler, read_scheduler
from jax_transformer.storage.tensors import PortingError

SHAPES = {"a.weight": (2, 3), "a.bias": (2,), "norm.weight": (2,)}


def stepped(make: Any, shapes: dict[str, tuple[int, ...]] = SHAPES, steps: int = 1) -> torch.optim.Optimizer:
    """Returns an optimizer of parameters of these shapes, after some steps."""
    named = [(name, torch.nn.Parameter(torch.ones(shape))) for name, shape in shapes.items()]
    optimizer = make(named)
    for _ in range(steps):
        for number, (_, parameter) in enumerate(named):
            parameter.grad = torch.full_like(parameter, number + 1.0)
        optimizer.step()
    return optimizer


def adam(named: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam([parameter for _, parameter in named], **options)


def test_entries_are_numbered_by_the_order_of_the_groups() -> None:
    def of(named: Any, groups: list[list[int]]) -> torch.optim.Optimizer:
        return torch.optim.Adam([{"params": [named[number][1] for number in group]} for group in groups])

    plain = name_entries(stepped(adam).state_dict(), list(SHAPES), SHAPES)
    assert [float(entry["exp_avg"].flatten()[0]) for entry in plain.state.values()] == pytest.approx([0.1, 0.2, 0.3])
    decays_apart = stepped(lambda named: of(named, [[0], [1, 2]])).state_dict()
    assert name_entries(decays_apart, list(SHAPES), SHAPES).groups[1]["params"] == ["a.bias", "norm.weight"]
    named = stepped(lambda named: torch.optim.Adam(list(reversed(named)))).state_dict()
    assert list(name_entries(named, list(SHAPES), SHAPES).state) == list(reversed(SHAPES))
    constants = {"table": (4,), **SHAPES}
    with_constant = stepped(adam, constants).state_dict()
    del with_constant["state"][0]
    assert list(name_entries(with_constant, list(constants), SHAPES).state) == list(SHAPES)


def test_a_flat_state_is_split_and_joined_again() -> None:
    state_dict = stepped(adam).state_dict()
    numpy = {
        number: {key: value.numpy() if value.ndim else float(value) for key, value in entry.items()}
        for number, entry in state_dict["state"].items()
    }
    flat = flatten_entries({"state": numpy, "param_groups": state_dict["param_groups"]})
    assert flat["state"][0]["exp_avg"].shape == (10,)
    split = name_entries(flat, list(SHAPES), SHAPES)
    assert split.is_flat
    for name, entry in zip(SHAPES, numpy.values(), strict=True):
        np.testing.assert_array_equal(split.state[name]["exp_avg_sq"], entry["exp_avg_sq"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state["param_groups"][0].pop("betas"), "expected the state of torch.optim.Adam or AdamW"),
        (lambda state: state["param_groups"][0]["params"].pop(), "expected 3 parameters.*received 2"),
        (lambda state: state["state"].update({7: {}}), "a state of trained parameters alone; received one of 7"),
        (
            lambda state: state["state"][0].update(exp_avg=torch.ones(3, 2)),
            r"exp_avg of a.weight: expected shape \(2, 3\)",
        ),
        (lambda state: state.update(state=3), "expected a state_dict with state and param_groups"),
    ],
)
def test_other_states_are_refused(change: Any, message: str) -> None:
    state_dict = stepped(adam).state_dict()
    change(state_dict)
    with pytest.raises(PortingError, match=message):
        name_entries(state_dict, list(SHAPES), SHAPES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amsgrad": True}, "amsgrad must be False; received True"),
        ({"maximize": True}, "maximize must be False; received True"),
    ],
)
def test_settings_that_no_run_has_are_refused(options: dict[str, Any], message: str) -> None:
    groups = stepped(lambda named: adam(named, **options)).state_dict()["param_groups"]
    with pytest.raises(PortingError, match=message):
        read_groups(kind_of(groups), groups)


@pytest.mark.parametrize("name", ["RAdam", "NAdam", "Adamax", "RMSprop", "Adagrad"])
def test_relatives_of_adam_are_no_adam(name: str) -> None:
    groups = stepped(lambda named: getattr(torch.optim, name)([one for _, one in named])).state_dict()["param_groups"]
    with pytest.raises(PortingError, match=r"expected the state of torch.optim.Adam or AdamW"):
        kind_of(groups)


def test_unknown_settings_and_entries_are_refused() -> None:
    state_dict = stepped(adam).state_dict()
    state_dict["param_groups"][0] |= {"lr_mult": 2.0, "name": "all"}
    with pytest.raises(PortingError, match=r"lr_mult: no setting of torch.optim.Adam or AdamW; received 2.0"):
        read_groups(kind_of(state_dict["param_groups"]), state_dict["param_groups"])
    state_dict["state"][0]["mu_product"] = torch.tensor(1.0)
    with pytest.raises(PortingError, match="received also mu_product"):
        name_entries(state_dict, list(SHAPES), SHAPES)


def test_an_option_that_the_file_contradicts_is_refused() -> None:
    (group,) = stepped(adam).state_dict()["param_groups"]
    with pytest.raises(PortingError, match="--weight-decay-kind: the file says l2; received decoupled"):
        read_groups(kind_of([group]), [group], "decoupled")


def test_groups_must_agree() -> None:
    groups = stepped(adam).state_dict()["param_groups"]
    groups.append({**groups[0], "lr": 0.5, "params": []})
    with pytest.raises(PortingError, match=r"lr must be the same in all groups; received 0.001, 0.5"):
        read_groups(kind_of(groups), groups)
    groups[1] |= {"lr": 0.001, "weight_decay": 0.1}
    assert read_groups(kind_of(groups), groups)["weight_decay"] == 0.1
    groups[0]["weight_decay"] = 0.2
    with pytest.raises(PortingError, match=r"weight_decay must be one number or 0 in each group; received 0.1, 0.2"):
        read_groups(kind_of(groups), groups)


def test_an_old_file_of_adam_must_say_how_it_decays() -> None:
    (group,) = stepped(lambda named: adam(named, weight_decay=0.1)).state_dict()["param_groups"]
    assert read_groups(kind_of([group]), [group])["weight_decay_kind"] == "l2"
    del group["decoupled_weight_decay"]
    with pytest.raises(PortingError, match="give --weight-decay-kind"):
        read_groups(kind_of([group]), [group])
    assert read_groups(kind_of([group]), [group], "decoupled")["weight_decay_kind"] == "decoupled"


def test_a_file_must_hold_one_optimizer(tmp_path: Path) -> None:
    state_dict = stepped(adam).state_dict()
    for content, message in (
        ({"model": {}, "one": state_dict, "two": state_dict}, "received states under 'one', 'two'"),
        ({"model": {"a": torch.ones(1)}}, "expected the state of one optimizer; received none"),
        (["nothing"], "expected an optimizer's state; received list"),
    ):
        torch.save(content, tmp_path / "x.pt")
        with pytest.raises(PortingError, match=message):
            read_training_files(tmp_path / "x.pt")
    with pytest.raises(PortingError, match=r"expected optimizer.pt, as transformers' Trainer writes it"):
        read_training_files(tmp_path)
    torch.save({"rng": torch.ones(2), "loss": float("nan"), "optimizer": state_dict}, tmp_path / "x.pt")
    assert read_training_files(tmp_path / "x.pt").left_out == ("rng", "loss")
    torch.save({"epoch": 1, "global_step": 7, "optimizer_state": state_dict}, tmp_path / "x.pt")
    files = read_training_files(tmp_path / "x.pt")
    assert files.left_out == ()
    assert (files.step, files.keys, files.others) == (
        7,
        {"optimizer": "optimizer_state"},
        {"epoch": 1, "global_step": 7},
    )


def test_json_keeps_tuples_and_namespaces() -> None:
    value = {"a": (1, [2, (3.5, None)]), "b": argparse.Namespace(c=(1,), d="x")}
    assert decoded(encoded(value)) == value
    assert can_be_kept(value)
    assert not can_be_kept({1: "integers are no keys"})
    assert not can_be_kept(torch.ones(2))


def test_schedulers() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], 0.5)
    restarts = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3, 2)
    state = restarts.state_dict()
    assert read_scheduler(state, 0) == {
        "learning_rate": 0.5, "schedule": "cosine_restarts", "restart_steps": 3, "restart_factor": 2, "warmup_steps": 0
    }  # fmt: skip
    for step in range(1, 20):
        optimizer.step()
        restarts.step()
        moved = moved_scheduler(state, 0, step, restarts.get_last_lr()[0], 1)
        now = restarts.state_dict()
        assert {key: moved[key] for key in ("T_cur", "T_i", "last_epoch", "_last_lr")} == {
            key: now[key] for key in ("T_cur", "T_i", "last_epoch", "_last_lr")
        }
    assert moved_scheduler({"_schedulers": [], "_last_lr": [1.0], "last_epoch": 3}, 3, 4, 0.1, 1) is None


def test_a_scheduler_of_epochs_tells_its_rate_alone() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    for _ in range(10):
        optimizer.step()
        scheduler.step()
    state, rate = scheduler.state_dict(), scheduler.get_last_lr()[0]
    assert read_scheduler(state, 10)["max_steps"] == 50
    assert read_scheduler(state, 10_000) == {"learning_rate": rate, "schedule": "constant", "warmup_steps": 0}
    assert moved_scheduler(state, 10_000, 10_500, rate, 1) is None
