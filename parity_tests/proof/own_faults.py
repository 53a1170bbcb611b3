"""Faults of this library, as changes of one place in its source, and the pair of programs that shows each."""

from __future__ import annotations

import importlib
import linecache
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jax_transformer.proof import Result, Task
from proof.changed_library import ROOT, changed_library
from proof.own_models import OwnPair
from proof.own_pairs import PAIRS


@dataclass(frozen=True)
class OwnFault:
    """The library with a changed line, all of whose programs have the fault that call it."""

    name: str
    path: str
    """The changed file."""
    old: str
    """A part of it that occurs once."""
    new: str
    pair: str
    """The name of a pair in own_pairs that shows the fault."""
    operation: str
    """JAX's operation at which the two sides part."""
    at: str = ""
    """A part of the line at which they part; "": the changed one."""
    model: str = "post-norm"
    side: Literal["candidate", "reference"] = "candidate"
    """The side whose place is expected."""

    def task(self) -> Task:
        """Lowers both programs of the pair in the changed library."""
        source = (ROOT / self.path).read_text(encoding="utf-8")
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: expected {self.old!r} once; found it {source.count(self.old)} times")
        with changed_library(self.path, source.replace(self.old, self.new)):
            pairs = importlib.import_module("proof.own_pairs").PAIRS
            return self._chosen(pairs).task()

    def weights(self) -> dict[str, np.ndarray]:
        return self._chosen(PAIRS).weights()

    def _chosen(self, pairs: tuple[OwnPair, ...]) -> Any:
        (found,) = (each for each in pairs if (each.name, each.model) == (self.pair, self.model))
        return found

    def place(self, result: Result) -> tuple[str, str]:
        """Returns the operation and the text of the line at which a side parts."""
        place = None if result.difference is None else getattr(result.difference, self.side)
        if place is None:
            return "", ""
        operation, _, line = place.line.partition(", ")
        file, _, number = line.rpartition(":")
        return operation, linecache.getline(file, int(number)).strip()

    def is_located(self, result: Result) -> bool:
        operation, line = self.place(result)
        expected = self.at or next(line.strip() for line in self.new.splitlines() if line.strip())
        return operation == self.operation and expected in line


CACHED = "steps with a cache, and teacher forcing"
FAULTS = (
    OwnFault(
        "the cache is written one token late", "jax_transformer/model/steps.py",
        "first = state.position * state.num_beams", "first = (state.position + 1) * state.num_beams",
        CACHED, "select_n",
    ),
)  # fmt: skip
