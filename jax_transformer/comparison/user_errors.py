"""Reports errors of a user's PyTorch module or JAX function in one line, with the place and a remedy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.programs.raised import RAISED, describe_failure, in_short
from jax_transformer.proof.programs import UnknownOperation, WideIntegers
from jax_transformer.storage.tensors import PortingError

if TYPE_CHECKING:
    from torch import nn


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
