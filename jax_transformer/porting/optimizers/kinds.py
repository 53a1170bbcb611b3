"""Describe how PyTorch's optimizers keep their state, and translate their settings into TrainConfig's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jax_transformer.storage.tensors import PortingError

Groups = Sequence[Mapping[str, Any]]
"""The param_groups of an optimizer's state_dict."""
Fields = dict[str, Any]
"""Fields of TrainConfig by name."""


@dataclass(frozen=True)
class Kind:
    """Describes one of PyTorch's optimizers."""

    title: str
    optimizer: Literal["adam", "sgd", "adafactor"]
    """Its name in TrainConfig."""
    marks: frozenset[str]
    """Settings that all of its groups have, and no other optimizer's."""
    settings: frozenset[str]
    """Its other settings, without the ones that all optimizers have."""
    slots: Mapping[str, str]
    """Slots by the key of a parameter's state. Adafactor's factors are "rows" and "columns" of the torch matrix."""
    fixed: Mapping[str, tuple[Any, ...]]
    """Settings that change the update, and their values that the update has here."""
    read: Callable[[Mapping[str, Any]], Fields]
    """Returns the fields that a group's settings determine, without the weight decay."""
    write: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Returns a group's settings, without the weight decay, from all fields of TrainConfig and "rate", the learning
    rate."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Other keys of a parameter's state, which its first step writes, and what they are before it."""
    factors_keep_axes: bool = False
    """Whether a factor is a matrix of one column or row, and not a vector."""
    step: str = "float32"
    """How a parameter's state counts its steps: the dtype of a tensor, "number", or "none"."""


def _read_adam(group: Mapping[str, Any]) -> Fields:
    b1, b2 = group["betas"]
    fields: Fields = {"adam_b1": float(b1), "adam_b2": float(b2), "adam_eps": float(group["eps"])}
    if "decoupled_weight_decay" in group:
        fields["weight_decay_kind"] = "decoupled" if group["decoupled_weight_decay"] else "l2"
    return fields


def _write_adam(train: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "lr": train["rate"],
        "betas": (train["adam_b1"], train["adam_b2"]),
        "eps": train["adam_eps"],
        "amsgrad": False,
        "maximize": False,
        "foreach": None,
        "capturable": False,
        "differentiable": False,
        "fused": None,
        "decoupled_weight_decay": train["weight_decay_kind"] == "decoupled",
    }


def _write_sgd(train: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "lr": train["rate"],
        "momentum": train["momentum"],
        "dampening": 0,
        "nesterov": False,
        "maximize": False,
        "foreach": None,
        "differentiable": False,
        "fused": None,
    }


RELATIVE: Fields = {"schedule": "relative", "relative_step": 0.01, "learning_rate": 1.0, "warmup_steps": 0}


def _read_adafactor(group: Mapping[str, Any]) -> Fields:
    fields: Fields = {"scale_by_parameter": bool(group["scale_parameter"]), "factored_from": 1}
    if group["weight_decay"] and group["scale_parameter"]:
        raise PortingError(
            "weight_decay must be 0 with scale_parameter, by which transformers' Adafactor multiplies the decay too; "
            f"received {group['weight_decay']}"
        )
    return fields | (RELATIVE if group["relative_step"] else {})


def _write_adafactor(train: Mapping[str, Any]) -> dict[str, Any]:
    is_relative = train["schedule"] == "relative"
    return {
        "lr": None if is_relative else train["rate"],
        "eps": (1e-30, 1e-3),
        "clip_threshold": 1.0,
        "decay_rate": -0.8,
        "beta1": None,
        "scale_parameter": train["scale_by_parameter"],
        "relative_step": is_relative,
        "warmup_init": False,
    }


def _read_torch_adafactor(group: Mapping[str, Any]) -> Fields:
    """Reads PyTorch's Adafactor, whose rate is min(lr, step^-½), or a scheduler's where that is below."""
    fields: Fields = {"factored_from": 1, "factored_eps": "clamped"}
    if "initial_lr" in group:
        return fields
    return fields | {
        "schedule": "relative",
        "relative_step": float(group["lr"]),
        "learning_rate": 1.0,
        "warmup_steps": 0,
    }


def _write_torch_adafactor(train: Mapping[str, Any]) -> dict[str, Any]:
    is_relative = train["schedule"] == "relative"
    return {
        "lr": train["relative_step"] if is_relative else train["rate"],
        "beta2_decay": -0.8,
        "eps": (None, 1e-3),
        "d": 1.0,
        "foreach": None,
        "maximize": False,
    }


KINDS = (
    Kind(
        title="torch.optim.Adam or AdamW",
        optimizer="adam",
        marks=frozenset({"betas", "amsgrad"}),
        settings=frozenset({"eps", "maximize", "decoupled_weight_decay"}),
        slots={"exp_avg": "first_moment", "exp_avg_sq": "second_moment"},
        fixed={"amsgrad": (False,), "maximize": (False,)},
        read=_read_adam,
        write=_write_adam,
    ),
    Kind(
        title="torch.optim.SGD",
        optimizer="sgd",
        marks=frozenset({"momentum", "dampening"}),
        settings=frozenset({"nesterov", "maximize"}),
        slots={"momentum_buffer": "momentum"},
        fixed={"dampening": (0,), "nesterov": (False,), "maximize": (False,)},
        read=lambda group: {"momentum": float(group["momentum"])},
        write=_write_sgd,
        step="none",
    ),
    Kind(
        title="transformers' Adafactor",
        optimizer="adafactor",
        marks=frozenset({"clip_threshold", "decay_rate"}),
        settings=frozenset({"eps", "beta1", "scale_parameter", "relative_step", "warmup_init"}),
        slots={"exp_avg_sq_row": "rows", "exp_avg_sq_col": "columns", "exp_avg_sq": "squares"},
        fixed={
            "eps": ((1e-30, 1e-3), [1e-30, 1e-3]),
            "clip_threshold": (1.0,),
            "decay_rate": (-0.8,),
            "beta1": (None,),
            "warmup_init": (False,),
        },
        read=_read_adafactor,
        write=_write_adafactor,
        extras={"RMS": 0.0},
        step="number",
    ),
    Kind(
        title="torch.optim.Adafactor",
        optimizer="adafactor",
        marks=frozenset({"beta2_decay"}),
        settings=frozenset({"eps", "d", "maximize"}),
        slots={"row_var": "rows", "col_var": "columns", "variance": "squares"},
        fixed={
            "eps": ((None, 1e-3),),
            "d": (1.0,),
            "beta2_decay": (-0.8,),
            "maximize": (False,),
            "weight_decay": (0.0,),  # it decays by lr alone, whatever the step's own rate
        },
        read=_read_torch_adafactor,
        write=_write_torch_adafactor,
        factors_keep_axes=True,
    ),
)


def kind_of(groups: Groups) -> Kind:
    """Returns the optimizer that has such groups.

    Raises:
      PortingError: none of KINDS has them.
    """
    for kind in KINDS:
        if groups and all(kind.marks <= group.keys() for group in groups):
            return kind
    titles = ", ".join(kind.title for kind in KINDS)
    received = ", ".join(name for name in (groups[0] if groups else {}) if name != "params")
    raise PortingError(f"optimizer: expected the state of {titles}; received groups with {received or 'nothing'}")


def kind_for(train: Mapping[str, Any]) -> Kind:
    """Returns PyTorch's counterpart of the optimizer of a TrainConfig's fields."""
    kinds = [kind for kind in KINDS if kind.optimizer == train["optimizer"]]
    return kinds[-1] if train.get("factored_eps") == "clamped" else kinds[0]


def read_groups(kind: Kind, groups: Groups, decay_kind: str | None = None) -> Fields:
    """Returns the fields of TrainConfig that the settings of all groups determine, except the parameters without decay.

    Args:
      decay_kind: "l2" or "decoupled", for files of Adam that don't say so. (PyTorch says it since 2.6.)

    Raises:
      PortingError: settings that aren't built here, or that differ between groups; all problems together.
    """
    problems = [
        f"{name} must be {' or '.join(map(repr, dict.fromkeys(map(_plain, values))))}; received {group[name]!r}"
        for group in groups[:1]
        for name, values in kind.fixed.items()
        if name in group and _plain(group[name]) not in [_plain(value) for value in values]
    ]
    for name in groups[0]:
        values = [_plain(group.get(name)) for group in groups]
        if name not in (*OWN, "weight_decay") and any(value != values[0] for value in values):
            problems.append(f"{name} must be the same in all groups; received {', '.join(map(repr, values))}")
    known = kind.marks | kind.settings | SHARED
    problems += [
        f"{name}: no setting of {kind.title}; received {group[name]!r}"
        for group in groups
        for name in group
        if name not in known and not isinstance(group[name], str)  # such as the group's name
    ]
    decays = sorted({float(group["weight_decay"]) for group in groups} - {0.0})
    if len(decays) > 1:
        problems.append(f"weight_decay must be one number or 0 in each group; received {', '.join(map(str, decays))}")
    if problems:
        raise PortingError(f"optimizer: {kind.title} with settings that no run here has", problems)
    fields: Fields = {"optimizer": kind.optimizer, "weight_decay": decays[0] if decays else 0.0} | kind.read(groups[0])
    if kind.optimizer == "adafactor":
        fields["weight_decay_kind"] = "decoupled"
    elif kind.optimizer == "sgd":
        fields["weight_decay_kind"] = "l2"
    elif decay_kind is not None and fields.setdefault("weight_decay_kind", decay_kind) != decay_kind:
        raise PortingError(
            f"--weight-decay-kind: the file says {fields['weight_decay_kind']}; received {decay_kind}; leave it out"
        )
    if decays and "weight_decay_kind" not in fields:
        raise PortingError(
            "optimizer: its file doesn't say whether it is Adam, whose weight decay is added to the gradient, or "
            "AdamW; give --weight-decay-kind l2 or decoupled"
        )
    return fields


OWN = ("params", "param_names")
"""The settings that differ between groups."""
SHARED = frozenset({"lr", "initial_lr", "weight_decay", "foreach", "fused", "capturable", "differentiable", *OWN})
"""Settings that optimizers share; the last of them don't change what is computed."""


def as_number(value: Any) -> Any:
    """Returns the number in a tensor of one value; anything else as it is."""
    return value.item() if hasattr(value, "item") else value


def _plain(value: Any) -> Any:
    """Returns a setting that can be compared: a number in place of a tensor, a tuple in place of a list."""
    return tuple(value) if isinstance(value, list) else as_number(value)
