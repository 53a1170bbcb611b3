"""Holds a frozen reference, and keeps it in one file: a `.safetensors` file whose header is JSON.

The file holds numbers, names and texts alone. Reading it imports nothing and runs nothing that it names; the program in
it is data for the proof's own operations (`proof/tape_data.py`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jax_transformer.comparison.capture import OWN
from jax_transformer.comparison.gates.arrays import Arrays, ParityError
from jax_transformer.proof.programs import Program
from jax_transformer.proof.tape_data import TapeData, from_data
from jax_transformer.runtime.files import atomic_write
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.memory import check_fits
from jax_transformer.storage.safetensors_writer import SAFETENSORS_DTYPES, save_safetensors
from jax_transformer.storage.tensor_files import SETTINGS, SafetensorsFile
from jax_transformer.storage.tensors import PortingError

SUFFIX = ".frozen"
FORMAT = "jax-transformer frozen reference"
SCHEMA = 1
"""The version of the header; raised when a field changes its meaning or is removed."""
STEPS = 3
"""The optimizer's steps that are kept."""
SECTIONS = ("weights", "inputs", "float64", "own", "gradients", *(f"step {step}" for step in range(1, STEPS + 1)))
"""Named arrays of a file, each section in order."""
PROGRAM = "program"
"""The section of the arrays of programs."""


@dataclass(frozen=True)
class FrozenProgram:
    """Holds a program as data, and the tensors that it takes as constants."""

    stage: str
    """"forward" or "gradients"."""
    constants: tuple[str, ...]
    data: TapeData = field(repr=False)

    @cached_property
    def program(self) -> Program:
        """Builds the program. Raises ValueError if the data aren't a program's."""
        return from_data(self.data)


@dataclass(frozen=True)
class Frozen:
    """Holds what a program computes: weights, inputs, activations, gradients and steps, and the program as data.

    `freeze` makes one; `compare`, `prove` and `assert_same` take it, or its file, as a side.

    Example:
      >>> import numpy as np
      >>> import jax_transformer as jt
      >>> def double(params, inputs):
      ...     return inputs["x"] @ params["kernel"]
      >>> side = jt.parity.Side(double, params={"kernel": np.ones((3, 2), np.float32)})
      >>> made = jt.freeze(side, {"x": np.ones((1, 3), np.float32)}, "double.frozen")
      >>> jt.Frozen.read("double.frozen").output
      array([[3., 3.]], dtype=float32)
    """

    name: str
    framework: str
    """"torch" or "jax"."""
    dtype: str
    """The floating-point type in which it runs."""
    weights: Arrays
    """By all of their names; bfloat16 as float32."""
    inputs: Arrays
    float64: Arrays
    """Activations in execution order, computed in float64 from the same weights; the last is the output. Empty if the
    program can't run in float64."""
    own: Arrays
    """The same in the program's own type; bfloat16 as float32."""
    trained: tuple[str, ...] = ()
    """Weights that have gradients, each once."""
    tied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Weights → other names of the same tensor."""
    gradients: Arrays = field(default_factory=dict)
    """Those of the loss in float64; without a loss, of the sum of the output times fixed random numbers."""
    steps: tuple[Arrays, ...] = ()
    """The trained weights after each step, in float64."""
    losses: tuple[float, ...] = ()
    """The loss, and those before the second and third step; without a loss, the weighted sum."""
    has_loss: bool = False
    rounds: bool = False
    """Whether it computes in a narrower type inside though its weights are float64, such as tables in float32."""
    optimizer: Mapping[str, Any] | None = None
    """The optimizer of the steps, by name, and its numbers. None: no steps were asked for."""
    moves: Mapping[str, Mapping[str, tuple[tuple[float, float], ...]]] = field(default_factory=dict)
    """How far rounding alone moves results: for "own", "float64" and "gradients", each array's distances from itself,
    relative RMS and largest, when the weights change in their last bit, one for each draw. The bit is that of float32
    in a program that `rounds`."""
    programs: tuple[FrozenProgram, ...] = ()
    unlowered: str = ""
    """Why there is no program."""
    seed: int | None = None
    """The seed set before each run; None: the program drew no random numbers."""
    source: tuple[Mapping[str, Any], ...] = ()
    """Classes and functions that were run: file, lines and SHA-256 of their text."""
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What a run showed, such as a type that can't run."""
    path: str | None = field(default=None, compare=False)
    sha256: str = field(default="", compare=False)

    @property
    def output(self) -> np.ndarray:
        """Returns the output in the program's own type."""
        return self.own[OWN]

    def program(self, stage: str, constants: tuple[str, ...] = ()) -> FrozenProgram | None:
        """Returns the program of a stage that takes these tensors as constants; None if there is none."""
        return next((one for one in self.programs if (one.stage, one.constants) == (stage, constants)), None)

    def save(self, path: str | os.PathLike[str]) -> str:
        """Writes the file: under a temporary name first, which then replaces `path`. Returns its SHA-256.

        Raises:
          ParityError: there is no such directory; an array has a type that files don't hold.
        """
        target = Path(path)
        if not target.parent.is_dir():
            raise ParityError(f"{target}: there is no directory {target.parent}")
        arrays = {f"{section}/{name}": array for section in SECTIONS for name, array in self._section(section).items()}
        programs = []
        for one in self.programs:
            first = sum(name.startswith(f"{PROGRAM}/") for name in arrays)
            arrays |= {f"{PROGRAM}/{first + number}": array for number, array in enumerate(one.data.arrays)}
            programs.append([one.stage, list(one.constants), first, len(one.data.arrays), one.data.content])
        odd = [name for name, array in arrays.items() if np.asarray(array).dtype.name not in SAFETENSORS_DTYPES]
        if odd:
            raise ParityError(f"{target}: {odd[0]} has the type {arrays[odd[0]].dtype}, which the file can't hold")
        held = {name: np.asarray(array) for name, array in arrays.items()}
        body = {
            **{name: getattr(self, name) for name in _TEXTS},
            "tied": {name: list(others) for name, others in self.tied.items()},
            "order": {section: list(self._section(section)) for section in SECTIONS},
            "programs": programs,
        }
        header = {"format": FORMAT, "schema": SCHEMA, "sha256": _digest(body, held), "body": body}
        with atomic_write(target, durable=True) as temporary:
            return save_safetensors(held, temporary, {SETTINGS: json.dumps(header, ensure_ascii=False)})

    def _section(self, name: str) -> Arrays:
        if name.startswith("step "):
            number = int(name.removeprefix("step "))
            return self.steps[number - 1] if number <= len(self.steps) else {}
        found: Arrays = getattr(self, name)
        return found

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Frozen:
        """Reads a file.

        Raises:
          ParityError: there is no such file; it is damaged, of another kind, or of another version.
        """
        where = os.fspath(path)
        if not Path(path).is_file():
            raise ParityError(f"{where}: expected a frozen reference; there is no such file")
        check_fits(os.path.getsize(path), where, ParityError)
        try:
            file = SafetensorsFile(Path(path))
            header = parse_json(file.settings or "null")
        except (PortingError, ValueError) as error:
            raise ParityError(
                f"{where}: expected a frozen reference; it is damaged or of another kind: {error}"
            ) from None
        if not (isinstance(header, dict) and header.get("format") == FORMAT):
            raise ParityError(
                f"{where}: expected a frozen reference, as jax-transformer freeze writes them; received a safetensors "
                "file of another kind"
            )
        if header.get("schema") != SCHEMA:
            raise ParityError(
                f"{where}: expected schema {SCHEMA} of a frozen reference; received {header.get('schema')}, of another "
                "version of jax-transformer: freeze the program again"
            )
        try:
            arrays = {name: np.asarray(file[name]) for name in file}
            body = header["body"]
            is_whole = header["sha256"] == _digest(body, arrays)
        except (PortingError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ParityError(f"{where}: expected a frozen reference; it is damaged ({error})") from None
        if not is_whole:
            raise ParityError(f"{where}: expected a frozen reference; it is damaged: its digest is another one")
        try:
            return cls(**_fields(body, arrays), path=where, sha256=header["sha256"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise ParityError(f"{where}: expected the fields of a frozen reference ({problem})") from None

    def lines(self) -> Iterator[str]:
        """Yields what the file holds, as text.

        Example:
          >>> import numpy as np
          >>> import jax_transformer as jt
          >>> side = jt.parity.Side(lambda p, i: i["x"] * p["w"], params={"w": np.ones(2, np.float32)})
          >>> print(next(jt.freeze(side, {"x": np.ones(2, np.float32)}).lines()))
          frozen reference of <lambda> (jax, float32)
        """
        yield f"frozen reference of {self.name} ({self.framework}, {self.dtype})"
        count = sum(math.prod(array.shape) for name, array in self.weights.items() if not self._is_again(name))
        yield f"  weights: {len(self.weights)} names, {count:,} numbers, {len(self.trained)} trained"
        if self.tied:
            yield f"  tied: {'; '.join(' = '.join((name, *others)) for name, others in self.tied.items())}"
        yield f"  inputs: {', '.join(f'{name} {list(one.shape)} {one.dtype}' for name, one in self.inputs.items())}"
        yield f"  output: {list(self.output.shape)} {self.dtype}"
        of64 = "" if self.float64 else ", not in float64"
        yield f"  activations: {len(self.own) - 1}{of64}"
        kind = "the loss" if self.has_loss else "the output times fixed random numbers"
        yield f"  gradients: {len(self.gradients)}, of {kind}" if self.gradients else "  gradients: none"
        if self.optimizer is not None:
            yield f"  steps: {len(self.steps)} of {self.optimizer}"
        stages = ", ".join(dict.fromkeys(one.stage for one in self.programs))
        missing = f"; none of {self.unlowered}" if stages and self.unlowered else ""
        yield f"  program as data: {stages}{missing}" if stages else f"  program as data: none: {self.unlowered}"
        yield f"  seed: {self.seed}" if self.seed is not None else "  seed: none; it draws no random numbers"
        for note in self.notes:
            yield f"  note: {note}"
        yield f"  versions: {', '.join(f'{name} {version}' for name, version in self.versions.items())}"
        for one in self.source:
            yield f"  source: {one['name']} ({one['file']}:{one['lines'][0]}-{one['lines'][1]}) {one['sha256'][:12]}"
        yield f"  sha256 of the content: {self.sha256}" if self.sha256 else "  not written"

    def _is_again(self, name: str) -> bool:
        return any(name in others for others in self.tied.values())


_TEXTS = (
    *("name", "framework", "dtype", "trained", "losses", "has_loss", "rounds", "optimizer", "moves"),
    *("unlowered", "seed"),
    *("source", "versions", "notes"),
)
"""Fields that are JSON themselves."""


def _digest(body: Mapping[str, Any], arrays: Arrays) -> str:
    """Returns the SHA-256 of the header's body, and of names, types, shapes and bytes of all arrays."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(json.dumps([name, array.dtype.name, list(arrays[name].shape)]).encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _fields(body: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Returns the fields of a file's body, each checked. Raises ValueError for one of another kind."""
    for name, (kind, is_kind) in _KINDS.items():
        if not is_kind(body[name]):
            raise ValueError(f"{name}: expected {kind}")
    sections: dict[str, dict[str, np.ndarray]] = {
        section: {name: arrays[f"{section}/{name}"] for name in body["order"][section]} for section in SECTIONS
    }
    if OWN not in sections["own"]:
        raise ValueError("own: expected an output")
    programs = tuple(
        FrozenProgram(
            str(stage),
            tuple(map(str, constants)),
            TapeData(content, tuple(arrays[f"{PROGRAM}/{first + number}"] for number in range(int(count)))),
        )
        for stage, constants, first, count, content in body["programs"]
    )
    steps = tuple(each for name, each in sections.items() if name.startswith("step ") and each)
    named = {name: sections[name] for name in ("weights", "inputs", "float64", "own", "gradients")}
    return {
        **{name: body[name] for name in _TEXTS},
        **named,
        "trained": tuple(body["trained"]),
        "losses": tuple(map(float, body["losses"])),
        "moves": {
            stage: {name: tuple((float(rms), float(most)) for rms, most in several) for name, several in held.items()}
            for stage, held in body["moves"].items()
        },
        "source": tuple({**one, "lines": tuple(map(int, one["lines"]))} for one in body["source"]),
        "notes": tuple(body["notes"]),
        "tied": {name: tuple(others) for name, others in body["tied"].items()},
        "steps": steps,
        "programs": programs,
    }


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **{name: ("a text", lambda value: isinstance(value, str)) for name in ("name", "framework", "dtype", "unlowered")},
    **dict.fromkeys(("trained", "notes"), ("a list of names", _is_names)),
    "losses": ("a list of numbers", lambda value: all(isinstance(each, float | int) for each in value)),
    **dict.fromkeys(("has_loss", "rounds"), ("true or false", lambda value: isinstance(value, bool))),
    "optimizer": ("an optimizer", lambda value: value is None or isinstance(value, dict)),
    "seed": ("a whole number", lambda value: value is None or type(value) is int),
    "versions": ("texts by name", _is_texts),
    "source": ("a list of classes", lambda value: isinstance(value, list) and all(map(_is_source, value))),
    "tied": ("names by name", lambda value: isinstance(value, dict) and all(map(_is_names, value.values()))),
    "order": ("names by section", lambda value: isinstance(value, dict) and all(map(_is_names, value.values()))),
}


def _is_source(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value[name], str) for name in ("name", "file", "sha256"))
