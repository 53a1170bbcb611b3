"""What a state_dict comes wrapped in: a dict around it, and a prefix before all of its names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from jax_transformer.porting.files import as_arrays, is_state_dict, read_tensors
from jax_transformer.porting.rules import PortingError, Tensors


@dataclass(frozen=True)
class Checkpoint:
    """A state_dict, unwrapped."""

    tensors: Tensors
    prefix: str = ""
    """What stood before all names and is taken off, such as "module."."""
    inside: str = ""
    """The key under which the state_dict lay in the file's dict; "" where the file is one."""

    def described(self) -> str:
        """What was unwrapped, in words; empty if nothing was."""
        parts = [
            f"the state_dict lies under {self.inside!r}" if self.inside else "",
            f"all names begin with {self.prefix!r}" if self.prefix else "",
        ]
        return ", and ".join(filter(None, parts))


def open_checkpoint(source: str | os.PathLike[str] | Mapping[str, Any], recognised: Callable[[Collection[str]], bool]) -> Checkpoint:
    """The tensors of a file or a state_dict; of several in one file, those whose names are recognised.

    A prefix that all names share (nn.DataParallel's "module.", torch.compile's "_orig_mod.", the attribute of a wrapping module) is taken
    off if the names are recognised without it, and aren't with it.

    Raises:
      PortingError: see `read_tensors`; several such state_dicts in one file, or none.
    """

    def is_known(names: Collection[str]) -> bool:
        prefix = _common_prefix(names)
        return recognised(names) or recognised([name.removeprefix(prefix) for name in names])

    inside = ""
    content: Mapping[str, Any] = source if isinstance(source, Mapping) else read_tensors(source)
    if not is_state_dict(content):
        content, inside = _only_state_dict(content, "state_dict" if isinstance(source, Mapping) else str(source), is_known)
    tensors = as_arrays(content)
    prefix = _common_prefix(tensors)
    if prefix and not recognised(list(tensors)) and is_known(list(tensors)):
        return Checkpoint(_WithoutPrefix(tensors, prefix), prefix, inside)
    return Checkpoint(tensors, "", inside)


def _only_state_dict(content: Mapping[str, Any], what: str, is_known: Callable[[Collection[str]], bool]) -> tuple[Mapping[str, Any], str]:
    """The one state_dict among a dict's values, or the one of a known model, and its key."""
    found = {key: value for key, value in content.items() if isinstance(value, Mapping) and value and is_state_dict(value)}
    known = {key: value for key, value in found.items() if is_known(list(value))}
    if len(known or found) == 1:
        ((key, value),) = (known or found).items()
        return value, str(key)
    if found:
        names = ", ".join(map(repr, known or found))
        raise PortingError(f"{what}: expected one state_dict; received several, under {names}. Save the one that is meant by itself.")
    as_arrays(content, what)  # tells what is there instead
    raise PortingError(f"{what}: expected a state_dict; received none")


def _common_prefix(names: Collection[str]) -> str:
    """The modules' names that all names begin with, each with its dot."""
    modules = zip(*(name.split(".")[:-1] for name in names), strict=False)
    shared = takewhile(lambda column: len(set(column)) == 1, modules)
    return "".join(f"{column[0]}." for column in shared)


class _WithoutPrefix(Mapping[str, np.ndarray]):
    """The same tensors under shorter names."""

    def __init__(self, tensors: Tensors, prefix: str) -> None:
        self._tensors, self._prefix = tensors, prefix

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
