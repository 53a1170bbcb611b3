"""Calls a module as its forward's parameters are named, and finds the logits in its result, after a single trial.

`find_call` searches for a call that behaves as an encoder-decoder; this takes the one that the names show, whatever the
module then computes: a module with a fault is to be compared, not refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jax_transformer.programs.calling.failures import CallError
from jax_transformer.programs.calling.outputs import ROWS, Reading, describe, readings
from jax_transformer.programs.calling.roles import Parameter, parameters
from jax_transformer.programs.raised import RAISED, describe_failure

if TYPE_CHECKING:
    import torch
    from torch import nn

Side = Literal["source", "target"]
Value = Callable[["torch.Tensor", "torch.Tensor"], Any]
"""(source_ids, decoder_input_ids) → the value of an argument."""
LENGTHS = frozenset({"src_lengths", "source_lengths", "src_len", "src_lens"})
OF_TRANSFORMERS = frozenset({"attention_mask", "use_cache"})
"""Arguments that models of transformers don't require, and whose defaults don't do: a mask of no pads, and a cache."""


class Known(NamedTuple):
    """Holds what a module's caller knows of it."""

    source_ids: torch.Tensor
    """[B, S], or feature vectors [B, S, F], as a trial takes them: sizes that differ tell all axes apart."""
    decoder_input_ids: torch.Tensor
    """[B, T]"""
    source_pad_id: int | None
    target_pad_id: int | None
    vocabulary: int
    """V, the number of logits."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Returns the shape of the logits."""
        batch, length = self.decoder_input_ids.shape
        return batch, length, self.vocabulary


class Arguments(NamedTuple):
    """Holds the arguments of one call."""

    positional: tuple[Any, ...]
    named: dict[str, Any]


@dataclass(frozen=True)
class DirectCall:
    """Calls a module with ids, and finds the logits in its result."""

    order: tuple[Side, ...] = ("source", "target")
    """The ids that its positional arguments take."""
    named: Mapping[str, Side] = field(default_factory=dict)
    """The ids that arguments take which are passed by name."""
    others: Mapping[str, Value] = field(default_factory=dict)
    """Arguments that follow from the ids."""
    batch_first: bool = True
    """Whether ids are [B, T]; else [T, B]."""
    channels_first: bool = False
    """Whether a source of feature vectors is [B, F, S], as convolutions read it; else [B, S, F]."""
    reading: Reading = Reading("output", "", 0, 0)
    """The place of the logits in the result."""

    def arguments(self, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> Arguments:
        """Returns the arguments for source_ids [B, S], or feature vectors [B, S, F], and decoder_input_ids [B, T]:
        copies, which the module may change."""
        source = source_ids.transpose(1, 2) if self.channels_first else source_ids
        ids = {"source": source, "target": decoder_input_ids}

        def given(side: Side) -> torch.Tensor:
            return (ids[side] if self.batch_first else ids[side].T).clone()

        named = {name: given(side) for name, side in self.named.items()}
        named |= {name: value(source_ids, decoder_input_ids) for name, value in self.others.items()}
        return Arguments(tuple(given(side) for side in self.order), named)

    def call(self, module: nn.Module, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> Any:
        """Returns the module's result."""
        positional, named = self.arguments(source_ids, decoder_input_ids)
        return module(*positional, **named)

    def logits(self, result: Any, batch: int) -> torch.Tensor:
        """Returns the logits [B, T, V] in a result."""
        return self.reading.ordered(self.reading.found(result), batch)


def find_direct(module: nn.Module, known: Known) -> tuple[DirectCall, torch.Tensor]:
    """Finds out how to call a module from the names of its forward's parameters; tries it, with ids in both layouts.

    Returns:
      The call, and the logits [B, T, V] of the trial.

    Raises:
      CallError: its signature doesn't show how, it raises, or nothing in its result is like logits.
    """
    import torch

    by_names = _by_names(module, known)
    failures, returned = [], ""
    has_vectors = known.source_ids.ndim == 3
    other = replace(by_names, channels_first=True) if has_vectors else replace(by_names, batch_first=False)
    for call in (other, by_names) if has_vectors else (by_names, other):
        if not call.batch_first and call.others:
            continue  # their layout would be a guess
        run = partial(call.call, module, known.source_ids, known.decoder_input_ids)
        try:
            with torch.no_grad():
                result = run()
        except RAISED as error:
            failures.append(describe_failure(module, error, run))
            continue
        found = _logits_in(result, known.shape, batch_first=call.batch_first)
        if len(found) > 1:
            raise CallError(
                f"expected one tensor of logits {list(known.shape)} in its result; received {len(found)}, "
                f"{', '.join(one.path for one in found)}"
            )
        if found:
            call = replace(call, reading=found[0])
            return call, call.logits(result, known.shape[0])
        returned = returned or describe(result)
    if not returned:
        raise CallError(failures[0])
    raise CallError(f"expected logits {list(known.shape)} [B, T, V]; it returns {returned}")


def _by_names(module: nn.Module, known: Known) -> DirectCall:
    """Returns the call that the names of parameters show.

    Raises:
      CallError: the forward needs arguments whose names don't tell what they take.
    """
    try:
        signature = inspect.signature(module.forward).parameters
        parts = parameters(module.forward)
    except (TypeError, ValueError):  # scripted modules have none
        return DirectCall()
    taken = {name: one for name, one in signature.items() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    needed = [name for name, one in taken.items() if one.default is one.empty]
    parts = [part for part in parts if part.holder or part.by_keyword or part.name in taken]
    sides: dict[Any, Parameter] = {part.role: part for part in parts if part.role in ("source", "target")}
    if any(part.holder for part in sides.values()):
        raise _not_callable(needed)
    if len(sides) < 2 or not any(part.names_a_side for part in sides.values()):
        return _by_position(signature, needed)
    named: dict[str, Side] = {sides["source"].name: "source", sides["target"].name: "target"}
    others = _others(known, named)
    passed = {
        name: value
        for name, value in others.items()
        if name in taken and name not in named and (name in needed or name in OF_TRANSFORMERS)
    }
    missing = [name for name in needed if name not in named and name not in passed]
    if missing:
        raise _not_callable(missing)
    first = [name for name, one in taken.items() if one.kind is one.POSITIONAL_ONLY and name in named]
    by_name = {name: side for name, side in named.items() if name not in first}
    return DirectCall(tuple(named[name] for name in first), by_name, passed)


def _by_position(signature: Mapping[str, inspect.Parameter], needed: Sequence[str]) -> DirectCall:
    """Returns the call with both ids by position. Raises CallError for a forward that takes no two, or needs more."""
    positional = [
        name for name, one in signature.items() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in signature.values())
    if (len(positional) < 2 and not takes_any) or not {*needed} <= {*positional[:2]}:
        raise _not_callable(needed)
    return DirectCall()


def _not_callable(arguments: Sequence[str]) -> CallError:
    """Returns the error for a module whose forward needs these arguments, which nothing explains; or too few."""
    received = f"it also needs {', '.join(arguments)}" if arguments else "it doesn't take two arguments"
    return CallError(
        f"expected a forward that takes ids of the source and the target, and needs nothing else; {received}"
    )


def _others(known: Known, named: Collection[str]) -> dict[str, Value]:
    """Returns the values of arguments whose name has one meaning everywhere: masks of padding, True at a pad, as in
    all of PyTorch; and the numbers of tokens. In models of transformers, masks are True at tokens.

    Args:
      named: the names of the arguments that take the ids.
    """

    def source_pads(source_ids: torch.Tensor, target_ids: torch.Tensor) -> Any:
        return source_ids == known.source_pad_id

    def target_pads(source_ids: torch.Tensor, target_ids: torch.Tensor) -> Any:
        return target_ids == known.target_pad_id

    def source_tokens(source_ids: torch.Tensor, target_ids: torch.Tensor) -> Any:
        return source_ids != known.source_pad_id

    values: dict[str, Value] = {
        "src_key_padding_mask": source_pads,
        "tgt_key_padding_mask": target_pads,
        "memory_key_padding_mask": source_pads,
        **dict.fromkeys(LENGTHS, lambda *ids: source_tokens(*ids).sum(dim=1)),
    }
    if {"input_ids", "decoder_input_ids"} <= {*named}:
        values |= {"attention_mask": source_tokens, "use_cache": lambda *ids: False}
    elif {"input_features", "decoder_input_ids"} <= {*named}:
        values |= {"use_cache": lambda *ids: False}
    return values


def _logits_in(result: Any, shape: tuple[int, int, int], *, batch_first: bool) -> list[Reading]:
    """Lists the ways to read a result as logits of this shape. One that is called logits prevails."""
    batch, length, vocabulary = shape
    fitting = [
        one
        for one in readings(result, batch, length)
        if (one.rows, one.width) == (0, vocabulary) and (batch_first or one.layout != ROWS)
    ]
    named = [one for one in fitting if one.keys and one.keys[-1] in ("logits", "lm_logits")]
    return named if len(named) == 1 else fitting
