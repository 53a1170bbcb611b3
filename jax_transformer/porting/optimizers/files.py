"""Find the training state of checkpoints: with the model in one dict, in files of transformers' Trainer, in fairseq's
form, or in a file of its own."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jax_transformer.porting.optimizers.numbering import is_optimizer
from jax_transformer.porting.optimizers.schedulers import is_scheduler
from jax_transformer.runtime.json_text import read_json_object
from jax_transformer.storage.tensor_files import is_inner_state_dict, load_torch, write_torch
from jax_transformer.storage.tensors import PortingError

OPTIMIZERS, SCHEDULER, TRAINER_STATE = ("optimizer.pt", "optimizer.bin"), "scheduler.pt", "trainer_state.json"
"""Files of a checkpoint of transformers' Trainer."""
STEPS = ("step", "steps", "global_step", "num_updates", "iteration")
"""Keys under which programs keep the number of optimizer steps."""
FAIRSEQ = "last_optimizer_state"


@dataclass(frozen=True)
class TrainingFiles:
    """Holds what a checkpoint keeps of its training, as PyTorch has it."""

    form: Literal["dict", "trainer", "fairseq", "file"]
    optimizer: Mapping[str, Any]
    scheduler: Mapping[str, Any] | None = None
    step: int | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    """Under which keys of a dict they lay: "model", "optimizer" and "scheduler"."""
    order: tuple[str, ...] = ()
    """The keys of the dict."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """The rest of the dict, or of trainer_state.json, as far as JSON keeps it."""
    left_out: tuple[str, ...] = ()
    """The keys of the rest, such as random states."""


def read_training_files(
    source: str | os.PathLike[str], optimizer: str | os.PathLike[str] | None = None
) -> TrainingFiles:
    """Reads what a checkpoint keeps of its training.

    Args:
      source: a torch file, or a directory of transformers' Trainer.
      optimizer: a torch file with the optimizer's state_dict, alone or in a dict, where the checkpoint has none.

    Raises:
      PortingError: there is none, or there are several.
    """
    path = Path(optimizer or source)
    if path.is_dir():
        return _read_trainer(path)
    if path.suffix == ".safetensors" or not path.is_file():
        raise PortingError(
            f"{path}: expected a torch file or a directory of transformers' Trainer, which keep an optimizer's state; "
            "received another; name the file of the optimizer with --optimizer"
        )
    content = load_torch(path)
    if is_optimizer(content):
        return TrainingFiles("file", content)
    if not isinstance(content, Mapping):
        raise PortingError(f"{path}: expected an optimizer's state; received {type(content).__name__}")
    return _read_fairseq(path, content) if FAIRSEQ in content else _read_dict(path, content)


def _read_dict(path: Path, content: Mapping[str, Any]) -> TrainingFiles:
    optimizers = [key for key, value in content.items() if is_optimizer(value)]
    schedulers = [key for key, value in content.items() if is_scheduler(value)]
    for what, found in (("optimizer", optimizers), ("scheduler", schedulers)):
        if len(found) > 1 or (not found and what == "optimizer"):
            raise PortingError(
                f"{path}: expected the state of one {what}; received "
                f"{'states under ' + ', '.join(map(repr, found)) if found else 'none'}"
            )
    steps = {key: content[key] for key in STEPS if type(content.get(key)) is int}
    keys = {"optimizer": optimizers[0]} | ({"scheduler": schedulers[0]} if schedulers else {})
    models = [key for key, value in content.items() if is_inner_state_dict(value)]
    keys |= {"model": models[0]} if len(models) == 1 else {}
    others = {key: value for key, value in content.items() if key not in keys.values() and can_be_kept(value)}
    return TrainingFiles(
        "dict",
        content[optimizers[0]],
        content[schedulers[0]] if schedulers else None,
        next(iter(steps.values()), None),
        keys,
        tuple(content),
        others,
        _left_out(content, {*keys.values(), *others}),
    )


def _left_out(content: Mapping[str, Any], kept: Collection[str]) -> tuple[str, ...]:
    return tuple(str(key) for key, value in content.items() if key not in kept and not is_inner_state_dict(value))


def _read_fairseq(path: Path, content: Mapping[str, Any]) -> TrainingFiles:
    if not is_optimizer(content[FAIRSEQ]):
        raise PortingError(f"{path}: expected an optimizer's state under {FAIRSEQ!r}; received none")
    history = content.get("optimizer_history") or [{}]
    step = history[-1].get("num_updates") if isinstance(history[-1], Mapping) else None
    others = {key: value for key, value in content.items() if key not in ("model", FAIRSEQ) and can_be_kept(value)}
    return TrainingFiles(
        "fairseq",
        content[FAIRSEQ],
        None,
        step,
        {"optimizer": FAIRSEQ},
        tuple(content),
        others,
        _left_out(content, {"model", FAIRSEQ, *others}),
    )


def _read_trainer(path: Path) -> TrainingFiles:
    file = next((path / name for name in OPTIMIZERS if (path / name).is_file()), None)
    if file is None:
        raise PortingError(f"{path}: expected {OPTIMIZERS[0]}, as transformers' Trainer writes it; there is none")
    state = path / TRAINER_STATE
    others = read_json_object(state, PortingError) if state.is_file() else {}
    scheduler = load_torch(path / SCHEDULER) if (path / SCHEDULER).is_file() else None
    if scheduler is not None and not is_scheduler(scheduler):
        raise PortingError(f"{path / SCHEDULER}: expected a scheduler's state; received another")
    step = others.get("global_step")
    return TrainingFiles("trainer", load_torch(file), scheduler, step if type(step) is int else None, others=others)


# --- back


def training_dict(
    origin: Mapping[str, Any], step: int, state_dict: Mapping[str, Any], optimizer: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a dict of a model and its training under the keys that the checkpoint had, or the usual ones.

    Args:
      origin: that of the training state.
      step: the number of optimizer steps done.
      state_dict: the model's.
      optimizer: the optimizer's.
    """
    keys, others, scheduler = origin["keys"], decoded(origin["others"]), decoded(origin["scheduler"])
    content = {keys.get("model", "model"): state_dict, keys.get("optimizer", "optimizer"): optimizer}
    if scheduler is not None:
        content[keys.get("scheduler", "scheduler")] = scheduler
    counted: dict[str, Any] = {key: step for key in STEPS if key in others}
    if not counted and origin["step"] == "none":
        counted = {"step": step}  # nothing else has it
    if "optimizer_history" in others:
        *earlier, last = others["optimizer_history"]
        counted["optimizer_history"] = [*earlier, {**last, "num_updates": step}]
    content |= others | counted
    return {key: content[key] for key in dict.fromkeys([*origin["order"], *content]) if key in content}


def write_trainer_files(directory: Path, origin: Mapping[str, Any], step: int, optimizer: Mapping[str, Any]) -> None:
    """Writes the files from which transformers' Trainer resumes, next to a model's."""
    write_torch(directory / OPTIMIZERS[0], optimizer)
    if origin["scheduler"] is not None:
        write_torch(directory / SCHEDULER, decoded(origin["scheduler"]))
    others = decoded(origin["others"]) if origin["form"] == "trainer" else {}
    text = json.dumps({**others, "global_step": step}, indent=2)
    (directory / TRAINER_STATE).write_text(text + "\n", encoding="utf-8")


# --- what a model directory keeps of it as JSON

TUPLE, NAMESPACE = "tuple()", "argparse.Namespace()"
"""Keys of objects that represent what JSON doesn't have."""


def encoded(value: Any) -> Any:
    """Returns a value as JSON has it, tuples and namespaces as objects of their own."""
    if isinstance(value, tuple):
        return {TUPLE: [encoded(one) for one in value]}
    if isinstance(value, argparse.Namespace):
        return {NAMESPACE: encoded(vars(value))}
    if isinstance(value, Mapping):
        return {key: encoded(one) for key, one in value.items()}
    return [encoded(one) for one in value] if isinstance(value, list) else value


def decoded(value: Any) -> Any:
    """Returns the value that `encoded` was given."""
    if isinstance(value, Mapping):
        if value.keys() == {TUPLE}:
            return tuple(decoded(one) for one in value[TUPLE])
        if value.keys() == {NAMESPACE}:
            return argparse.Namespace(**decoded(value[NAMESPACE]))
        return {key: decoded(one) for key, one in value.items()}
    return [decoded(one) for one in value] if isinstance(value, list) else value


def can_be_kept(value: Any) -> bool:
    """Returns whether JSON keeps the value as it is."""
    try:
        return bool(decoded(json.loads(json.dumps(encoded(value)))) == value)
    except (TypeError, ValueError, RecursionError, AttributeError):
        return False
