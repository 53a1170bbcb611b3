"""Reports errors of a user's PyTorch module or JAX function in one line, with the place and a remedy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.proof.programs import UnknownOperation, WideIntegers
from jax_transformer.storage.tensors import PortingError

if TYPE_CHECKING:
    from torch import nn

RAISED = (Exception, SystemExit)
"""Errors that a user's code may raise. (A SystemExit would end the command with an exit code of its own.)"""
ADAPTER = (
    "write an adapter, a subclass of it (or a module that holds it) whose forward(source_ids, decoder_input_ids), on "
    "ids [B, S] and [B, T], calls its forward as that wants and returns logits [B, T, V]"
)
MOST = 240
"""The most characters of an exception's text that a message shows."""


def describe_failure(module: nn.Module, error: BaseException, again: Callable[[], Any] | None = None) -> str:
    """Describes a module's error in one line, with the part that raised it.

    Args:
      again: repeats the failing call, to see which part is running.
    """
    place = None if again is None else _place(module, again)
    return f"its forward raised {in_short(error)}" + (f", in {place}" if place else "")


def in_short(error: BaseException) -> str:
    """Returns an exception's type and text in one line."""
    text = " ".join(str(error).split())
    return (
        f"{type(error).__name__}: {text if len(text) <= MOST else text[:MOST] + ' …'}" if text else type(error).__name__
    )


def _place(module: nn.Module, again: Callable[[], Any]) -> str:
    """Returns the path and class of the innermost part of a module that raises; "" for the module itself, or if it
    doesn't raise again."""
    running: list[str] = []

    def enter(label: str, *call: Any) -> None:
        running.append(label)

    def leave(*call: Any) -> None:
        running.pop()

    with contextlib.ExitStack() as stack:
        try:
            for path, part in module.named_modules():
                label = f"{path} ({type(part).__name__})" if path else ""
                stack.callback(part.register_forward_pre_hook(partial(enter, label)).remove)
                stack.callback(part.register_forward_hook(leave).remove)
            again()
        except RAISED:
            return running[-1] if running else ""
    return ""


@contextlib.contextmanager
def cannot_run(
    side: str, what: str, module: nn.Module | None = None, again: Callable[[], Any] | None = None
) -> Iterator[None]:
    """Turns errors of a user's program into CannotRun: its stage becomes inconclusive, and the other stages still run.

    Args:
      side: the side's name in messages.
      what: the program's inputs in messages, such as "source_ids [7, 11] and decoder_input_ids [7, 9] in bfloat16".
      module, again: see `describe_failure`.
    """
    try:
        yield
    except (CannotRun, ParityError, PortingError, UnknownOperation, WideIntegers):
        raise
    except RAISED as error:
        raised = f"raised {in_short(error)}" if module is None else describe_failure(module, error, again)
        raise CannotRun(f"{side} can't be run on {what}: {raised}") from error


def shapes_of(arrays: Mapping[str, Any]) -> str:
    """Lists names and shapes, such as "source_ids [7, 11] and decoder_input_ids [7, 9]"."""
    return " and ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
