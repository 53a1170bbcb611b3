"""Calls a user's module with a model's ids, and recognises its result: logits, probabilities or their logarithms."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal

from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.programs.calling import CallError, DirectCall, Known, find_direct

if TYPE_CHECKING:
    import torch
    from torch import nn

    from jax_transformer.config.model import TransformerConfig

Head = Literal["logits", "log_probabilities", "probabilities"]

ADAPTER = (
    "write an adapter, a subclass of it (or a module that holds it) whose forward(source_ids, decoder_input_ids), on "
    "ids [B, S] and [B, T], calls its forward as that wants and returns logits [B, T, V]"
)


@dataclass(frozen=True)
class Calling(DirectCall):
    """Calls a module with ids, and finds the logits in its result or behind its (log-)probabilities."""

    head: Head = "logits"

    def unnormalised(
        self, result: Any, last_softmax: tuple[torch.Tensor, torch.Tensor] | None, batch: int
    ) -> torch.Tensor:
        """Returns the logits [B, T, V] of a result: the result, or the input of the softmax that computed it.

        Raises:
          LookupError: the result holds (log-)probabilities that the last softmax didn't compute.
        """
        import torch

        returned = self.reading.found(result)
        if self.head == "logits":
            return self.reading.ordered(returned, batch)
        logits, normalised = last_softmax or (returned, returned)
        orders = permutations(range(normalised.ndim)) if last_softmax else ()
        for order in orders:
            part = _in_shape(normalised.permute(order), returned.shape)
            if part is not None and torch.equal(part.nan_to_num(), returned.nan_to_num()):
                return self.reading.ordered(_in_shape(logits.permute(order), returned.shape), batch)
        raise LookupError("no softmax computes what it returns")


def _in_shape(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
    """Returns the tensor reshaped, or its first elements along each axis; None if the shape fits neither way."""
    if tensor.numel() == shape.numel():
        return tensor.reshape(shape)
    fits = tensor.ndim == len(shape) and all(wanted <= held for wanted, held in zip(shape, tensor.shape, strict=True))
    return tensor[tuple(slice(size) for size in shape)] if fits else None


POSITIONAL = Calling()
"""(source_ids, decoder_input_ids) → logits."""


def find_calling(
    module: nn.Module,
    name: str,
    config: TransformerConfig,
    source_ids: torch.Tensor,
    decoder_input_ids: torch.Tensor,
) -> Calling:
    """Finds out how to call a module, by trial calls.

    Args:
      name: the module's name in messages.
      source_ids, decoder_input_ids: [B, S], [B, T], with sizes that identify each axis.

    Raises:
      ParityError: the signature doesn't suffice, every call raises, or the result contains no logits. The message
        describes the adapter to write.
    """
    pads, vocabulary = (config.source.pad_id, config.target.pad_id), config.target.vocab_size
    try:
        found, logits = find_direct(module, Known(source_ids, decoder_input_ids, *pads, vocabulary))
    except CallError as error:
        raise ParityError(f"reference {name}: {error}: {ADAPTER}") from error
    fields = {one.name: getattr(found, one.name) for one in dataclasses.fields(found)}
    return Calling(**fields, head=_head(logits))


def _head(values: torch.Tensor) -> Head:
    """Classifies values [B, T, V]: rows of probabilities, or the exponentials of their logarithms, sum to 1."""
    import torch

    finite = values[values.isfinite().all(dim=-1)].double()  # [rows, V]
    if not len(finite):
        return "logits"
    allowed = tolerances.SUM_OF_PROBABILITIES_ROUNDOFFS * torch.finfo(values.dtype).eps * values.shape[-1] ** 0.5

    def sum_to_one(rows: torch.Tensor) -> bool:
        return bool(((rows.sum(dim=-1) - 1).abs() <= allowed).all())

    if bool((finite >= 0).all()) and sum_to_one(finite):
        return "probabilities"
    return "log_probabilities" if sum_to_one(finite.exp()) else "logits"
