"""Faults as changes of one line of a right program, and where each has to be found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

from jax_transformer.proof import Program, Result, Task
from jax_transformer.proof.locating import Place
from proof.pairs import Pair, Shapes, Side

B, S, T, N, H, D, F, SOURCE_VOCAB, TARGET_VOCAB = 2, 4, 3, 2, 3, 6, 5, 9, 8
"""The sizes of `right_in_torch` and `right_in_jax`."""


def _norm(name: str) -> Shapes:
    return {f"{name}.scale": (D,), f"{name}.bias": (D,)}


def _attention(name: str) -> Shapes:
    roles = ("query", "key", "value", "output")
    return {f"{name}.{role}": (D, D) for role in roles} | {f"{name}.{role}_bias": (D,) for role in roles}


def _feed_forward(name: str) -> Shapes:
    kernels = {f"{name}.hidden": (F, D), f"{name}.output": (D, F)}
    return {**kernels, f"{name}.hidden_bias": (F,), f"{name}.output_bias": (D,)}


ENCODER: Shapes = {
    "source": (SOURCE_VOCAB, D),
    "positions": (S + 1, D),
    **_norm("encoder.norm1"),
    **_attention("encoder.self"),
    **_norm("encoder.norm2"),
    **_feed_forward("encoder.feed_forward"),
    **_norm("encoder.norm3"),
}
DECODER: Shapes = {
    "target": (TARGET_VOCAB, D),
    **_norm("decoder.norm1"),
    **_attention("decoder.self"),
    **_norm("decoder.norm2"),
    **_attention("decoder.cross"),
    **_norm("decoder.norm3"),
    **_feed_forward("decoder.feed_forward"),
    **_norm("decoder.norm4"),
    "head_bias": (TARGET_VOCAB,),
}
PROGRAMS: Mapping[str, Shapes] = {
    "norm_alone": {"x": (B, T, D), **_norm("norm")},
    "attention_alone": {"x": (B, T, D), "y": (B, S, D), **_attention("attention")},
    "feed_forward_alone": {"x": (B, T, D), **_feed_forward("feed_forward")},
    "encoder_alone": ENCODER,
    "model": {**ENCODER, **DECODER},
    "loss": {"logits": (B, T, TARGET_VOCAB)},
    "gradients": {**ENCODER, "target": (TARGET_VOCAB, D), "head_bias": (TARGET_VOCAB,)},
    "update": dict.fromkeys(("p", "g", "m", "root_v"), (3, 4)),
    "decoding": {"x": (B, T, D), "query": (D, D), "key": (D, D), "value": (D, D)},
    "positions": {"x": (B, T, D)},
}
"""The programs' names → the shapes of their weights."""
Framework = Literal["jax", "torch"]


@dataclass(frozen=True)
class Fault:
    """A program that differs from a right one in a line."""

    name: str
    program: str
    """One of PROGRAMS."""
    old: str
    """A part of the source that occurs once."""
    new: str
    operation: str
    """The framework's operation at which the two sides part."""
    at: str = ""
    """A part of the line at which they part; "": the changed one."""
    framework: Framework = "torch"
    """The faulty side's."""
    missing: str = ""
    """A part of the right side's line at which the two part, where the faulty one leaves something out."""

    @property
    def line(self) -> str:
        """Returns a part of the line at which the two sides part."""
        return self.at or next(line.strip() for line in self.new.splitlines() if line.strip())

    def task(self) -> Task:
        """Lowers the faulty program, and the right one in the other framework."""
        weights = self.pair().weights()
        faulty = Side(self.framework, getattr(self._module, self.program)).lower(weights)
        right = _right(self.program, _other(self.framework))
        both = (right, faulty) if self.framework == "torch" else (faulty, right)
        return Task(*both, self.pair().draw)

    def pair(self) -> Pair:
        """Returns the right programs, whose weights the faulty one reads, too."""
        return original(self.program)

    def weights(self) -> dict[str, np.ndarray]:
        """Returns weights on which a difference is measured in float64."""
        return self.pair().weights()

    def place(self, result: Result) -> tuple[str, str]:
        """Returns the operation and the text of the line at which the faulty side parts, as a result has it."""
        difference = result.difference
        found = difference and (difference.reference if self.framework == "torch" else difference.candidate)
        return _read(found, self._file, self._source)

    def other_place(self, result: Result) -> tuple[str, str]:
        """Returns the operation and the text of the line at which the right side parts."""
        difference, path = result.difference, _path(_other(self.framework))
        found = difference and (difference.candidate if self.framework == "torch" else difference.reference)
        return _read(found, str(path), path.read_text(encoding="utf-8"))

    def is_located(self, result: Result) -> bool:
        """Returns whether the places are the expected ones."""
        operation, line = self.place(result)
        return operation == self.operation and self.line in line and self.missing in self.other_place(result)[1]

    @property
    def _file(self) -> str:
        return f"{_path(self.framework)} with a fault"

    @property
    def _source(self) -> str:
        source = _path(self.framework).read_text(encoding="utf-8")
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name}: expected {self.old!r} once; found it {source.count(self.old)} times")
        return source.replace(self.old, self.new)

    @property
    def _module(self) -> ModuleType:
        return _run(self._source, self._file)


def original(program: str) -> Pair:
    """Returns the right programs of both frameworks."""
    sides = (Side("jax", getattr(_module("jax"), program)), Side("torch", getattr(_module("torch"), program)))
    return Pair(program, PROGRAMS[program], *sides)


@cache
def _right(program: str, framework: Framework) -> Program:
    """Lowers a right program once for all faults."""
    return Side(framework, getattr(_module(framework), program)).lower(original(program).weights())


def _other(framework: Framework) -> Framework:
    return "jax" if framework == "torch" else "torch"


def _read(place: Place | None, file: str, source: str) -> tuple[str, str]:
    """Returns the framework's operation at a place, and the text of its line."""
    if place is None:
        return "", ""
    operation, _, line = place.line.partition(", ")
    is_backward = line.startswith("backward of ")
    found, _, number = line.removeprefix("backward of ").rpartition(":")
    if found != file:
        return operation, line
    text = source.splitlines()[int(number) - 1].strip()
    return operation, f"backward of {text}" if is_backward else text


@cache
def _module(framework: Framework) -> ModuleType:
    path = _path(framework)
    return _run(path.read_text(encoding="utf-8"), str(path))


def _run(source: str, file: str) -> ModuleType:
    module: Any = ModuleType(Path(file).stem)
    exec(compile(source, file, "exec"), module.__dict__)
    return module


def _path(framework: Framework) -> Path:
    return Path(__file__).parent / f"right_in_{framework}.py"
