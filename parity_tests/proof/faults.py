"""Faults as changes of one line of a right program, and where each has to be found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from jax_transformer.proof import Result
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
    "update": {name: (3, 4) for name in ("p", "g", "m", "root_v")},
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

    @property
    def line(self) -> str:
        """Returns a part of the line at which the two sides part."""
        return self.at or next(line.strip() for line in self.new.splitlines() if line.strip())

    def pair(self) -> Pair:
        """Returns the right program in the other framework, beside the faulty one."""
        faulty = Side(self.framework, getattr(self._module, self.program))
        other: Framework = "jax" if self.framework == "torch" else "torch"
        right = Side(other, getattr(_module(other), self.program))
        return Pair(self.name, PROGRAMS[self.program], *((right, faulty) if other == "jax" else (faulty, right)))

    def place(self, result: Result) -> tuple[str, str]:
        """Returns the operation and the text of the line at which the faulty side parts, as a result has it."""
        difference = result.difference
        found = difference and (difference.reference if self.framework == "torch" else difference.candidate)
        if not found:
            return "", ""
        operation, _, line = found.line.partition(", ")
        file, _, number = line.removeprefix("backward of ").rpartition(":")
        if file != self._file:
            return operation, found.line
        backward = "backward of " if line.startswith("backward of ") else ""
        return operation, backward + self._source.splitlines()[int(number) - 1].strip()

    def is_located(self, result: Result) -> bool:
        """Returns whether the place is the expected one."""
        operation, line = self.place(result)
        return operation == self.operation and self.line in line

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
def _module(framework: Framework) -> ModuleType:
    path = _path(framework)
    return _run(path.read_text(encoding="utf-8"), str(path))


def _run(source: str, file: str) -> ModuleType:
    module: Any = ModuleType(Path(file).stem)
    exec(compile(source, file, "exec"), module.__dict__)
    return module


def _path(framework: Framework) -> Path:
    return Path(__file__).parent / f"right_in_{framework}.py"
