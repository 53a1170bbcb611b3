"""The certificate of a proof: what was proven of which programs, by which axioms, with which bound on an error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jax_transformer.proof.certificate_text import certificate_lines, certificate_summary
from jax_transformer.proof.programs import Program
from jax_transformer.proof.proving import Difference, Result, Task
from jax_transformer.proof.witness import Witness
from jax_transformer.runtime.json_schema import first_problem
from jax_transformer.runtime.json_text import parse_json

SCHEMA = 1
"""The version of the JSON; raised when a field changes its meaning or is removed."""
Verdict = Literal["proven", "refuted", "unknown"]
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
    """The ids and masks for which the proof holds, as lists."""
    allowed: tuple[str, ...] = ()
    """Differences that were allowed: the ids have no place that shows them."""
    seed: int = 0
    command: tuple[str, ...] = ()
    """The arguments of the command that made it; () if none did."""
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
        return min(0.0, math.log2(sum(2.0**task.log2_error for task in self.tasks))) if self.tasks else 0.0

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
        return json.dumps({"verdict": self.verdict, **held}, indent=2, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, path: str = "certificate") -> Certificate:
        """Reads a certificate. Raises ValueError for a text that is none, or of another schema."""
        held: Any = None
        try:
            held = parse_json(text)
            problem = _problem(held)
        except ValueError as error:
            problem = f"received text that isn't JSON ({error})"
        except RecursionError:
            problem = "it is nested too deeply"
        if problem is not None:
            raise ValueError(f"{path}: expected a certificate that jax-transformer parity --prove wrote; {problem}")
        told = held.pop("verdict")
        stages = tuple(StageProof(**_tuples(stage)) for stage in held.pop("stages"))
        tasks = tuple(_task(task) for task in held.pop("tasks"))
        read = cls(**{**_tuples(held), "stages": stages, "tasks": tasks})
        if told != read.verdict:
            raise ValueError(f"{path}: verdict: expected {read.verdict}, as its stages say; received {told}")
        return read

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


def changes(before: Certificate, now: Certificate) -> list[str]:
    """Returns what differs between a certificate and one that was made again; nothing if it holds."""
    found = []
    names = [tuple(stage.name for stage in one.stages) for one in (before, now)]
    if names[0] != names[1]:
        found.append(f"stages: {', '.join(names[0])} then, {', '.join(names[1])} now")
    for what in ("candidate", "reference", "allowed"):
        if getattr(before, what) != getattr(now, what):
            found.append(f"{what}: {getattr(before, what)} then, {getattr(now, what)} now")
    if len(before.tasks) != len(now.tasks):
        found.append(f"{len(before.tasks)} pairs of programs then, {len(now.tasks)} now")
    for old, new in zip(before.stages, now.stages, strict=False):
        if sorted(old.alone) != sorted(new.alone):
            found.append(f"{old.name}: {len(old.alone)} arrays of one side then, {len(new.alone)} now")
        if (old.verdict, sorted(old.equal)) != (new.verdict, sorted(new.equal)):
            found.append(
                f"{old.name}: {old.verdict}, {len(old.equal)} arrays then; {new.verdict}, {len(new.equal)} now"
            )
    for of_old, of_new in zip(before.tasks, now.tasks, strict=False):
        for side in ("candidate", "reference"):
            then, now_is = (getattr(one, side).sha256[:12] for one in (of_old, of_new))
            if then != now_is:
                found.append(f"{', '.join(of_old.stages)}: the {side}'s program was {then}…, and is {now_is}…")
        if of_old.points != of_new.points:
            found.append(f"{', '.join(of_old.stages)}: evaluated at other points")
        then_granted, now_granted = _granted(of_old), _granted(of_new)
        if then_granted != now_granted:
            found.append(f"{', '.join(of_old.stages)}: granted {then_granted} then; {now_granted} now")
    if before.inputs != now.inputs:
        found.append("the ids are others")
    return found


def _granted(task: TaskProof) -> str:
    """Says what a proof takes for granted: axioms, casts that it leaves out, and the bound on its error."""
    casts = [len(side.narrowing) for side in (task.candidate, task.reference)]
    return f"{', '.join(sorted(task.axioms)) or 'no axiom'}, {sum(casts)} casts, an error of 2^{task.log2_error:.2f}"


def _problem(held: Any) -> str | None:
    """Returns what is wrong with a certificate's JSON; None if it follows the schema."""
    version = held.get("schema") if isinstance(held, dict) else None
    if type(version) is int and version != SCHEMA:
        return f"schema: expected {SCHEMA}; received {version}, which another version of jax-transformer writes"
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
