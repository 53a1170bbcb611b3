"""Ports the state_dict of a PyTorch optimizer, so that either side can continue the other's training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jax_transformer.comparison.sides import Arrays, CannotRun
from jax_transformer.parity.backends.side import Halt
from jax_transformer.parity.backends.torch_programs import BuiltInOptimizer, Optimizer
from jax_transformer.porting.optimizers.kinds import Kind, kind_of, read_groups
from jax_transformer.porting.optimizers.numbering import name_entries
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.tensor_files import as_array
from jax_transformer.storage.tensors import PortingError
from jax_transformer.storage.training_state import TrainingState

if TYPE_CHECKING:
    import torch
    from torch import nn


class Names(Protocol):
    """Relates a module's names to ours."""

    def state_dict(self, params: Mapping[str, Any], names: Any) -> Mapping[str, np.ndarray]: ...

    def leaves(self, state_dict: Mapping[str, np.ndarray]) -> Arrays: ...


def halted(optimizer: Optimizer, module: nn.Module, names: Names, step: int, losses: Sequence[float]) -> Halt:
    """Returns a module's parameters and its optimizer's state under our names. Raises CannotRun if the optimizer shows
    no state."""
    held = {name: as_array(tensor).copy() for name, tensor in module.state_dict().items()}
    own = list(dict(module.named_parameters()))
    shapes = {name: held[name].shape for name in own if module.get_parameter(name).requires_grad}
    with _or_cannot_run():
        named = name_entries(_torch_optimizer(optimizer).state_dict(), own, shapes)
        read_groups(named.kind, named.groups)  # refuses settings that aren't built here
    _check_has_no_factors(named.kind)
    twins = _twins(module)
    slots = {}
    for key, slot in named.kind.slots.items():
        arrays = {name: as_array(entry[key]) for name, entry in named.state.items() if entry.get(key) is not None}
        if not arrays:
            continue
        filled = {
            name: arrays.get(twins[name], np.zeros_like(array)) if name in twins else array
            for name, array in held.items()
        }
        leaves = names.leaves(filled)
        slots[slot] = {path: np.array(leaf) for path, leaf in leaves.items() if not path.startswith("constants/")}
    params = {path: np.array(leaf) for path, leaf in names.leaves(held).items()}
    return Halt(unflatten(params), TrainingState(named.kind.optimizer, step, slots), np.array(losses))


def load_state(optimizer: Optimizer, module: nn.Module, names: Names, halt: Halt) -> None:
    """Loads the state of a training that halted on either side into an optimizer."""
    import torch

    inner, own = _torch_optimizer(optimizer), list(dict(module.named_parameters()))
    with _or_cannot_run():
        kind = kind_of(inner.param_groups)
    _check_has_no_factors(kind)
    constants = {path: leaf for path, leaf in flatten(halt.params).items() if path.startswith("constants/")}
    state: dict[int, dict[str, Any]] = {}
    for key, slot in kind.slots.items():
        if slot in halt.state.slots:
            tree = unflatten({**halt.state.slots[slot], **constants})
            arrays = names.state_dict(tree, module.state_dict().keys())
            for number, name in enumerate(own):
                if module.get_parameter(name).requires_grad:
                    tensor = torch.from_numpy(np.array(arrays[name]))
                    state.setdefault(number, {"step": torch.tensor(float(halt.state.step))})[key] = tensor
    inner.load_state_dict({"state": state, "param_groups": inner.state_dict()["param_groups"]})


@contextmanager
def _or_cannot_run() -> Iterator[None]:
    """Turns a PortingError into CannotRun: the stage can't be compared."""
    try:
        yield
    except PortingError as reason:
        raise CannotRun(str(reason)) from None


def _check_has_no_factors(kind: Kind) -> None:
    if kind.optimizer == "adafactor":
        raise CannotRun(f"this stage ports moments, and {kind.title} keeps factors of them")


def _torch_optimizer(optimizer: Optimizer) -> torch.optim.Optimizer:
    import torch

    inner = optimizer.adam if isinstance(optimizer, BuiltInOptimizer) else optimizer
    if not isinstance(inner, torch.optim.Optimizer):
        raise CannotRun("the reference's optimizer is no torch.optim.Optimizer, whose state_dict could be ported")
    return inner


def _twins(module: nn.Module) -> dict[str, str]:
    """Maps each name of a parameter to the name that the optimizer uses."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }
