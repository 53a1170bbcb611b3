"""Calls a user's own PyTorch programs (loss, optimizer, decoder) and checks their results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.config.run import TrainConfig
from jax_transformer.parity.backends.learning_rates import learning_rates
from jax_transformer.parity.backends.side import Hypotheses
from jax_transformer.programs.raised import RAISED, in_short
from jax_transformer.proof.programs import UnknownOperation

if TYPE_CHECKING:
    import torch
    from torch import nn


class Optimizer(Protocol):
    """Updates a module's parameters: a torch.optim.Optimizer, or an object that also clips and schedules."""

    def zero_grad(self) -> None: ...

    def step(self) -> None:
        """Does everything that follows `loss.backward()`: clipping, the optimizer's step, and the schedule's step."""


def call_loss(program: Callable[..., Any], logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns a user's loss. Raises ParityError unless it is a scalar tensor that depends on the logits."""
    import torch

    with _named("loss", program):
        loss = program(logits, labels)
    depends = isinstance(loss, torch.Tensor) and (loss.requires_grad or not torch.is_grad_enabled())
    if not (depends and loss.numel() == 1):
        received = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ParityError(
            f"loss {_name(program)}: expected (logits [B, T, V], labels [B, T]) → a scalar tensor that depends on the "
            f"logits; received {received}"
        )
    return loss.squeeze()


def make_optimizer(program: Callable[..., Any], module: nn.Module) -> Optimizer:
    """Returns a user's optimizer of a module. Raises ParityError unless it has `zero_grad` and `step`."""
    with _named("optimizer", program):
        optimizer = program(module)
    if not all(callable(getattr(optimizer, name, None)) for name in ("zero_grad", "step")):
        raise ParityError(
            f"optimizer {_name(program)}: expected module → an object with zero_grad() and step(), such as a "
            f"torch.optim.Optimizer; received {type(optimizer).__name__}"
        )
    moved: Optimizer = optimizer
    return moved


def clear_gradients(program: Callable[..., Any], optimizer: Optimizer) -> None:
    """Clears the gradients of a user's optimizer. Raises ParityError if it raises."""
    with _named("optimizer", program):
        optimizer.zero_grad()


def take_step(program: Callable[..., Any], optimizer: Optimizer) -> None:
    """Takes a step of a user's optimizer. Raises ParityError if it raises."""
    with _named("optimizer", program):
        optimizer.step()


def call_decoder(
    program: Callable[..., Any],
    module: nn.Module,
    source_ids: torch.Tensor,
    *,
    start_id: int,
    eos_id: int,
    max_new_tokens: int,
    pad_id: int,
) -> Hypotheses:
    """Returns the hypotheses of a user's decoder; lists of different lengths are padded.

    Raises:
      ParityError: it doesn't return B rows of integers, optionally with B scores.
    """
    import torch

    with _named("decode", program):
        found = program(module, source_ids, start_id=start_id, eos_id=eos_id, max_new_tokens=max_new_tokens)
    found, scores = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    rows = found.tolist() if isinstance(found, torch.Tensor | np.ndarray) else found
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in rows] if isinstance(rows, list | tuple) else []
    is_right = len(rows) == len(source_ids) and all(
        isinstance(row, list | tuple) and all(isinstance(index, int) for index in row) for row in rows
    )
    if not is_right:
        received = f"a tensor of shape {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise ParityError(
            f"decode {_name(program)}: expected ids [{len(source_ids)}, T], a row of integers for each sentence; "
            f"received {received}"
        )
    width = max(map(len, rows), default=0)
    ids = np.array([[*row, *[pad_id] * (width - len(row))] for row in rows], np.int64).reshape(len(rows), width)
    return Hypotheses(ids, None if scores is None else _scores(program, scores, len(rows)))


def _scores(program: Callable[..., Any], scores: Any, count: int) -> np.ndarray:
    """Returns the scores [B] of a user's decoder in float64. Raises ParityError for anything else."""
    try:
        array = np.array([float(score) for score in scores])
    except (TypeError, ValueError):
        array = np.array([])
    if array.shape != (count,):
        raise ParityError(
            f"decode {_name(program)}: expected (ids, scores), the scores {count} numbers, one for each sentence; "
            f"received {type(scores).__name__} of length {len(array)}"
        )
    return array


@contextlib.contextmanager
def _named(what: str, program: Callable[..., Any]) -> Iterator[None]:
    """Turns exceptions of the user's program into a ParityError with its name. An operation without a rule, which ends
    a proof, is no mistake of the program, and passes through."""
    try:
        yield
    except UnknownOperation:
        raise
    except RAISED as error:
        raise ParityError(f"{what} {_name(program)}: raised {in_short(error)}") from error


def _name(program: Callable[..., Any]) -> str:
    return str(getattr(program, "__qualname__", type(program).__name__))


class BuiltInOptimizer:
    """Clips gradients by their norm and takes a step of AdamW, at the rate of the rule's schedule."""

    def __init__(self, module: nn.Module, train: TrainConfig, d_model: int, steps: int, done: int = 0) -> None:
        """Begins after `done` of the steps."""
        import torch

        self.parameters, self.clip_norm = list(module.parameters()), train.clip_norm
        self.rates = iter(learning_rates(train, d_model, steps)[done:])
        betas = train.adam_b1, train.adam_b2
        self.adam = torch.optim.AdamW(self.parameters, 1.0, betas, train.adam_eps, train.weight_decay)

    def zero_grad(self) -> None:
        self.adam.zero_grad()

    def step(self) -> None:
        import torch

        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        for group in self.adam.param_groups:
            group["lr"] = next(self.rates)
        self.adam.step()
