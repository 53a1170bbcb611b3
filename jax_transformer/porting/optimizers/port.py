"""Port training states: read them from a model's checkpoint, and write them back."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.config.shapes import param_shapes
from jax_transformer.porting.formats.t5x import is_one as is_of_t5x
from jax_transformer.porting.names_of_dialects import dialect_of_origin
from jax_transformer.porting.optimizers.conversion import Table, entries_from_slots, slots_from_entries
from jax_transformer.porting.optimizers.files import (
    TrainingFiles,
    decoded,
    encoded,
    read_training_files,
    training_dict,
    write_trainer_files,
)
from jax_transformer.porting.optimizers.kinds import Fields, Groups, Kind, as_number, kind_for, kind_of, read_groups
from jax_transformer.porting.optimizers.numbering import NamedState, flatten_entries, name_entries
from jax_transformer.porting.optimizers.order import parameter_names
from jax_transformer.porting.optimizers.schedulers import lambda_scheduler, moved_scheduler, next_rate, read_scheduler
from jax_transformer.porting.optimizers.t5x import training_state
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_files import SUFFIXES, TORCH_SUFFIXES, as_array, state_dict_of_tensors, write_torch
from jax_transformer.storage.tensors import PortingError
from jax_transformer.storage.training_state import TrainingState


def import_training_state(
    model: Model,
    source: str | os.PathLike[str] | TrainingFiles,
    *,
    optimizer: str | os.PathLike[str] | None = None,
    frozen: Sequence[str] = (),
    decay_kind: str | None = None,
    step: int | None = None,
) -> Model:
    """Returns the model with the training state of the checkpoint that it was imported from.

    Args:
      model: the imported model.
      source: the checkpoint: a torch file, a directory of transformers' Trainer, or one of T5X.
      optimizer: a torch file with the optimizer's state_dict, if the checkpoint has none.
      frozen: patterns of paths of parameters that the optimizer never received.
      decay_kind: "l2" or "decoupled", for an Adam whose file doesn't say so.
      step: the number of optimizer steps done, for SGD, which doesn't count them.

    Raises:
      PortingError: there is no optimizer's state, or one that has no place here; reports all problems of one kind
        together.

    Example:
      >>> import torch
      >>> from jax_transformer import import_checkpoint
      >>> from jax_transformer.porting import import_training_state
      >>> from torch_reference.harvard import HarvardTransformer
      >>> module = HarvardTransformer(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8,
      ...                             num_encoder_layers=1, num_decoder_layers=1, max_length=16)
      >>> optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
      >>> module(torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.long)).sum().backward()
      >>> optimizer.step()
      >>> torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, "run.pt")
      >>> model = import_checkpoint("run.pt", "harvard", num_heads=2, source_pad_id=0, target_pad_id=0)
      >>> import_training_state(model, "run.pt").training_state.step
      1
    """
    table = _table(model)
    if not isinstance(source, TrainingFiles) and is_of_t5x(Path(source)):
        return _with_t5x_state(model, Path(source), table)
    files = source if isinstance(source, TrainingFiles) else read_training_files(source, optimizer)
    without = table.names_of(_frozen_paths(table, frozen))
    order = [name for name in parameter_names(model, table) if name not in without]
    shapes = {name: shape for name, shape in table.shapes_of(order).items() if name not in without}
    norms = table.names_of([path for path in table.shapes if fnmatchcase(path, "*norm/*")])
    named = name_entries(files.optimizer, order, shapes, norms, (model.origin or {}).get("prefix", ""))
    trained = table.paths_of(named.state) if named.state else list(table.shapes)
    done = _steps(named, files, step)
    fields = _settings(named.kind, named.groups, files.form, decay_kind)
    fields |= _without_decay(named, table, fields) | _rates(named, files, fields, done)
    left = [path for path in table.shapes if path not in trained]
    slots = slots_from_entries(named.kind, named.state, table.only(trained)) if named.state else {}
    state = TrainingState(
        named.kind.optimizer,
        done,
        slots,
        fields | ({"freeze": left} if left else {}),
        None if files.scheduler is None else next_rate(files.scheduler),
        _origin(named, files, order),
    )
    return dataclasses.replace(model, training_state=state)


def _with_t5x_state(model: Model, path: Path, table: Table) -> Model:
    """Returns the model with Adafactor's state, which is then no longer left out."""
    origin = dict(model.origin or {})
    origin["left"] = [what for what in origin.get("left", ()) if not what.startswith("Adafactor's state")]
    return dataclasses.replace(model, origin=origin, training_state=training_state(path, table))


def _settings(kind: Kind, groups: Groups, form: str, decay_kind: str | None) -> Fields:
    """Returns the fields that the groups determine; fairseq's Adam is AdamW, with an ε of its own."""
    if form != "fairseq" or kind.optimizer != "adam":
        return read_groups(kind, groups, decay_kind) | (
            {"adam_eps_uncorrected": False} if kind.optimizer == "adam" else {}
        )
    if decay_kind == "l2":
        raise PortingError("--weight-decay-kind: fairseq's Adam decays decoupled; received l2; leave it out")
    return read_groups(kind, groups, "decoupled") | {"adam_eps_uncorrected": True}


def _table(model: Model) -> Table:
    if model.origin is None:
        raise PortingError(
            "this model was not imported from a checkpoint, so no table relates its parameters to an optimizer's; only "
            "ported models, and runs that began with one (--init-from), have training states to port"
        )
    return Table.of(dialect_of_origin(model.origin).rules(model.config), param_shapes(model.config))


def _frozen_paths(table: Table, patterns: Sequence[str]) -> list[str]:
    """Returns the paths of the parameters that match. Raises PortingError if a pattern matches none."""
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in table.shapes):
            raise PortingError(
                f"--frozen: expected patterns of parameters' paths, such as {next(iter(table.shapes))}; received "
                f"{pattern!r}, which matches none"
            )
    return [path for path in table.shapes if _matches(path, patterns)]


def _without_decay(named: NamedState, table: Table, fields: Fields) -> Fields:
    """Returns the parameters of the groups that don't decay, where other groups do."""
    if not fields["weight_decay"]:
        return {}
    exempt = [name for group in named.groups if not group["weight_decay"] for name in group["params"]]
    paths = table.paths_of(exempt) if exempt else []
    return {"no_decay": _patterns(paths, table.shapes)} if paths else {}


USUAL = ("*/bias", "*norm/*")


def _patterns(paths: Collection[str], known: Collection[str]) -> list[str]:
    """Returns patterns that match exactly these paths: the usual ones as far as they do, and the other paths."""
    patterns = [
        pattern
        for pattern in USUAL
        if any(fnmatchcase(path, pattern) for path in paths)
        and all(path in paths for path in known if fnmatchcase(path, pattern))
    ]
    return patterns + [path for path in paths if not any(fnmatchcase(path, pattern) for pattern in patterns)]


def _rates(named: NamedState, files: TrainingFiles, group_fields: Fields, step: int) -> Fields:
    """Returns the fields of the learning rate and the number of steps that the groups don't determine."""
    group, fields = named.groups[0], Fields()
    if files.scheduler is not None:
        fields |= read_scheduler(files.scheduler, step)
    elif group.get("lr") is not None and "schedule" not in group_fields:
        fields["learning_rate"] = float(group.get("initial_lr", group["lr"]))
        if "initial_lr" not in group and files.form in ("dict", "file"):
            fields |= {"schedule": "constant", "warmup_steps": 0}
    if files.form == "trainer" and type(files.others.get("max_steps")) is int:
        fields["max_steps"] = files.others["max_steps"]
    return fields


def _steps(named: NamedState, files: TrainingFiles, given: int | None) -> int:
    """Returns the number of optimizer steps done.

    Raises:
      PortingError: parameters of different ages, as in an optimizer that received some of them later; no number.
    """
    counts = {name: as_number(entry["step"]) for name, entry in named.state.items() if "step" in entry}
    ages = sorted(set(counts.values()))
    if len(ages) > 1:
        youngest = min(counts, key=counts.__getitem__)
        raise PortingError(
            f"optimizer: expected as many steps of every parameter; received {int(ages[0])} of {youngest} and "
            f"{int(ages[-1])} of other parameters"
        )
    found = int(ages[0]) if ages else files.step if given is None else given
    if found is None:
        raise PortingError(
            f"optimizer: {named.kind.title} doesn't count its steps; give --step, the number of steps done"
        )
    if given is not None and given != found:
        raise PortingError(f"--step: the optimizer has done {found} steps; received {given}")
    return found


def _origin(named: NamedState, files: TrainingFiles, names: list[str]) -> dict[str, Any]:
    """Returns the parts with which the checkpoint is written again."""
    entries = list(named.state.values())
    steps = [entry["step"] for entry in entries if "step" in entry]
    extras = {
        key: {name: [_dtype(entry[key]), as_number(entry[key])] for name, entry in named.state.items() if key in entry}
        for key in named.kind.extras
    }
    return {
        "form": files.form,
        "keys": dict(files.keys),
        "order": list(files.order),
        "parameters": names,
        "groups": encoded([{name: as_number(value) for name, value in group.items()} for group in named.groups]),
        "scheduler": None if files.scheduler is None else encoded(dict(files.scheduler)),
        "step": _dtype(steps[0]) if steps else named.kind.step,
        "is_flat": named.is_flat,
        "extras": {key: values for key, values in extras.items() if values},
        "others": encoded(dict(files.others)),
        "left_out": list(files.left_out),
    }


def _dtype(value: Any) -> str:
    return as_array(value).dtype.name if hasattr(value, "dtype") else "number"


# --- back


def training_state_of_run(
    model: Model, state: TrainingState, peak: float, former: TrainingState | None = None
) -> Model:
    """Returns the model with the state of a run, described as PyTorch's optimizer would have it.

    Args:
      model: the run's model, with the origin that it was started from.
      state: the run's, with all fields of its TrainConfig and the learning rate of its next step.
      peak: the highest learning rate of its schedule.
      former: the training state that the run continued, whose form is kept.

    Raises:
      PortingError: the order of the parameters in PyTorch isn't known.
    """
    kind, table, train = kind_for(state.train), _table(model), state.train
    origin = dict(former.origin) if former is not None else {}
    names = origin.get("parameters") or parameter_names(model, table)
    rate = float(state.next_rate or 0.0)
    known = decoded(origin.get("groups") or [{}])
    settings = kind.write({**train, "rate": rate})
    groups = [
        {**known[0], **settings, "weight_decay": decay, "params": members}
        for decay, members in _groups(table, state, names, former)
    ]
    for group in groups:
        if "param_names" in group:
            group["param_names"] = group["params"]
        if "initial_lr" in group:
            group["initial_lr"] = peak
    form = origin.get("form") or ("trainer" if (model.origin or {}).get("hugging_face") else "dict")
    _check_written(kind, groups, form, train)
    scheduler = decoded(origin.get("scheduler"))
    if scheduler is not None:
        before = former.step if former is not None else 0
        scheduler = moved_scheduler(scheduler, before, state.step, rate, len(groups))
    elif (model.origin or {}).get("hugging_face"):
        scheduler = lambda_scheduler(peak, state.step, rate, len(groups))
    written = {
        "form": form,
        "keys": origin.get("keys", {}),
        "order": origin.get("order", []),
        "parameters": names,
        "groups": encoded(groups),
        "scheduler": encoded(scheduler),
        "step": origin.get("step", kind.step),
        "is_flat": origin.get("is_flat", False),
        "extras": {},
        "others": origin.get("others", {}),
        "left_out": [],
    }
    return dataclasses.replace(model, training_state=dataclasses.replace(state, origin=written))


def _check_written(kind: Kind, groups: Groups, form: str, train: Mapping[str, Any]) -> None:
    """Raises PortingError unless PyTorch's optimizer with these groups has the run's rule."""
    read = _settings(kind, groups, form, train["weight_decay_kind"] if kind.optimizer == "adam" else None)
    if not train["weight_decay"]:
        read.pop("weight_decay_kind", None)
    problems = [
        f"train.{name} must be {value!r}, as in {kind.title}; received {train[name]!r}"
        for name, value in read.items()
        if train[name] != value
    ]
    if problems:
        raise PortingError("the run's optimizer is none of PyTorch's", problems)


def _groups(
    table: Table, state: TrainingState, names: Sequence[str], former: TrainingState | None
) -> list[tuple[float, list[str]]]:
    """Returns the weight decay and the names of each group: the former optimizer's while the same parameters
    are trained and decay, and otherwise one group that decays and one that doesn't."""
    decay, patterns = state.train["weight_decay"], state.train["no_decay"] if state.train["weight_decay"] else ()
    trained = state.paths or [path for path in table.shapes if not _matches(path, state.train["freeze"])]
    exempt = table.names_of([path for path in trained if _matches(path, patterns)])
    known = table.names_of(trained)
    if former is not None:
        groups = [list(group["params"]) for group in decoded(former.origin["groups"])]
        decays = [{name in exempt for name in group if name in known} for group in groups]
        had = {*itertools.chain(*groups)}
        if all(len(one) < 2 for one in decays) and all(name in had for name in names if name in known):
            return [(0.0 if one == {True} else decay, group) for one, group in zip(decays, groups, strict=True)]
    decayed = [name for name in names if name in known and name not in exempt]
    undecayed = [name for name in names if name in exempt]
    return [(decay, decayed), (0.0, undecayed)] if undecayed else [(decay, decayed)]


def _matches(path: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def optimizer_state_dict(model: Model) -> dict[str, Any]:
    """Returns the optimizer's state_dict of a model's training state, with NumPy arrays in place of tensors.

    Raises:
      PortingError: the model has no training state.
    """
    state = _state(model)
    named, table = decoded(state.origin["groups"]), _table(model)
    kind = kind_of(named)
    entries = entries_from_slots(kind, state.slots, table.only(state.paths)) if state.slots else {}
    numbers = {name: number for number, name in enumerate(name for group in named for name in group["params"])}
    groups = [{**group, "params": [numbers[name] for name in group["params"]]} for group in named]
    held = {name: _entry(kind, state, name, entries[name]) for name in numbers if name in entries}
    state_dict = {"state": {numbers[name]: entry for name, entry in held.items()}, "param_groups": groups}
    return flatten_entries(state_dict) if state.origin["is_flat"] and held else state_dict


def _entry(kind: Kind, state: TrainingState, name: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one parameter's state, its scalars before its arrays as PyTorch has them."""
    entry: dict[str, Any] = {}
    if kind.step != "none":
        entry["step"] = _number(state.origin["step"], state.step)
    entry |= arrays
    for key, first in kind.extras.items():
        entry[key] = _number(*state.origin["extras"].get(key, {}).get(name, ("number", first)))
    return entry


def _number(dtype: str, value: float) -> Any:
    """Returns a number as a tensor of a dtype, or as it is."""
    return value if dtype == "number" else np.asarray(value, dtype)


def file_writer(
    model: Model, path: str | os.PathLike[str]
) -> Callable[[str | os.PathLike[str], Mapping[str, Any], str | None], None]:
    """Returns a function that writes a model's tensors to a torch file that holds its training state, too.

    Raises:
      PortingError: the model has no training state; the file is to be a .safetensors file.
    """
    path = os.fspath(path)
    if path.endswith(SUFFIXES) and not path.endswith(TORCH_SUFFIXES):
        raise PortingError(
            f"{path}: a .safetensors file has no place for a training state: expected a name that ends in "
            f"{', '.join(TORCH_SUFFIXES)}, or a directory"
        )
    optimizer, state = optimizer_state_dict(model), _state(model)

    def write(path: str | os.PathLike[str], tensors: Mapping[str, Any], settings: str | None) -> None:
        state_dict = state_dict_of_tensors(tensors, settings)
        write_torch(path, training_dict(state.origin, state.step, state_dict, optimizer))

    return write


def directory_writer(model: Model) -> Callable[[Path], None]:
    """Returns a function that writes a model's training state into a directory, for transformers' Trainer."""
    optimizer, state = optimizer_state_dict(model), _state(model)
    return lambda directory: write_trainer_files(directory, state.origin, state.step, optimizer)


def _state(model: Model) -> TrainingState:
    if model.training_state is None or not model.training_state.origin:
        raise PortingError(
            "expected a model with a training state: one that was ported with --with-optimizer, or a run; received one "
            "without"
        )
    return model.training_state
