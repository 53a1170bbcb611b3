"""Runs a PyTorch module to freeze it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.capture import OWN, unfused_attention, watch
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.comparison.gates.rounding import loss_factor, nudged
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.comparison.torch_tensors import to_array
from jax_transformer.comparison.user_errors import cannot_run, shapes_of
from jax_transformer.frozen.optimizers import OWN_OPTIMIZER, torch_optimizer
from jax_transformer.frozen.record import STEPS
from jax_transformer.frozen.runs import OWN_TYPE, Nudge, Trained, factors
from jax_transformer.matching.programs import output_of
from jax_transformer.programs.copies import converted, copied
from jax_transformer.programs.torch_precision import deterministic

if TYPE_CHECKING:
    import torch
    from torch import nn


class TorchRunner:
    """Runs a module on inputs by the names of its forward's arguments.

    Args:
      seed: set before each run; None: none is set.
      loss: output → a scalar; None: the output times fixed random numbers is summed.
      optimizer: a function module → an optimizer, for the steps; None: one that is stated.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str,
        inputs: Arrays,
        seed: int | None = None,
        loss: Callable[..., Any] | None = None,
        optimizer: Callable[..., Any] | None = None,
    ) -> None:
        self.module, self.name, self.inputs, self.seed = module, name, inputs, seed
        self.loss, self.optimizer = loss, optimizer
        held = module.state_dict(keep_vars=True)
        first: dict[int, str] = {}
        alike: dict[str, list[str]] = {}
        for name_of_weight, tensor in held.items():
            key = id(tensor)
            if key in first:
                alike.setdefault(first[key], []).append(name_of_weight)
            else:
                first[key] = name_of_weight
        self.tied = {name: tuple(others) for name, others in alike.items()}
        self.trained = tuple(first[id(one)] for one in module.parameters() if one.requires_grad and id(one) in first)

    @property
    def dtype(self) -> str:
        """Returns the widest floating-point type of the weights."""
        kinds = [one.dtype for one in self.module.state_dict().values() if one.is_floating_point()]
        widest = max(kinds, key=lambda one: one.itemsize, default=None)
        return "float32" if widest is None else str(widest).removeprefix("torch.")

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the state_dict by all names; tied weights are one array."""
        made: dict[int, np.ndarray] = {}
        held = self.module.state_dict(keep_vars=True)
        return {name: made.setdefault(id(tensor), to_array(tensor).copy()) for name, tensor in held.items()}

    def run(self, dtype: str, nudge: Nudge | None = None) -> dict[str, np.ndarray]:
        import torch

        with self._running(dtype), torch.no_grad(), deterministic():
            module = self._copy(dtype, nudge)
            self._seed()
            found = watch(module, (), self._inputs(dtype))
            output = output_of(found.output, self.name)
        kept = {name: to_array(tensor) for name, tensor in found.tensors.items() if _is_inside(name)}
        return {**{name: array for name, array in kept.items() if array.dtype.kind in "biuf"}, OWN: to_array(output)}

    def plain_output(self, dtype: str) -> np.ndarray:
        """Returns the output of the module when nothing watches it."""
        import torch

        with self._running(dtype), torch.no_grad(), deterministic(), unfused_attention():
            module = self._copy(dtype, None)
            self._seed()
            return to_array(output_of(module(**self._inputs(dtype)), self.name))

    def rounds(self) -> bool:
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_leaves

        narrow = set[str]()

        class Watching(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                for each in tree_leaves(result):
                    if isinstance(each, torch.Tensor) and each.is_floating_point() and each.dtype != torch.float64:
                        narrow.add(str(each.dtype))
                return result

        with self._running("float64"), torch.no_grad(), deterministic(), unfused_attention():
            module = self._copy("float64", None)
            given = self._inputs("float64")
            self._seed()
            with Watching():
                module(**given)
        return bool(narrow)

    def train(self, optimizer: Mapping[str, Any] | None, nudge: Nudge | None = None) -> Trained:
        import torch

        with self._running("float64"), deterministic(), unfused_attention(), torch.enable_grad():
            module = self._copy("float64", nudge)
            factor = 1.0 if nudge is None else loss_factor(nudge.draw)
            steps, losses = [], []
            made = self._optimizer(module, optimizer)
            gradients: dict[str, np.ndarray] = {}
            for step in range(1 if optimizer is None else STEPS):
                module.zero_grad(set_to_none=True)
                loss = self._loss(module)
                if not loss.requires_grad:
                    raise CannotRun(
                        f"{self.name}: expected an output that depends on the parameters; it has no gradient"
                    )
                (factor * loss).backward()
                losses.append(float(loss.detach()))
                held = self._named(module)
                if step == 0:
                    gradients = {
                        name: to_array(one.grad) / factor for name, one in held.items() if one.grad is not None
                    }
                if made is not None:
                    made.step()
                    steps.append({name: to_array(one).copy() for name, one in held.items()})
        return Trained(gradients, tuple(losses), tuple(steps))

    def _loss(self, module: nn.Module) -> torch.Tensor:
        import torch

        self._seed()
        output = output_of(module(**self._inputs("float64")), self.name)
        if self.loss is not None:
            loss = self.loss(output)
            if not (isinstance(loss, torch.Tensor) and loss.ndim == 0):
                raise CannotRun(f"{self.name}: expected a loss that returns one number; received {type(loss).__name__}")
            return loss
        return (output * torch.from_numpy(factors(tuple(output.shape)))).sum()

    def _optimizer(self, module: nn.Module, held: Mapping[str, Any] | None) -> Any:
        if held is None:
            return None
        if held["name"] == OWN_OPTIMIZER and self.optimizer is not None:
            return self.optimizer(module)
        return torch_optimizer(held)([one for one in module.parameters() if one.requires_grad])

    def _named(self, module: nn.Module) -> dict[str, torch.Tensor]:
        held = module.state_dict(keep_vars=True)
        return {name: held[name] for name in self.trained}

    def _seed(self) -> None:
        if self.seed is not None:
            import torch

            torch.manual_seed(self.seed)

    def _copy(self, dtype: str, nudge: Nudge | None) -> nn.Module:
        import torch

        module = copied(self.module)
        if dtype != OWN_TYPE:
            module = converted(module, getattr(torch, dtype))
        if nudge is None:
            return module
        parameters = dict(module.named_parameters())
        moved = nudged({name: to_array(one) for name, one in parameters.items()}, nudge.bits, nudge.draw)
        with torch.no_grad():
            for name, one in parameters.items():
                one.copy_(torch.from_numpy(moved[name]))
        return module

    def _inputs(self, dtype: str) -> dict[str, torch.Tensor]:
        import torch

        given = {name: torch.from_numpy(np.array(array)) for name, array in self.inputs.items()}
        kind = getattr(torch, self.dtype if dtype == OWN_TYPE else dtype)
        return {name: one.to(kind) if one.is_floating_point() else one for name, one in given.items()}

    def _running(self, dtype: str) -> Any:
        what = f"{shapes_of(self.inputs)} in {self.dtype if dtype == OWN_TYPE else dtype}"
        return cannot_run(f"{self.name}:", what, self.module, lambda: self.module(**self._inputs(OWN_TYPE)))


def _is_inside(name: str) -> bool:
    """Returns whether an array is what a module inside computes: not its input, nor a part of the whole output."""
    return not (name.endswith("@input") or "@input#" in name or name == OWN or name.startswith((f"{OWN}.", f"{OWN}@")))
