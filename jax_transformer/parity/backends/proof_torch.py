"""Computes the reference's outputs for a proof, under the names of its own tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from jax_transformer.comparison.lowering import GRADIENT
from jax_transformer.config.run import TrainConfig
from jax_transformer.parity.backends.proof_jax import LOSS, after
from jax_transformer.parity.backends.torch_module import TorchSide, input_tensors
from jax_transformer.parity.backends.torch_programs import clear_gradients, make_optimizer, take_step
from jax_transformer.parity.problems import Problem
from jax_transformer.programs.torch_precision import deterministic

if TYPE_CHECKING:
    import torch
    from torch import nn


def outputs(side: TorchSide, module: nn.Module, problem: Problem, *, gradients: bool) -> dict[str, torch.Tensor]:
    """Returns activations, the loss, and its gradients by the names of the state_dict."""
    import torch

    with deterministic(), torch.set_grad_enabled(gradients):
        logits, activations = side.reference.outputs(module, *input_tensors(problem))
        loss = side._loss(logits, problem)
        found = {**activations, LOSS: loss}
        if not gradients:
            return found
        module.zero_grad(set_to_none=True)
        if loss.requires_grad:
            side._pass_back(loss)  # runs all hooks, as training does
    held = module.state_dict(keep_vars=True)
    found |= {GRADIENT + name: one.grad for name, one in held.items() if one.is_leaf and one.grad is not None}
    module.zero_grad(set_to_none=True)
    return found


def steps(
    side: TorchSide, module: nn.Module, rates: torch.Tensor, problem: Problem, shown: tuple[int, ...]
) -> dict[str, torch.Tensor]:
    """Returns the parameters after some optimizer steps, by the names of the state_dict, and the first loss."""
    from jax_transformer.proof.torch_programs import cut

    program = side.programs.optimizer or _Built(side.rules.train, rates)
    optimizer = make_optimizer(program, module)
    found: dict[str, torch.Tensor] = {}
    with deterministic(), _exact_corrections():
        for number in range(1, max(shown) + 1):
            clear_gradients(program, optimizer)
            logits, _ = side.reference.outputs(module, *input_tensors(problem))
            loss = side._loss(logits, problem)
            found.setdefault(LOSS, loss)
            loss.backward()
            cut([one.grad for one in module.parameters() if one.grad is not None], is_weight=False)
            take_step(program, optimizer)
            if number in shown:
                found |= {after(number) + name: one.clone() for name, one in module.state_dict().items()}
            cut([one for one in module.parameters() if one.grad is not None], is_weight=True)
    return found


CAPTURED = {"capturable": True, "foreach": False, "fused": False}
"""Options that make PyTorch's optimizers compute only in tensors."""


class _Built:
    """Builds the default optimizer: clipping by the norm and AdamW, with learning rates that are inputs of the
    program."""

    def __init__(self, train: TrainConfig, rates: torch.Tensor) -> None:
        self.train, self.rates = train, rates

    def __call__(self, module: nn.Module) -> _Built:
        import torch

        train = self.train
        self.parameters, self.done = list(module.parameters()), 0
        self.adam = torch.optim.AdamW(
            self.parameters,
            1.0,
            (train.adam_b1, train.adam_b2),
            train.adam_eps,
            train.weight_decay,
        )
        return self

    def zero_grad(self) -> None:
        self.adam.zero_grad()

    def step(self) -> None:
        import torch

        torch.nn.utils.clip_grad_norm_(self.parameters, self.train.clip_norm)
        for group in self.adam.param_groups:
            group["lr"] = self.rates[self.done]
        self.adam.step()
        self.done += 1


@contextlib.contextmanager
def _exact_corrections() -> Iterator[None]:
    """Makes PyTorch's optimizers compute corrections and rates in float64 tensors, so that 1 − βᵗ and lr/(1 − βᵗ) are
    parts of the program rather than rounded numbers. Each step remains the same function."""
    import torch
    from torch.optim import optimizer as torch_optimizer

    before: Any = torch.get_default_dtype()
    running: list[contextlib.ExitStack] = []

    def enter(optimizer: Any, *call: Any) -> None:
        running.append(_in_tensors(optimizer))

    def leave(*call: Any) -> None:
        running.pop().close()

    def leave_all() -> None:
        while running:
            leave()

    with contextlib.ExitStack() as stack:
        stack.callback(leave_all)  # steps that raised
        stack.callback(torch_optimizer.register_optimizer_step_pre_hook(enter).remove)
        stack.callback(torch_optimizer.register_optimizer_step_post_hook(leave).remove)
        stack.callback(torch.set_default_dtype, before)
        torch.set_default_dtype(torch.float64)
        yield


def _in_tensors(optimizer: torch.optim.Optimizer) -> contextlib.ExitStack:
    """Makes one of PyTorch's optimizers compute only in tensors, until the stack is closed."""
    import torch

    stack = contextlib.ExitStack()
    stack.enter_context(patch("torch.compiler.is_compiling", lambda: True))  # otherwise capturable requires a GPU
    for group in optimizer.param_groups:
        if "capturable" in group:
            rate = torch.as_tensor(group["lr"], dtype=torch.float64)
            stack.enter_context(patch.dict(group, {**CAPTURED, "lr": rate}))
    return stack
