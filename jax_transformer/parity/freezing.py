"""`freeze`: keeps what a program computes in one file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.report.report import Report
from jax_transformer.frozen.candidates import CarriedCandidate, carried_pair, frozen_pair, module_pair
from jax_transformer.frozen.comparing import check_inputs, compare_pair
from jax_transformer.frozen.freezing import Subject, Wanted, freeze_program
from jax_transformer.frozen.record import SUFFIX, Frozen
from jax_transformer.mapping.maps import NameMap
from jax_transformer.matching.giving import Converter
from jax_transformer.parity.sides.options import Kinds, Options, Side, as_side


def freeze(
    side: Any,
    inputs: Mapping[str, Any] | str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    *,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
    lowers: bool = True,
) -> Frozen:
    """Keeps what a program computes on a batch, so that others are compared with it without the program's framework.

    The file has weights, inputs, activations by module in execution order, gradients, and the program itself as data,
    with which maps of weights are found and proofs made. It has no code, and nothing in it is ever run.

    Args:
      side: a PyTorch module in evaluation mode; an NNX or Equinox module; or a `Side` of one of these, of a Linen
        module or a function with its `params`, with a `loss` (output → one number) and an `optimizer` of yours.
      inputs: its arguments by name, arrays or an `.npz`.
      path: the file to write; None: none is.
      optimizer: sgd, adam or adamw, to keep three of its steps. None: no steps, unless the side has an optimizer.
      learning_rate: of that optimizer. None: 0.1 for sgd, 0.001 for others.
      seed: of PyTorch, set before each run of a module that draws random numbers. None: such a module is refused.
      lowers: whether to keep the program as data.

    Returns:
      What the file holds.

    Raises:
      ValueError: the program can't be run on the inputs, or computes other values when it is run again; the file can't
        be written.

    Example:
      >>> import numpy as np
      >>> import torch
      >>> import jax_transformer as jt
      >>> module = torch.nn.Linear(3, 2).eval()
      >>> frozen = jt.freeze(module, {"input": np.ones((4, 3), np.float32)}, "linear.frozen")
      >>> list(frozen.gradients), frozen.output.shape
      (['weight', 'bias'], (4, 2))
    """
    one = as_side(side)
    name = one.label
    kind = one.kind
    if kind not in ("module", "weighted"):
        raise ParityError(
            f"{name}: expected a torch.nn.Module, an NNX or Equinox module, or Side(program, params=...) of a Linen "
            f"module or a function; received a {kind}"
        )
    frozen = freeze_program(
        Subject(one.program, one.params, name, one.loss, one.optimizer),
        inputs,
        Wanted(optimizer, learning_rate, seed, lowers),
    )
    if path is None:
        return frozen
    frozen.save(path)
    return Frozen.read(path)


def as_frozen(program: Any) -> Frozen | None:
    """Returns a side's frozen reference, read from its file if need be; None for any other side.

    Raises:
      ParityError: the file can't be read.
    """
    if isinstance(program, Frozen):
        return program
    is_path = isinstance(program, str | os.PathLike) and os.fspath(program).endswith(SUFFIX)
    return Frozen.read(program) if is_path else None


def compare_frozen(ours: Side, theirs: Side, kinds: Kinds, asked: Options) -> Report:
    """Compares two sides of these kinds, one or both of which are frozen.

    Raises:
      ParityError: they can't be compared.
    """
    candidate, reference = as_frozen(ours.program), as_frozen(theirs.program)
    if candidate is not None and reference is not None:
        check_inputs(candidate, reference)
        pair = frozen_pair(candidate, reference)
        shown = ours.name or candidate.path or candidate.name, theirs.name or reference.path or reference.name
        return compare_pair(pair, shown, asked.stages, asked.progress)
    if reference is None:
        raise ParityError("expected the frozen side as the reference: compare(candidate, frozen)")
    name = ours.label
    subject = Subject(ours.program, ours.params, name, ours.loss, ours.optimizer)
    if kinds[0] == "weighted":
        given = given_names(asked.names)
        pair = carried_pair(CarriedCandidate(subject, reference, given, asked.seed))
    elif kinds[0] == "module":
        names = asked.names
        if names is not None and not isinstance(names, Mapping):
            raise ParityError("names: a PyTorch module and a frozen reference take a mapping of names")
        pair = module_pair(subject, reference, names)
    else:
        raise ParityError(
            f"{name}: expected a torch.nn.Module, an NNX or Equinox module, Side(program, params=...) of a Linen "
            "module or a function, or another frozen reference, to compare with a frozen one"
        )
    return compare_pair(pair, (name, theirs.name or reference.path or reference.name), asked.stages, asked.progress)


def given_names(given: Any) -> NameMap | Converter | None:
    """Returns a map that is given, or the function that converts weights. Raises ParityError for anything else."""
    if isinstance(given, str | os.PathLike):
        given = NameMap.read(given)
    if given is not None and not isinstance(given, NameMap) and not callable(given):
        raise ParityError(
            "names: expected a NameMap, its file, or a function that converts weights by name to a tree of them; "
            f"received a {type(given).__name__}"
        )
    found: NameMap | Converter | None = given
    return found
