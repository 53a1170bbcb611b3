"""The certificate of a proof: what was proven of which programs, by which axioms, with which bound on an error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jax_transformer.proof.certificate_text import VERIFY, certificate_lines, certificate_summary
from jax_transformer.proof.programs import Program
from jax_transformer.proof.proving import Difference, Result, Task
from jax_transformer.proof.rechecking import changes, shown
from jax_transformer.proof.witness import Witness
from jax_transformer.runtime.extras import require
from jax_transformer.runtime.json_schema import first_problem
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.limits import CERTIFICATE_ELEMENTS

SCHEMA = 2
"""The version of the JSON; raised when a field changes its meaning or is removed."""
Verdict = Literal["proven", "refuted", "unknown"]
Kind = Literal["models", "programs"]
FLOATS = "fc"
"""Kinds of dtypes for all of whose values a proof holds."""
MOST_AXES = 32
"""The most axes of an input."""
PROVEN, LOCATED, UNKNOWN, UNLOCATED = 0, 1, 3, 4
"""Exit codes. (2 is a user's mistake.)"""


@dataclass(frozen=True)
class StageProof:
    """Holds what is known of one stage: forward, loss, gradients, a number of optimizer steps."""

    name: str
    verdict: Verdict
    equal: tuple[str, ...] = ()
    """The arrays that are the same function of the weights."""
    different: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    """The arrays that one side alone shows: they aren't compared."""
    reason: str = ""
    """Why nothing is known."""


@dataclass(frozen=True)
class SideProgram:
    """Describes a program that was compared."""

    sha256: str
    operations: int
    lowered: Mapping[str, int]
    """The framework's operations → how often they occur."""
    inputs: Mapping[str, tuple[int, ...]]
    """Weights and other inputs by name → shapes."""
    narrowing: tuple[str, ...]
    """Casts to a narrower float type. The proof holds for the program without them."""

    @classmethod
    def of(cls, program: Program) -> SideProgram:
        return cls(
            program.sha256(),
            len(program.operations),
            dict(sorted(program.read.items())),
            {name: tuple(shape) for name, shape in program.inputs.items()},
            program.narrowing,
        )


@dataclass(frozen=True)
class TaskProof:
    """Holds how one pair of programs was compared; several stages may be outputs of one pair."""

    stages: tuple[str, ...]
    candidate: SideProgram
    reference: SideProgram
    points: tuple[Mapping[str, int], ...]
    """The prime and the seed of each point, and after how many draws no divisor was zero."""
    degree: int
    values: int
    log2_error: float
    """The logarithm of a bound on the probability that a proof of these stages is wrong."""
    axioms: Mapping[str, tuple[str, ...]]
    """The axioms that were used → the constants or lines on which."""

    @classmethod
    def of(cls, stages: tuple[str, ...], task: Task, result: Result) -> TaskProof:
        bounds = result.bounds
        return cls(
            stages,
            SideProgram.of(task.candidate),
            SideProgram.of(task.reference),
            tuple(asdict(point) for point in result.points),
            0 if bounds is None else bounds.degree,
            0 if bounds is None else bounds.values,
            result.log2_error,
            result.axioms,
        )


@dataclass(frozen=True)
class Certificate:
    """Holds the verdict on two programs, and all that is needed to compare them again.

    `print(certificate)` shows it as text.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parity import Certificate, prove
      >>> certificate = prove(lambda p, i: 2 * p["w"] + 0 * i["x"], lambda p, i: p["w"] + p["w"] + 0 * i["x"],
      ...                     inputs={"x": np.ones(3)}, weights={"w": np.ones(3)}, stages=["forward"])
      >>> again = Certificate.from_json(certificate.to_json())
      >>> again.verdict, again.exit_code
      ('proven', 0)
    """

    candidate: str
    reference: str
    stages: tuple[StageProof, ...]
    tasks: tuple[TaskProof, ...] = ()
    difference: Mapping[str, Any] | None = None
    """The first output that differs, the operations at which the sides part, how much it shows in float64 on the
    model's own weights, and "witness": what came of the search for weights on which it shows."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """The inputs for which the proof holds: dtypes, shapes, and the values of ids and masks as lists (None: of floats,
    for all of which it holds)."""
    kind: Kind = "models"
    """"programs": two of any programs, on inputs that were given."""
    allowed: tuple[str, ...] = ()
    """Differences that were allowed: the ids have no place that shows them."""
    conditions: tuple[str, ...] = ()
    """For which weights alone the verdict holds, one text for each condition: those that one program has apart, and the
    other ties."""
    seed: int = 0
    command: tuple[str, ...] = ()
    """The arguments of the command that made it; () if none did. They are for readers: nothing runs them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    schema: int = SCHEMA
    witness: Witness | None = field(default=None, repr=False, compare=False)
    """Weights on which a refutation shows in float64, where there are any. They are no part of the JSON."""

    @property
    def verdict(self) -> Verdict:
        """Returns "proven" if every stage is, and there is at least one."""
        verdicts = {stage.verdict for stage in self.stages}
        if "refuted" in verdicts:
            return "refuted"
        return "proven" if verdicts == {"proven"} else "unknown"

    @property
    def exit_code(self) -> int:
        if self.verdict == "refuted":
            located = self.difference is not None and (self.difference["candidate"] or self.difference["reference"])
            return LOCATED if located else UNLOCATED
        return PROVEN if self.verdict == "proven" else UNKNOWN

    @property
    def log2_error(self) -> float:
        """Returns the logarithm of the bound for all stages together; 0 unless all are proven."""
        total = sum(2.0**task.log2_error for task in self.tasks)
        return min(0.0, math.log2(total)) if total > 0 else 0.0

    @property
    def narrowing(self) -> tuple[str, ...]:
        """Returns the casts that the proof leaves out, of both sides."""
        casts = (cast for task in self.tasks for side in (task.candidate, task.reference) for cast in side.narrowing)
        return tuple(dict.fromkeys(casts))

    @property
    def axioms(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, dict[str, None]] = {}
        for task in self.tasks:
            for name, where in task.axioms.items():
                found.setdefault(name, {}).update(dict.fromkeys(where))
        return {name: tuple(where) for name, where in found.items()}

    def to_json(self) -> str:
        held = asdict(replace(self, witness=None))
        del held["witness"]
        whole = {"verdict": self.verdict, "verify": VERIFY, **held}
        return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, path: str = "certificate") -> Certificate:
        """Reads a certificate: what it claims, which `changes` compares with a proof made again.

        Raises:
          ValueError: the text is no certificate, is of another schema, or contradicts itself.
        """
        held: Any = None
        try:
            held = parse_json(text)
            problem = _problem(held)
        except ValueError as error:
            problem = f"received text that isn't JSON ({error})"
        except RecursionError:
            problem = "it is nested too deeply"
        if problem is not None:
            problem = "".join(each if each.isprintable() else "\ufffd" for each in problem)
            raise ValueError(f"{path}: expected a certificate that jax-transformer parity --prove wrote; {problem}")
        told = held.pop("verdict")
        del held["verify"]
        stages = tuple(StageProof(**_tuples(stage)) for stage in held.pop("stages"))
        tasks = tuple(_task(task) for task in held.pop("tasks"))
        read = cls(**{**_tuples(held), "stages": stages, "tasks": tasks})
        if told != read.verdict:
            raise ValueError(f"{path}: verdict: expected {read.verdict}, as its stages say; received {told}")
        return read

    def changes(self, again: Certificate) -> list[str]:
        """Returns what differs from a certificate that was made again of the same programs, a line each; [] if this one
        holds.

        All is compared but versions, the command, folders of source files, and what was measured in floats.

        Example:
          >>> import numpy as np
          >>> from jax_transformer.parity import Certificate, prove
          >>> programs = lambda p, i: 2 * p["w"] * i["x"], lambda p, i: (p["w"] + p["w"]) * i["x"]
          >>> arrays = {"inputs": {"x": np.ones(3)}, "weights": {"w": np.ones(3)}}
          >>> text = prove(*programs, **arrays).to_json()
          >>> Certificate.from_json(text).changes(prove(*programs, **arrays))
          []
        """
        return changes(self, again)

    def arrays(self, path: str = "certificate") -> dict[str, np.ndarray]:
        """Returns inputs as arrays: ids and masks as they are, floats as ones.

        Raises:
          ValueError: they have too many elements, or values that aren't of their shape and dtype.
        """
        return {name: _array(held, f"{path}: inputs: {shown(name)}") for name, held in self._limited(path)}

    def _limited(self, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        total = 0
        for name, held in self.inputs.items():
            total += math.prod(held["shape"])
            CERTIFICATE_ELEMENTS.check(total, f"{path}: inputs: {shown(name)}")
            yield name, held

    def lines(self, *, verbose: bool = False) -> Iterator[str]:
        """Yields the certificate as text.

        Args:
          verbose: with the names of all arrays, the digests of the programs, and versions.
        """
        return certificate_lines(self, verbose)

    def summary(self) -> list[str]:
        """Returns the verdict in a line, and below it where a difference begins, for the report of a comparison."""
        return certificate_summary(self)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def difference_of(found: Difference, witness: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns a difference as a certificate holds it.

    Args:
      witness: what came of the search for weights on which it shows; None: there was no search.
    """
    held = json.loads(json.dumps({**asdict(found), "witness": witness}))
    for side in ("candidate", "reference"):
        if held[side] is not None:
            held[side]["constants"] = [one if math.isfinite(one) else str(one) for one in held[side]["constants"]]
    digits = held["digits"]
    return {**held, "digits": digits if digits is not None and math.isfinite(digits) else None}


def described(arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Returns inputs as a certificate holds them."""
    return {
        name: {
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "values": None if array.dtype.kind in FLOATS else array.tolist(),
        }
        for name, array in arrays.items()
    }


def _array(held: Mapping[str, Any], where: str) -> np.ndarray:
    """Returns one input. Raises ValueError for values that aren't of its shape and dtype."""
    shape, dtype, values = tuple(held["shape"]), np.dtype(held["dtype"]), held["values"]
    if len(shape) > MOST_AXES:
        raise ValueError(f"{where}: expected at most {MOST_AXES} axes; received {len(shape)}")
    if (dtype.kind in FLOATS) != (values is None):
        raise ValueError(f"{where}: expected values of integers and booleans alone; received {dtype} and others")
    if values is None:
        return np.ones(shape, dtype)
    try:
        array = np.array(values, object if math.prod(shape) else None)
        array = array.reshape(shape) if not array.size and not math.prod(shape) else array
        found = array.astype(dtype)
    except (ValueError, TypeError, OverflowError):
        array = found = np.empty(0)
    of_dtype = all(_is_bool(each) == (dtype.kind == "b") for each in array.flat)
    if found.shape != shape or not of_dtype or not (found == array).all():
        raise ValueError(f"{where}: expected values of {dtype} in the shape {list(shape)}; received others")
    return found


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _problem(held: Any) -> str | None:
    """Returns what is wrong with a certificate's JSON; None if it follows the schema."""
    version = held.get("schema") if isinstance(held, dict) else None
    if type(version) is int and version != SCHEMA:
        return (
            f"schema: expected {SCHEMA}; received {version}, which another version of jax-transformer writes: prove "
            "the programs again, or install that version"
        )
    require("jsonschema", "certificate")
    return first_problem(held, _schema())


@cache
def _schema() -> dict[str, Any]:
    return parse_json(Path(__file__).with_name("certificate.schema.json").read_text(encoding="utf-8"))


def _task(held: dict[str, Any]) -> TaskProof:
    sides: dict[str, Any] = {}
    for side in ("candidate", "reference"):
        one = held.pop(side)
        inputs = {name: tuple(shape) for name, shape in one.pop("inputs").items()}
        sides[side] = SideProgram(**{**one, "inputs": inputs, "narrowing": tuple(one["narrowing"])})
    axioms = {name: tuple(where) for name, where in held.pop("axioms").items()}
    return TaskProof(**_tuples(held), axioms=axioms, **sides)


def _tuples(held: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in held.items()}
