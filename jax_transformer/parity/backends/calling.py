"""How a user's module is called with ids, and which part of its output the logits are: read from the signature of its
forward, and from one trial."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jax_transformer.comparison.capture import tensors_in
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.user_errors import ADAPTER, RAISED, describe_failure

if TYPE_CHECKING:
    import torch
    from torch import nn

    from jax_transformer.config.model import TransformerConfig

Part = Literal["source", "target"]
Head = Literal["logits", "log_probabilities", "probabilities"]

SOURCE_WORDS = frozenset({"src", "source", "enc", "encoder"})
TARGET_WORDS = frozenset({"tgt", "trg", "target", "targets", "dec", "decoder", "prev", "shifted"})
ID_WORDS = frozenset(
    {"id", "ids", "idx", "in", "input", "inputs", "x", "output", "token", "tokens", "seq", "seqs", "sequence"}
    | {"sequences", "sentence", "sentences", "text", "word", "words", "data", "batch", "indices", "tensor", "previous"}
)
"""Words that may stand beside those of a side in the name of an argument that takes ids."""
PADDED = {"src_key_padding_mask": "source", "tgt_key_padding_mask": "target", "memory_key_padding_mask": "source"}
"""Arguments that mean in all of PyTorch: boolean [B, T], True where a pad is."""


class Arguments(NamedTuple):
    """Holds the arguments of one call."""

    positional: tuple[Any, ...]
    named: dict[str, Any]


@dataclass(frozen=True)
class Calling:
    """Calls a module with ids, and finds the logits in what it returns."""

    order: tuple[Part, ...] = ("source", "target")
    """What its positional arguments take."""
    named: Mapping[str, Part] = field(default_factory=dict)
    """What arguments that are passed by name take."""
    others: Mapping[str, Callable[[torch.Tensor, torch.Tensor], Any]] = field(default_factory=dict)
    """Arguments that follow from the ids: (source_ids, decoder_input_ids) → value."""
    batch_first: bool = True
    """Whether ids are [B, T]; else [T, B]."""
    path: tuple[Any, ...] = ()
    """The keys that lead to the logits in the output."""
    axes: tuple[int, ...] = (0, 1, 2)
    """The axes of the output that are B, T and V; none for [B·T, V]."""
    head: Head = "logits"

    def arguments(self, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> Arguments:
        """Returns the arguments for source_ids [B, S] and decoder_input_ids [B, T]: copies, which the module may
        change."""
        ids = {"source": source_ids, "target": decoder_input_ids}

        def given(part: Part) -> torch.Tensor:
            return (ids[part] if self.batch_first else ids[part].T).clone()

        named = {name: given(part) for name, part in self.named.items()}
        named |= {name: value(source_ids, decoder_input_ids) for name, value in self.others.items()}
        return Arguments(tuple(given(part) for part in self.order), named)

    def call(self, module: nn.Module, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor) -> Any:
        """Returns what the module returns."""
        positional, named = self.arguments(source_ids, decoder_input_ids)
        return module(*positional, **named)

    def logits(self, output: Any, batch: int) -> torch.Tensor:
        """Returns the logits [B, T, V], or the (log-)probabilities, in what the module returned."""
        return self._ordered(self._found(output), batch)

    def unnormalised(
        self, output: Any, last_softmax: tuple[torch.Tensor, torch.Tensor] | None, batch: int
    ) -> torch.Tensor:
        """Returns the logits [B, T, V] that the module returns or, if it returns (log-)probabilities, makes them of.

        Raises:
          LookupError: it returns probabilities that no softmax computed last.
        """
        import torch

        returned = self._found(output)
        if self.head == "logits":
            return self._ordered(returned, batch)
        logits, normalised = last_softmax or (returned, returned)
        orders = permutations(range(normalised.ndim)) if last_softmax else ()
        for order in orders:
            part = _in_shape(normalised.permute(order), returned.shape)
            if part is not None and torch.equal(part.nan_to_num(), returned.nan_to_num()):
                return self._ordered(_in_shape(logits.permute(order), returned.shape), batch)
        raise LookupError("no softmax computes what it returns")

    def _found(self, output: Any) -> torch.Tensor:
        for key in self.path:
            output = getattr(output, key) if isinstance(key, str) and not isinstance(output, Mapping) else output[key]
        tensor: torch.Tensor = output
        return tensor

    def _ordered(self, tensor: torch.Tensor, batch: int) -> torch.Tensor:
        return tensor.permute(self.axes) if self.axes else tensor.reshape(batch, -1, tensor.shape[-1])


def _in_shape(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
    """Returns the tensor reshaped, or its first elements along each axis; None if it has another shape altogether."""
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
    """Returns how to call a module, after a trial on ids whose sizes tell all axes apart.

    Args:
      name: the module's name in messages.
      source_ids, decoder_input_ids: [B, S], [B, T].

    Raises:
      ParityError: its signature doesn't show how, it raises, or nothing in its output is like logits. The message says
        what an adapter has to do.
    """
    import torch

    calling = _by_signature(module, name, config)
    shape = (*decoder_input_ids.shape, config.target.vocab_size)
    failures, returned = [], ""
    for trial in (calling, dataclasses.replace(calling, batch_first=False)):
        if not trial.batch_first and trial.others:
            continue  # their layout would be a guess
        try:
            with torch.no_grad():
                output = trial.call(module, source_ids, decoder_input_ids)
        except RAISED as error:
            again = partial(trial.call, module, source_ids, decoder_input_ids)
            failures.append(describe_failure(module, error, again))
            continue
        found = _logits_in(output, shape, batch_first=trial.batch_first)
        if len(found) > 1:
            raise ParityError(
                f"reference {name}: expected one tensor of logits {list(shape)} in what it returns; received "
                f"{len(found)}, {', '.join(map(_written, found))}: {ADAPTER}"
            )
        if found:
            ((path, axes),) = found.items()
            trial = dataclasses.replace(trial, path=path, axes=axes)
            return dataclasses.replace(trial, head=_head(trial.logits(output, len(source_ids))))
        returned = returned or _described(output)
    what = f"expected logits {list(shape)} [B, T, V]; it returns {returned}" if returned else failures[0]
    raise ParityError(f"reference {name}: {what}: {ADAPTER}")


# --- arguments


def _by_signature(module: nn.Module, name: str, config: TransformerConfig) -> Calling:
    """Returns how the signature of the module's forward says that it is called.

    Raises:
      ParityError: it needs arguments of which nothing says what they take.
    """
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # scripted modules have none
        return Calling()
    taken = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    parts = _parts(taken)
    if not parts:  # by position, if nothing says otherwise
        needed = [one for one in taken if one.default is one.empty]
        positional = [one for one in taken if one.kind is not one.KEYWORD_ONLY][:2]
        takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
        if len(needed) > 2 or (len(positional) < 2 and not takes_any) or any(one not in positional for one in needed):
            raise _not_callable(name, [one.name for one in needed])
        return Calling()
    others = _others({one.name for one in taken if one.name not in parts}, config, parts)
    missing = [
        one.name for one in taken if one.default is one.empty and one.name not in parts and one.name not in others
    ]
    if missing:
        raise _not_callable(name, missing)
    is_of_transformers = {"input_ids", "decoder_input_ids"} <= parts.keys()
    passed = {
        one.name: others[one.name]
        for one in taken
        if one.name in others
        and (one.default is one.empty or (is_of_transformers and one.name in ("attention_mask", "use_cache")))
    }
    order = [one.name for one in taken if one.kind is one.POSITIONAL_ONLY]
    named = {one: part for one, part in parts.items() if one not in order}
    return Calling(tuple(parts[one] for one in order), named, passed)


def _not_callable(name: str, arguments: list[str]) -> ParityError:
    """Returns the error for a module whose forward needs these arguments, which nothing explains; or too few."""
    received = f"it also needs {', '.join(arguments)}" if arguments else "it doesn't take two arguments"
    return ParityError(
        f"reference {name}: expected a forward that takes ids of the source and the target, and needs nothing else; "
        f"{received}: {ADAPTER}"
    )


def _parts(taken: list[inspect.Parameter]) -> dict[str, Part]:
    """Returns the arguments that take ids of either side, if their names say so of one and leave one for the other."""
    sides = {one.name: part for one in taken if (part := part_of(one.name))}
    first: dict[Part, str] = {}
    for argument, part in sides.items():
        first.setdefault(part, argument)
    if len(first) == 1:
        (known,) = first
        other: Part = "target" if known == "source" else "source"
        left = [one.name for one in taken if one.name not in sides and _words(one.name) <= ID_WORDS | {"y"}]
        if len(left) != 1:
            return {}
        first[other] = left[0]
    return {argument: part for part, argument in sorted(first.items())}


def part_of(argument: str) -> Part | None:
    """Returns the side whose ids an argument of this name takes; None if the name doesn't say."""
    words = _words(argument)
    if not words <= SOURCE_WORDS | TARGET_WORDS | ID_WORDS or argument.endswith("output"):
        return None
    of_source, of_target = bool(words & SOURCE_WORDS), bool(words & TARGET_WORDS)
    return None if of_source == of_target else "source" if of_source else "target"


def _words(argument: str) -> set[str]:
    """Returns the words of a name in snake case or camel case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", argument)}


def _others(
    names: set[str], config: TransformerConfig, parts: Mapping[str, Part]
) -> dict[str, Callable[[torch.Tensor, torch.Tensor], Any]]:
    """Returns what follows from the ids for arguments whose name has one meaning everywhere."""
    pads = {"source": config.source.pad_id, "target": config.target.pad_id}

    def padded(part: str) -> Callable[[torch.Tensor, torch.Tensor], Any]:
        return lambda source_ids, target_ids: (source_ids if part == "source" else target_ids) == pads[part]

    known: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
        **{name: padded(part) for name, part in PADDED.items()},
        **dict.fromkeys(
            ("src_lengths", "source_lengths", "src_len", "src_lens"),
            lambda source_ids, target_ids: (source_ids != pads["source"]).sum(dim=1),
        ),
    }
    if {"input_ids", "decoder_input_ids"} <= parts.keys():  # as models of transformers take them
        known |= {
            "attention_mask": lambda source_ids, target_ids: source_ids != pads["source"],
            "use_cache": lambda source_ids, target_ids: False,
        }
    return {name: value for name, value in known.items() if name in names}


# --- outputs


def _logits_in(output: Any, shape: tuple[int, ...], *, batch_first: bool) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """Returns the paths in an output to tensors that are like logits of this shape [B, T, V], and their axes.

    One that is called logits, or the output's first tensor if it is a tuple of several, prevails.
    """
    fitting = {
        path: axes
        for path, tensor in tensors_in(output)
        if tensor.is_floating_point() and (axes := _axes(tuple(tensor.shape), shape, batch_first)) is not None
    }
    named = {path: axes for path, axes in fitting.items() if path and path[-1] in ("logits", "lm_logits")}
    return named if len(named) == 1 else fitting


def _axes(found: tuple[int, ...], shape: tuple[int, ...], batch_first: bool) -> tuple[int, ...] | None:
    """Returns the axes of a tensor that are B, T and V; () for [B·T, V]; None if it can't be logits."""
    if len(found) == 2 and batch_first and found == (shape[0] * shape[1], shape[2]):
        return ()
    orders = [(0, 1, 2), (1, 0, 2), *permutations(range(3))]
    return next((axes for axes in orders if len(found) == 3 and tuple(found[axis] for axis in axes) == shape), None)


def _head(values: torch.Tensor) -> Head:
    """Returns what values [B, T, V] are: rows of probabilities, or of their logarithms, sum to 1."""
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


def _described(output: Any) -> str:
    tensors = [f"{_written(path)} {list(tensor.shape)}".strip() for path, tensor in tensors_in(output)][:4]
    return f"{type(output).__name__}{' of ' if tensors else ' without tensors'}{', '.join(tensors)}"


def _written(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
