"""The parts of the measurement: each is one process that measures one thing, and ends alone if it fails."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Part:
    """Describes a part."""

    name: str
    """STAGE.WHAT; the stage is a module of `stages`, and what a function of it."""
    limit: float
    """The most seconds that it may run, without those in which it waits for others."""
    least: bool = False
    """Whether it belongs to the shortest set, which the tests run with --small."""
    repeats: bool = False
    """Whether another part runs the same code on another model, so that --small leaves it out."""

    @property
    def stage(self) -> str:
        return self.name.partition(".")[0]


PARTS = (
    Part("machine.ceilings", 60, least=True),
    Part("train.jax_big", 240, least=True),
    Part("train.jax_base", 240, repeats=True),
    Part("train.torch_big", 240, repeats=True),
    Part("train.torch_base", 240),
    Part("parity.marian", 150, repeats=True),
    Part("decode.jax", 240),
    Part("decode.transformers", 150),
    Part("attention.jax", 200),
    Part("parity.paper_base", 200, repeats=True),
    Part("attention.torch", 120, least=True),
    Part("train.jax_t5_large", 200),
    Part("decode.transformers_compiled", 200),
    Part("parity.t5", 150),
    Part("train.jax_finetuning", 150),
    Part("train.trainer", 150),
    Part("train.without_triton", 150, repeats=True),
    Part("parity.demo", 150),
    Part("resume.seeds", 200, repeats=True),
    Part("resume.kill", 200),
    Part("parity.command", 200),
    Part("decode.ctranslate2", 100),
    Part("quality.tiny", 300),
    Part("quality.larger", 300, repeats=True),
)
"""In the order in which they begin, and in which those that wait may measure: the most valuable first."""
STAGES = tuple(dict.fromkeys(part.stage for part in PARTS))
BY_NAME = {part.name: part for part in PARTS}


@dataclass
class Context:
    """Connects the process of a part with the one that started it."""

    out: Path
    """The folder of results."""
    small: bool
    """Whether to measure tiny models, on any machine."""

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Waits for its turn, and has the machine for itself until the end: all other parts are stopped meanwhile.

        What is measured must be loaded and compiled before.
        """
        self._send("ready")
        if not sys.stdin.readline():  # nobody is left to take the results
            os._exit(1)
        try:
            yield
        finally:
            self._send("measured")

    def row(self, **figures: Any) -> None:
        """Reports a row of results, which is written at once."""
        self._send("row", **figures)

    def failed(self, what: str, error: BaseException) -> None:
        """Reports that one thing of the part couldn't be measured; the part goes on."""
        self.row(what=what, error=f"{type(error).__name__}: {str(error).strip()[:300]}")

    def _send(self, kind: str, **content: Any) -> None:
        print(f"MESSAGE {json.dumps({'kind': kind, **content})}", flush=True)


def run_part(name: str, context: Context) -> None:
    """Runs a part in this process."""
    stage, _, function = name.partition(".")
    getattr(import_module(f"stages.{stage}"), function)(context)
